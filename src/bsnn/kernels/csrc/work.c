/* One function on several threads. They are torch's own if its OpenMP library is at hand: threads of another pool would
   have to wait for those, which keep the processor busy for a while after each of torch's functions. */

#include "train.h"

enum {
    ROWS, CURRENTS, SIGNS, FIRE, QUARTERS, THROUGH_NEURONS, THROUGH_NORM,
    PIXELS_TO_POINTS, FILTERS_TO_POINTS, POINTS_TO_PIXELS, SIGNS_TO_POINTS, POINTS_TO_TAPS,
    COUNT_EVENTS, LIST_EVENTS, WEIGHTS_FROM_EVENTS, FLIP
};

static void work(bsnn_task *task, int32_t rank, int32_t threads)
{
    void **const a = task->arguments;
    switch (task->function) {
    case ROWS: bsnn_rows(a[0], a[1], a[2], rank, threads); break;
    case CURRENTS:
        if (bsnn_currents(a[0], a[1], a[2], a[3], a[4], rank, threads))
            task->refused = 1; /* whoever writes, writes the same */
        break;
    case SIGNS: bsnn_signs(a[0], a[1], a[2], rank, threads); break;
    case FIRE: bsnn_fire(a[0], a[1], a[2], a[3], a[4], a[5], a[6], rank, threads); break;
    case QUARTERS:
        if (bsnn_quarters(a[0], a[1], a[2], rank, threads))
            task->refused = 1;
        break;
    case THROUGH_NEURONS:
        bsnn_through_neurons(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], rank, threads);
        break;
    case THROUGH_NORM: bsnn_through_norm(a[0], a[1], a[2], a[3], a[4], a[5], rank, threads); break;
    case PIXELS_TO_POINTS: bsnn_pixels_to_points(a[0], a[1], a[2], rank, threads); break;
    case FILTERS_TO_POINTS: bsnn_filters_to_points(a[0], a[1], a[2], rank, threads); break;
    case POINTS_TO_PIXELS: bsnn_points_to_pixels(a[0], a[1], a[2], rank, threads); break;
    case SIGNS_TO_POINTS: bsnn_signs_to_points(a[0], a[1], a[2], rank, threads); break;
    case POINTS_TO_TAPS: bsnn_points_to_taps(a[0], a[1], a[2], rank, threads); break;
    case COUNT_EVENTS: bsnn_count_events(a[0], a[1], a[2], rank, threads); break;
    case LIST_EVENTS: bsnn_list_events(a[0], a[1], a[2], a[3], a[4], rank, threads); break;
    case WEIGHTS_FROM_EVENTS: bsnn_weights_from_events(a[0], a[1], a[2], a[3], a[4], a[5], a[6], rank, threads); break;
    case FLIP: bsnn_flip(a[0], a[1], a[2], a[3], a[4], rank, threads); break;
    default: break;
    }
}

/* Version of what _library.py calls: a library of another version is not used. */
int32_t bsnn_training_version(void)
{
    return 6;
}

/* What a thread of an OpenMP team does. */
void bsnn_work(bsnn_task *task)
{
    work(task, task->rank(), task->size());
}

/* The same for a thread that knows its number. */
void bsnn_work_as(bsnn_task *task, int32_t rank)
{
    work(task, rank, task->threads);
}
