/* A convolution of spikes, or of counts of them, with one-bit weights, by counting (count.h).

   Windows are worked on row by row. For a row of windows, `list_row` is called once for each row of the input that it
   reaches and that is not listed yet (`rows_to_list`), then `gather_columns`, then `count_windows` for each window, or for
   some side by side. Lists of several time steps are kept side by side, so that all steps of a row can be computed before
   the next row. */

#ifndef BSNN_CONVOLUTION_H
#define BSNN_CONVOLUTION_H

#include "count.h"

/* The input is [height][width][planes][words], where plane k holds bit k of every channel's count, and bits beyond the
   channels are 0. The scratch belongs to one thread.

   If there are few output channels, one row of weights can serve several windows side by side: it has the bits that its spike
   meets in the first window, then those that it meets in the second, and zeros where it lies outside. */
typedef struct {
    int32_t channels, height, width, planes, words; /* that enter */
    int32_t outs;                                   /* channels that leave, in the room that they take in a row of weights */
    int32_t kernel[2], stride[2], padding[2], dilation[2], groups;
    int32_t windows;       /* that a row of weights serves; several only without groups, and if dilation[1] is 1 */
    uint32_t row;          /* bytes from one row of weights to the next */
    const uint8_t *weight; /* [kernel[0]][taps_across][channels] rows of windows · outs / groups bits, then a row of zeros */
    size_t list_capacity;  /* elements of one of the lists */
    size_t row_capacity;   /* elements of `rows` for one plane and group */
    bsnn_offset *lists, *rows;
    bsnn_offset *window; /* room for the rows of one group of a window; used if dilation[1] is not 1 */
    uint32_t *list_ends, *row_ends;
} bsnn_convolution;

#define BSNN_MAX_WINDOWS 16
#define BSNN_AHEAD 16 /* elements before a list that vectors may read */

/* The channels that fire in one row of the input, at one time step, in one plane and group. */
typedef struct {
    bsnn_offset *rows; /* of weights, as if every column of the input were a tap of its own, pixel by pixel */
    uint32_t *ends;    /* of every pixel's rows, after a zero */
    uint32_t *longest; /* number of rows of a pixel */
} bsnn_list;

/* How many taps a row of weights has room for, one beside the other. */
static inline int32_t taps_across(const bsnn_convolution *k)
{
    return k->kernel[1] + (k->windows - 1) * k->stride[1];
}

/* How many rows of the input a row of windows covers, holes of the dilation included. */
static inline int32_t reach_of(const bsnn_convolution *k)
{
    return k->dilation[0] * (k->kernel[0] - 1) + 1;
}

/* Rows of the input whose lists are kept: row y in place y % kept. */
static inline int32_t rows_kept(const bsnn_convolution *k)
{
    return reach_of(k) < k->height ? reach_of(k) : k->height;
}

static inline bsnn_list list_of(const bsnn_convolution *k, int32_t step, int32_t place, int32_t plane, int32_t group)
{
    const size_t row = (size_t)step * (size_t)rows_kept(k) + (size_t)place;
    const size_t number = (row * (size_t)k->planes + (size_t)plane) * (size_t)k->groups + (size_t)group;
    bsnn_list list;
    list.rows = k->lists + number * k->list_capacity + BSNN_AHEAD;
    list.longest = k->list_ends + number * ((size_t)k->width + 2);
    list.ends = list.longest + 1;
    return list;
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
    const int32_t part = k->channels / k->groups;
    int32_t x, p, g, w;
    for (p = 0; p < k->planes; p++)
        for (g = 0; g < k->groups; g++) {
            const bsnn_list list = list_of(k, step, y % rows_kept(k), p, g);
            const int32_t first = g * part, last = first + part;
            const bsnn_word *pixel = words + p * k->words;
            bsnn_offset *out = list.rows;
            uint32_t longest = 0;
            list.ends[0] = 0;
            for (x = 0; x < k->width; x++, pixel += k->planes * k->words) {
                uint32_t length;
                for (w = first / BSNN_WORD_BITS; w * BSNN_WORD_BITS < last; w++)
                    if (pixel[w]) /* the highest plane of counts has few */
                        out = list_bits(bits_between(pixel[w], first - w * BSNN_WORD_BITS, last - w * BSNN_WORD_BITS),
                                        (uint32_t)(x * k->channels + w * BSNN_WORD_BITS), k->row, out);
                list.ends[x + 1] = (uint32_t)(out - list.rows);
                length = list.ends[x + 1] - list.ends[x];
                longest = length > longest ? length : longest;
            }
            *list.longest = longest;
        }
}

/* rows[at + n] = from[n] + offset for `number` rows, where `rows` begins with a whole vector. Vectors write `most` of them and
   up to 31 more: what lies beyond the end will be overwritten. They read as much beyond, and up to 15 before. */
static inline void append_rows(const bsnn_offset *restrict from, uint32_t number, uint32_t most, uint32_t offset,
                               bsnn_offset *restrict rows, size_t at)
{
    uint32_t n;
    /* All writes are aligned, which is several times as fast: the first one holds the end of the last list too. */
#if defined(BSNN_VECTORS) && defined(__AVX512F__)
    const __m512i more = _mm512_set1_epi32((int)offset);
    const size_t before = at % 16;
    bsnn_offset *const to = rows + at - before;
    from -= before;
    _mm512_store_si512(to, _mm512_mask_add_epi32(_mm512_load_si512(to), (__mmask16)(0xffffu << before),
                                                 _mm512_loadu_si512(from), more));
    for (n = 16; n < most + 16; n += 16)
        _mm512_store_si512(to + n, _mm512_add_epi32(_mm512_loadu_si512(from + n), more));
    (void)number;
#elif defined(BSNN_VECTORS) && defined(__AVX2__)
    const __m256i more = _mm256_set1_epi32((int)offset), places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const size_t before = at % 8;
    const __m256i old = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)before), places);
    bsnn_offset *const to = rows + at - before;
    from -= before;
    _mm256_store_si256((__m256i *)(void *)to,
                       _mm256_blendv_epi8(_mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(const void *)from), more),
                                          _mm256_load_si256((const __m256i *)(void *)to), old));
    for (n = 8; n < most + 8; n += 8)
        _mm256_store_si256((__m256i *)(void *)(to + n),
                           _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(from + n)), more));
    (void)number;
#else
    for (n = 0; n < number; n++)
        rows[at + n] = (bsnn_offset)(from[n] + offset);
    (void)most;
#endif
}

static inline bsnn_offset *rows_of(const bsnn_convolution *k, int32_t plane, int32_t group)
{
    return k->rows + (size_t)(plane * k->groups + group) * k->row_capacity;
}

static inline uint32_t *row_ends_of(const bsnn_convolution *k, int32_t plane, int32_t group)
{
    return k->row_ends + (plane * k->groups + group) * (k->width + 1);
}

/* Collects the rows of weights that the spikes of one column of a window name, from all the rows of the window: for every
   column of the input. Windows that lie side by side share their columns, and the rows of a window lie in one piece. */
static void gather_columns(const bsnn_convolution *k, int32_t step, int32_t y)
{
    const int32_t top = top_of(k, y), kept = rows_kept(k), begin = top > 0 ? 0 : (-top + k->dilation[0] - 1) / k->dilation[0];
    const int32_t first = top + begin * k->dilation[0];
    const uint32_t line = (uint32_t)(taps_across(k) * k->channels) * k->row;
    int32_t x, i, p, g;
    for (p = 0; p < k->planes; p++)
        for (g = 0; g < k->groups; g++) {
            bsnn_offset *const rows = rows_of(k, p, g);
            uint32_t *const ends = row_ends_of(k, p, g), end = 0;
            ends[0] = 0;
            for (x = 0; x < k->width; x++) {
                int32_t from_y = first, place = first % kept;
                for (i = begin; i < k->kernel[0] && from_y < k->height; i++, from_y += k->dilation[0]) {
                    const bsnn_list list = list_of(k, step, place, p, g);
                    const uint32_t number = list.ends[x + 1] - list.ends[x];
                    /* As many as the longest list has: a number that the processor can foresee. */
                    if (*list.longest)
                        append_rows(list.rows + list.ends[x], number, *list.longest, (uint32_t)i * line, rows, end);
                    end += number;
                    for (place += k->dilation[0]; place >= kept;)
                        place -= kept;
                }
                ends[x + 1] = end;
            }
        }
}

static inline int32_t within(int32_t x, int32_t end)
{
    x = x > 0 ? x : 0;
    return x < end ? x : end;
}

/* Copies the rows of a window whose columns do not lie side by side into one piece; returns its end. */
static uint32_t collect_columns(const bsnn_convolution *k, int32_t plane, int32_t group, int32_t left, uint32_t end)
{
    const bsnn_offset *const rows = rows_of(k, plane, group);
    const uint32_t *const ends = row_ends_of(k, plane, group), tap = (uint32_t)k->channels * k->row;
    int32_t j;
    uint32_t n;
    for (j = 0; j < k->kernel[1]; j++) {
        const int32_t x = left + j * k->dilation[1];
        if (x >= 0 && x < k->width)
            for (n = ends[x]; n < ends[x + 1]; n++)
                k->window[end++] = (bsnn_offset)(rows[n] + (uint32_t)(j - x) * tap);
    }
    return end;
}

/* sums[o] = Σ weight · input over window x of the row that was gathered, or over the windows from x on that a row of weights
   serves, one after another; writes up to 31 beyond. */
static void count_windows(const bsnn_convolution *k, int32_t x, int32_t *sums)
{
    const int32_t part = k->outs / k->groups, across = taps_across(k);
    const int32_t left = x * k->stride[1] - k->padding[1], shift = k->dilation[1] == 1 ? left : 0;
    const intptr_t tap = (intptr_t)k->channels * (intptr_t)k->row;
    /* Column `left` of the input meets the first tap. */
    const uint8_t *const weight = (const uint8_t *)((uintptr_t)k->weight - (uintptr_t)(shift * tap));
    uint32_t begins[BSNN_MAX_PLANES], ends[BSNN_MAX_PLANES];
    int32_t arrived[BSNN_MAX_WINDOWS], p, g, n;
    bsnn_events events;
    events.begins = begins;
    events.ends = ends;
    events.planes = k->planes;
    events.no_row = (bsnn_offset)((k->kernel[0] * across + shift) * tap);
    for (g = 0; g < k->groups; g++) {
        uint32_t end = 0;
        for (n = 0; n < k->windows; n++)
            arrived[n] = 0;
        for (p = 0; p < k->planes; p++) {
            const uint32_t *const columns = row_ends_of(k, p, g);
            if (k->dilation[1] == 1) {
                const uint32_t start = (uint32_t)(rows_of(k, p, g) - k->rows);
                begins[p] = start + columns[within(left, k->width)];
                ends[p] = start + columns[within(left + across, k->width)];
                for (n = 0; n < k->windows; n++) {
                    const int32_t first = left + n * k->stride[1];
                    const uint32_t last = columns[within(first + k->kernel[1], k->width)];
                    arrived[n] += (int32_t)((last - columns[within(first, k->width)]) << p);
                }
            } else {
                begins[p] = end;
                ends[p] = end = collect_columns(k, p, g, left, end);
                arrived[0] += (int32_t)((end - begins[p]) << p);
            }
        }
        events.rows = k->dilation[1] == 1 ? k->rows : k->window;
        count_channels(weight, k->row, &events, k->windows, part, arrived, sums + g * part);
    }
}

#endif
