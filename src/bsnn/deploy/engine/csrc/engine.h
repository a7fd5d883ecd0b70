/* The inference engine: a deployed network (docs/model-file.md) as constant tables, run by bsnn_run.

   No memory is allocated and nothing is kept between calls: the tables name offsets into a workspace that the caller
   provides. `lay_out` in src/bsnn/deploy/engine/layout.py computes tables and sizes; all tables can be `static const`. */

#ifndef BSNN_ENGINE_H
#define BSNN_ENGINE_H

#include <stddef.h>
#include <stdint.h>

enum { BSNN_INPUT, BSNN_BITS, BSNN_FIXED }; /* kinds of values */
enum {
    BSNN_COUNT, /* synapse of one-bit weights over spikes or counts */
    BSNN_DENSE, /* synapse of 16-bit weights over anything */
    BSNN_LIF,
    BSNN_AVERAGE_POOL,
    BSNN_MAX_POOL,
    BSNN_ADD,
    BSNN_CONCAT,
    BSNN_SCALE
};

/* A value: [height][width][channels] of int16 (BSNN_INPUT) or int32 (BSNN_FIXED), or for spikes and counts (BSNN_BITS)
   [height][width][planes][words], where plane k holds bit k of every channel's count, and bits beyond the channels
   are 0. */
typedef struct {
    int32_t kind, channels, height, width, planes, words;
    size_t offset; /* in the workspace, in bytes; a multiple of 64 */
    size_t step;   /* bytes from one time step to the next; 0 if it is the same at all of them */
} bsnn_value;

typedef struct {
    int32_t op;
    int32_t still;  /* 1: computed at the first time step only */
    int32_t input;  /* values */
    int32_t other;  /* BSNN_ADD: the other value; BSNN_CONCAT: the first channel of the result */
    int32_t output;
    int32_t kernel[2], stride[2], padding[2], dilation[2], groups;
    int32_t input_shift, shift;
    int32_t wide;   /* 1: products need 64 bits, or results a cut */
    int32_t count_padding;
    int32_t neurons; /* which membrane, or -1: a synapse without neurons of its own */
    int32_t leak, threshold;
    uint32_t row; /* bytes from one row of weights to the next */
    /* Scratch: bytes from the beginning of a thread's own part, a multiple of 64; capacities in elements. */
    size_t lists, ends, rows, row_ends, rest, sums, spikes, membrane, list_capacity, row_capacity;
    const void *weight;
    const int32_t *multiplier, *offset;
} bsnn_op;

typedef struct {
    int32_t num_ops, num_values, output; /* output: a value */
    size_t frame;                        /* elements of one input */
    const bsnn_op *ops;
    const bsnn_value *values;
} bsnn_model;

typedef struct {
    const bsnn_model *model;
    const int16_t *frames;     /* [num_frames][batch][height][width][channels] */
    int32_t num_frames;        /* 1: a still input, else time_steps */
    int32_t batch, time_steps;
    int32_t chunk;             /* time steps that a layer computes before the next one; values have room for so many */
    int32_t *const *membranes; /* one per layer of neurons, [batch][height][width][channels]; or NULL if chunk is at least
                                  time_steps: then they begin at 0 and are forgotten */
    uint8_t *const *records;   /* the same with time_steps before; or NULL */
    int64_t *outputs;          /* [batch][channels], summed over time */
    uint8_t *workspace;        /* values, then scratch of each thread; 64-byte aligned */
    size_t values_bytes, scratch_bytes;
    int32_t threads;
    int32_t by_rows;           /* 1: threads share one image's rows; 0: each takes whole images, with values of its own */
    uint32_t *barrier;         /* two zeros; used with by_rows */
} bsnn_call;

/* Runs a thread's share; thread `rank` of `threads`. */
void bsnn_run(const bsnn_call *call, int32_t rank);

#endif
