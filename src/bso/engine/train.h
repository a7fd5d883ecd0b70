/* What training computes in C; src/bso/kernels.py calls it by `bso_work`. */

#ifndef BSO_TRAIN_H
#define BSO_TRAIN_H

#include "kernel.h"

typedef struct {
    int32_t batch, height, width, channels;
    int32_t pooled;    /* 1: what is sent on are means of 2 by 2 pixels */
    int32_t surrogate;
    int32_t quarters;  /* 1: currents are kept as 16-bit quarters */
    float parameter;   /* of the surrogate: its slope or width */
    float leak, threshold;
} bso_neurons;

typedef struct {
    int32_t images, height, width, ins, outs; /* of the input; images that are worked on together */
    int32_t kernel[2];
} bso_convolution;

/* Where an input that is not zero lies: the row that its first tap reaches in the padded gradient. */
typedef struct {
    uint32_t row;
    float value;
} bso_entry;

/* A function and its arguments, shared by the threads of a team. */
typedef struct {
    int32_t function;
    int32_t threads;   /* of a team whose threads know their numbers */
    int32_t refused;   /* written: 1 if a thread found that the kernel does not serve */
    int (*rank)(void); /* of this thread in an OpenMP team, and the team's size */
    int (*size)(void);
    void *arguments[9];
} bso_task;

int32_t bso_training_version(void);
void bso_work(bso_task *task);
void bso_work_as(bso_task *task, int32_t rank);

/* out = `set` where a bit is 1, else `clear`. */
void bso_spread(const uint8_t *bits, size_t number, float set, float clear, float *out);

void bso_signs(const uint8_t *bits, const int64_t *number, float *signs, int32_t rank, int32_t threads);
int32_t bso_gradient_block(void);
void bso_gradient(const bso_convolution *k, const float *x, const float *gradient, float *sums, uint32_t *numbers,
                  bso_entry *lists, int32_t rank, int32_t threads);
void bso_reorder(const float *in, const int64_t *steps, const int32_t *shape, float *out, int32_t rank, int32_t threads);
void bso_fire(const bso_neurons *n, float *x, float *membrane, float *trace, float *sent, float *sent_trace,
              uint8_t *bits, int32_t rank, int32_t threads);
int32_t bso_quarters(const bso_neurons *n, const float *current, int16_t *quarters, int32_t rank, int32_t threads);
void bso_through_neurons(const bso_neurons *n, const float *sent, const float *membrane, const uint8_t *bits,
                         const void *current, const float *mean, float *gradient, double *sums, float *work,
                         int32_t rank, int32_t threads);
void bso_through_norm(const bso_neurons *n, float *gradient, const void *current, const float *scale,
                      const float *slope, const float *shift, int32_t rank, int32_t threads);

#endif
