/* A convolution of spikes, or of counts of them, with one-bit weights, by counting (count.h).

   Windows are worked on row by row. For a row of windows, `list_row` is called once for each row of the input that it
   reaches and that is not listed yet (`rows_to_list`), then `gather_columns`, then `count_pixel` for each window. Lists of
   several time steps are kept side by side, so that all steps of a row can be computed before the next row. */

#ifndef BSNN_CONVOLUTION_H
#define BSNN_CONVOLUTION_H

#include "count.h"

/* The input is [height][width][planes][words], where plane k holds bit k of every channel's count, and bits beyond the
   channels are 0. The scratch belongs to one thread. */
typedef struct {
    int32_t channels, height, width, planes, words; /* that enter */
    int32_t outs;                                   /* channels that leave */
    int32_t kernel[2], stride[2], padding[2], dilation[2], groups;
    uint32_t row;          /* bytes from one row of weights to the next */
    const uint8_t *weight; /* [taps][channels] rows of outs / groups bits, then a row of zeros */
    size_t list_capacity;  /* elements of `lists` for one row of the input */
    bsnn_offset *lists, *rows, *rest;
    uint32_t *list_ends, *row_ends;
} bsnn_convolution;

/* Where the lists of one row of the input at one time step are kept. */
typedef struct {
    bsnn_offset *rows; /* of weights of the first tap, one for each channel that fires: by pixel, plane and group */
    uint32_t *ends;    /* of every such list, after a zero */
    uint32_t *longest; /* list of each plane */
} bsnn_row_lists;

/* How many rows of the input a row of windows covers, holes of the dilation included. */
static inline int32_t reach_of(const bsnn_convolution *k)
{
    return k->dilation[0] * (k->kernel[0] - 1) + 1;
}

static inline bsnn_row_lists row_lists(const bsnn_convolution *k, int32_t step, int32_t y)
{
    const int32_t reach = reach_of(k);
    const size_t rows = (size_t)(reach < k->height ? reach : k->height);
    const size_t number = (size_t)k->width * (size_t)(k->planes * k->groups) + 1 + (size_t)k->planes;
    const size_t row = (size_t)step * rows + (size_t)(y % reach);
    bsnn_row_lists lists;
    lists.rows = k->lists + row * k->list_capacity;
    lists.longest = k->list_ends + row * number;
    lists.ends = lists.longest + k->planes;
    return lists;
}

/* The first row of windows in the input, which may lie above it. */
static inline int32_t top_of(const bsnn_convolution *k, int32_t y)
{
    return y * k->stride[0] - k->padding[0];
}

/* Which rows of the input the windows of row y need that are not among the first `listed`: from [0] up to [1]. */
static inline void rows_to_list(const bsnn_convolution *k, int32_t y, int32_t listed, int32_t range[2])
{
    const int32_t top = top_of(k, y), end = top + reach_of(k);
    range[0] = listed > top ? listed : top > 0 ? top : 0;
    range[1] = end < k->height ? end : k->height;
}

/* Lists the channels that fire in row y of the input, whose first pixel is at `words`. */
static void list_row(const bsnn_convolution *k, int32_t step, int32_t y, const bsnn_word *words)
{
    const bsnn_row_lists lists = row_lists(k, step, y);
    const int32_t part = k->channels / k->groups;
    bsnn_offset *out = lists.rows;
    uint32_t *end = lists.ends;
    int32_t x, p, g, w;
    *end = 0;
    for (p = 0; p < k->planes; p++)
        lists.longest[p] = 0;
    for (x = 0; x < k->width; x++)
        for (p = 0; p < k->planes; p++, words += k->words)
            for (g = 0; g < k->groups; g++) {
                const int32_t first = g * part, last = first + part;
                uint32_t length;
                for (w = first / BSNN_WORD_BITS; w * BSNN_WORD_BITS < last; w++)
                    out = list_bits(bits_between(words[w], first - w * BSNN_WORD_BITS, last - w * BSNN_WORD_BITS),
                                    (uint32_t)(w * BSNN_WORD_BITS), k->row, out);
                end[1] = (uint32_t)(out - lists.rows);
                length = end[1] - end[0];
                lists.longest[p] = length > lists.longest[p] ? length : lists.longest[p];
                end++;
            }
}

/* Collects the rows of weights that the spikes of one column of a window name, from all the rows of the window: for every
   column of the input, plane by plane, group by group. Columns are shared by the windows that lie side by side. */
static void gather_columns(const bsnn_convolution *k, int32_t step, int32_t y)
{
    const int32_t top = top_of(k, y);
    const uint32_t line = (uint32_t)(k->kernel[1] * k->channels) * k->row;
    uint32_t *end = k->row_ends;
    bsnn_offset *to = k->rows;
    int32_t x, i, p, g;
    *end = 0;
    for (x = 0; x < k->width; x++)
        for (p = 0; p < k->planes; p++)
            for (g = 0; g < k->groups; g++) {
                for (i = 0; i < k->kernel[0]; i++) {
                    const int32_t from_y = top + i * k->dilation[0];
                    if (from_y >= 0 && from_y < k->height) {
                        const bsnn_row_lists lists = row_lists(k, step, from_y);
                        const uint32_t *const from = lists.ends + (x * k->planes + p) * k->groups + g;
                        /* As many as the longest list has: a number that the processor can foresee. */
                        append_rows(lists.rows + from[0], from[1] - from[0], lists.longest[p], (uint32_t)i * line, to);
                        to += from[1] - from[0];
                    }
                }
                *++end = (uint32_t)(to - k->rows);
            }
}

/* sums[o] = Σ weight · input over window x of the row that was gathered; writes up to 31 beyond. */
static void count_pixel(const bsnn_convolution *k, int32_t x, int32_t *sums)
{
    const int32_t part = k->outs / k->groups, across = k->dilation[1], left = x * k->stride[1] - k->padding[1];
    int32_t end = k->kernel[1], g, p, column;
    bsnn_events events;
    events.rows = k->rows;
    events.rest = k->rest;
    events.planes = k->planes;
    events.plane_step = k->groups;
    events.column_step = across * k->planes * k->groups;
    events.tap_size = (uint32_t)k->channels * k->row;
    events.no_row = (uint32_t)(k->kernel[0] * k->kernel[1]) * events.tap_size; /* zeros */
    for (events.first = 0; events.first < end && left + events.first * across < 0;)
        events.first++;
    while (events.first < end && left + (end - 1) * across >= k->width)
        end--;
    events.columns = end - events.first;
    for (g = 0; g < k->groups; g++) {
        int32_t arrived = 0;
        events.ends = k->row_ends + (left + events.first * across) * k->planes * k->groups + g;
        for (column = 0; column < events.columns; column++)
            for (p = 0; p < k->planes; p++) {
                const uint32_t *const one = events.ends + column * events.column_step + p * k->groups;
                arrived += (int32_t)((one[1] - one[0]) << p);
            }
        count_channels(k->weight, k->row, &events, part, arrived, sums + g * part);
    }
}

#endif
