/* The inference engine: a deployed network (docs/model-file.md) as constant tables, run by bsnn_run.

   No memory is allocated and nothing is kept between calls: the tables name offsets into a workspace that the caller
   provides. `lay_out` in src/bsnn/deploy/engine/layout.py computes tables and sizes; all tables can be `static const`.

   A network runs as a list of tasks. With BSNN_SMALL, for devices, a task is one row of some ops, computed pixel by pixel:
   all time steps of a pixel, and all ops at each of them, before the next pixel. A value that later tasks read keeps only
   as many rows as they still need. Otherwise a task is one layer with all its rows, which threads share. */

#ifndef BSNN_ENGINE_H
#define BSNN_ENGINE_H

#include <stddef.h>
#include <stdint.h>

enum { BSNN_INPUT, BSNN_BITS, BSNN_FIXED }; /* kinds of values */
enum {
    BSNN_COUNT, /* synapse of one-bit weights over spikes or counts */
    BSNN_DENSE, /* synapse of 16-bit weights over anything */
    BSNN_LIF,
    BSNN_POOL,       /* of spikes or counts */
    BSNN_SCATTER,    /* the same, by adding a pixel of the input that was just made to all windows that it lies in */
    BSNN_POOL_FIXED, /* of fixed values */
    BSNN_ADD,
    BSNN_CONCAT,
    BSNN_SCALE
};

/* A value. A pixel is [channels] of int16 (BSNN_INPUT) or int32 (BSNN_FIXED), or for spikes and counts (BSNN_BITS)
   [planes][words], where plane k holds bit k of every channel's count, and bits beyond the channels are 0. Row y lies in
   place y % ring. */
typedef struct {
    int32_t kind, channels, height, width, planes, words;
    int32_t ring;            /* rows that are kept */
    int32_t local;           /* 1: one pixel, in the scratch of the task that makes and reads it */
    size_t offset;           /* in the workspace, or in scratch if local; in bytes, a multiple of an int32's */
    size_t step, row, pixel; /* bytes to the next time step (0 if it is the same at all of them), of a row and a pixel */
} bsnn_value;

typedef struct {
    int32_t op;
    int32_t still;  /* 1: computed at the first time step only */
    int32_t input;  /* values */
    int32_t other;  /* BSNN_ADD: the other value; BSNN_CONCAT: the first channel of the result */
    int32_t output;
    int32_t kernel[2], stride[2], padding[2], dilation[2], groups;
    int32_t windows; /* BSNN_COUNT: side by side that one row of weights serves (convolution.h); 1 with BSNN_SMALL */
    int32_t input_shift, shift;
    int32_t wide;    /* 1: products need 64 bits, or results a cut */
    int32_t largest; /* pools: 1: the largest number of a window, else their sum, or average if fixed */
    int32_t count_padding;
    int32_t neurons; /* which membrane, or -1: a synapse without neurons of its own */
    int32_t leak, threshold;
    int32_t membrane_step; /* int32 from one pixel's membranes to the next one's in scratch; 0 with BSNN_SMALL */
    uint32_t row;          /* bytes from one row of weights to the next */
    /* Scratch: bytes from the beginning of a thread's own part; capacities in elements. */
    size_t lists, ends, rows, row_ends, window, sums, membrane, list_capacity, row_capacity;
    const void *weight;
    const int32_t *multiplier, *offset;
} bsnn_op;

/* Rows `first` to `last` (included) of the ops from `op` on. */
typedef struct {
    uint16_t op, ops, first, last;
} bsnn_task;

typedef struct {
    int32_t num_tasks, output; /* output: a value */
    size_t frame;              /* elements of one input */
    const bsnn_task *tasks;
    const bsnn_op *ops;
    const bsnn_value *values;
} bsnn_model;

typedef struct {
    const bsnn_model *model;
    const void *frames;        /* [num_frames][batch][height][width][channels] of int16, or of bytes */
    const int16_t *of_byte;    /* frames are bytes: [channels][256], the number of each; or NULL */
    int32_t num_frames;        /* 1: a still input, else time_steps */
    int32_t batch, time_steps;
    int32_t chunk;             /* time steps that a task computes before the next one; values have room for so many */
    int32_t *const *membranes; /* one per layer of neurons, [batch][height][width][channels]; or NULL if chunk is at least
                                  time_steps: then they begin at 0 and are forgotten */
    uint8_t *const *records;   /* the same with time_steps before; or NULL */
    int64_t *outputs;          /* [batch][channels], summed over time */
    uint8_t *workspace;        /* values, then scratch of each thread; 64-byte aligned for speed */
    size_t values_bytes, scratch_bytes;
    int32_t threads;
    int32_t by_rows;           /* 1: threads share one image's rows; 0: each takes whole images, with values of its own */
    uint32_t *barrier;         /* two zeros; used with by_rows */
} bsnn_call;

/* Runs a thread's share; thread `rank` of `threads`. */
void bsnn_run(const bsnn_call *call, int32_t rank);

#endif
