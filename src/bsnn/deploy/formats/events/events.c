/* Events of a camera, as they come, summed to the frames of an input; events.h says how it is used. */

#include "events.h"

#include <string.h>

static struct {
    uint32_t size;  /* of an input: events, or microseconds */
    uint32_t taken; /* events so far */
    uint32_t start; /* time of the first one */
    int32_t by_time;
} state;

static void begin(bsnn_input input[BSNN_INPUT_SIZE], uint32_t size, int by_time)
{
    memset(input, 0, BSNN_INPUT_SIZE * sizeof input[0]);
    state.size = size;
    state.taken = 0;
    state.by_time = by_time;
}

void bsnn_events_by_number(bsnn_input input[BSNN_INPUT_SIZE], uint32_t number)
{
    begin(input, number, 0);
}

void bsnn_events_by_time(bsnn_input input[BSNN_INPUT_SIZE], uint32_t microseconds)
{
    begin(input, microseconds, 1);
}

int bsnn_events_push(bsnn_input input[BSNN_INPUT_SIZE], int x, int y, uint32_t time, int brighter)
{
    uint32_t frame;
    bsnn_input *pixel;
    if (x < 0 || x >= BSNN_EVENTS_COLUMNS || y < 0 || y >= BSNN_EVENTS_ROWS)
        return BSNN_EVENTS_OUTSIDE;
    if (state.taken == 0)
        state.start = time;
    if (state.by_time)
        frame = time - state.start < state.size
            ? (uint32_t)((uint64_t)(time - state.start) * BSNN_FRAMES / state.size)
            : BSNN_FRAMES;
    else /* the last frame that begins at this event or before it; frame i begins at event i * size / BSNN_FRAMES */
        frame = state.taken < state.size
            ? (uint32_t)((((uint64_t)state.taken + 1) * BSNN_FRAMES - 1) / state.size)
            : BSNN_FRAMES;
    if (frame >= BSNN_FRAMES)
        return BSNN_EVENTS_FULL;
    state.taken++;
    pixel = input + ((frame * BSNN_HEIGHT + (uint32_t)BSNN_EVENTS_ROW(x, y)) * BSNN_WIDTH +
                     (uint32_t)BSNN_EVENTS_COLUMN(x, y)) * 2 + (brighter != 0);
    *pixel = (bsnn_input)(*pixel > 255 - BSNN_EVENTS_LEVEL ? 255 : *pixel + BSNN_EVENTS_LEVEL);
    return BSNN_EVENTS_TAKEN;
}
