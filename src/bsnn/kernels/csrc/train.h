/* What training computes in C; src/bsnn/kernels/_library.py calls it through `bsnn_work`. */

#ifndef BSNN_TRAIN_H
#define BSNN_TRAIN_H

#include <stddef.h>
#include <stdint.h>

/* A convolution of spikes with one-bit weights. */
typedef struct {
    int32_t batch, channels, height, width; /* that enter */
    int32_t outs, made[2];                  /* channels, height and width that leave */
    int32_t kernel[2], stride[2], padding[2], dilation[2], groups;
} bsnn_synapse;

typedef struct {
    int32_t batch, height, width, channels;
    int32_t pooled;    /* 1: what is sent on are means of 2 by 2 pixels */
    int32_t surrogate;
    int32_t quarters;  /* 1: currents are kept as 16-bit quarters */
    float parameter;   /* of the surrogate: its slope or width */
    float leak, threshold;
} bsnn_neurons;

/* Tiles of 4 by 4 pixels, with their surroundings, that images are cut into. */
typedef struct {
    int32_t images, height, width, channels;
    int32_t step;         /* channels from one pixel to the next */
    int32_t down, across; /* tiles of an image */
    int32_t top, left;    /* rows and columns that the first tile begins outside of the image */
    int32_t narrow;       /* 1: values at the points are bf16 */
} bsnn_tiles;

/* A convolution of 3 by 3 taps and stride 1, by its events. */
typedef struct {
    int32_t batch, channels, height, width; /* that enter */
    int32_t outs, made[2];                  /* channels, height and width that leave */
    int32_t padding[2];
    int32_t images; /* of a chunk */
} bsnn_event_table;

/* A function and its arguments, shared by the threads of a team. */
typedef struct {
    int32_t function;
    int32_t threads;   /* of a team whose threads know their numbers */
    int32_t refused;   /* written: 1 if a thread found numbers that the kernel does not support */
    int (*rank)(void); /* of this thread in an OpenMP team, and the team's size */
    int (*size)(void);
    void *arguments[9];
} bsnn_task;

int32_t bsnn_training_version(void);
void bsnn_work(bsnn_task *task);
void bsnn_work_as(bsnn_task *task, int32_t rank);

void bsnn_synapse_sizes(const bsnn_synapse *s, int64_t sizes[2]);
void bsnn_rows(const bsnn_synapse *s, const uint8_t *bits, uint8_t *rows, int32_t rank, int32_t threads);
int32_t bsnn_currents(const bsnn_synapse *s, const uint8_t *rows, const float *spikes, float *currents,
                      uint8_t *workspace, int32_t rank, int32_t threads);
void bsnn_signs(const uint8_t *bits, const int64_t *number, float *signs, int32_t rank, int32_t threads);
void bsnn_pixels_to_points(const bsnn_tiles *k, const float *x, void *out, int32_t rank, int32_t threads);
void bsnn_filters_to_points(const bsnn_tiles *k, const float *x, float *out, int32_t rank, int32_t threads);
void bsnn_points_to_pixels(const bsnn_tiles *k, float *x, const void *products, int32_t rank, int32_t threads);
void bsnn_signs_to_points(const uint8_t *bits, const int32_t *shape, void *out, int32_t rank, int32_t threads);
void bsnn_points_to_taps(const float *products, const int32_t *shape, float *out, int32_t rank, int32_t threads);
int32_t bsnn_event_lanes(void); /* output channels that are worked on at a time */
void bsnn_count_events(const bsnn_event_table *k, const float *x, int32_t *counts, int32_t rank, int32_t threads);
void bsnn_list_events(const bsnn_event_table *k, const float *x, int32_t *ends, float *values, uint16_t *places,
                      int32_t rank, int32_t threads);
void bsnn_weights_from_events(const bsnn_event_table *k, const float *gradient, const int32_t *ends, const float *values,
                              const uint16_t *places, float *work, float *out, int32_t rank, int32_t threads);
void bsnn_flip(const float *momentum, uint8_t *bits, const float *limit, const int64_t *number, int64_t *counts,
               int32_t rank, int32_t threads);
void bsnn_fire(const bsnn_neurons *n, float *x, float *membrane, float *trace, float *sent, float *sent_trace,
               uint8_t *bits, int32_t rank, int32_t threads);
int32_t bsnn_quarters(const bsnn_neurons *n, const float *current, int16_t *quarters, int32_t rank, int32_t threads);
void bsnn_through_neurons(const bsnn_neurons *n, const float *sent, const float *membrane, const uint8_t *bits,
                          const void *current, const float *mean, float *gradient, double *sums, float *work,
                          int32_t rank, int32_t threads);
void bsnn_through_norm(const bsnn_neurons *n, float *gradient, const void *current, const float *scale,
                       const float *slope, const float *shift, int32_t rank, int32_t threads);

#endif
