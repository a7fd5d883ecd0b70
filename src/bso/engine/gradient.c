/* The weight gradient of a convolution from those inputs that are not zero; src/bso/kernels.py calls it.

   With spikes, or traces of a few steps, most inputs are zero, and what a dense product spends on them is wasted. For one
   tap and one input channel the gradient is a sum of rows of the output's gradient, one a pixel where the input is not
   zero: it is added up in registers. */

#include "train.h"

#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
typedef __m512 lanes;
#define LOAD(at) _mm512_loadu_ps(at)
#define STORE(at, x) _mm512_storeu_ps(at, x)
#define ALL(x) _mm512_set1_ps(x)
#define MULTIPLY_ADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#define NOT_ZERO(at) (uint32_t) _mm512_cmp_ps_mask(_mm512_loadu_ps(at), _mm512_setzero_ps(), _CMP_NEQ_UQ)
#elif defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
typedef __m256 lanes;
#define LOAD(at) _mm256_loadu_ps(at)
#define STORE(at, x) _mm256_storeu_ps(at, x)
#define ALL(x) _mm256_set1_ps(x)
#define MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#define NOT_ZERO(at) (uint32_t) _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(at), _mm256_setzero_ps(), _CMP_NEQ_UQ))
#else
#define LANES 1
typedef float lanes;
#define LOAD(at) (*(at))
#define STORE(at, x) (*(at) = (x))
#define ALL(x) (x)
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#define NOT_ZERO(at) (uint32_t)(*(at) != 0)
#endif

#define BLOCK (8 * LANES) /* output channels that are added up in registers */

/* Output channels have to be a multiple of this. */
int32_t bso_gradient_block(void)
{
    return BLOCK;
}

/* sums[0 .. BLOCK) += Σ value · row, over the entries of a list, `before` rows before those that they name. */
static void add_rows(const bso_entry *list, uint32_t number, const float *rows, uint32_t before, size_t stride,
                     float *sums)
{
    lanes a = LOAD(sums), b = LOAD(sums + LANES), c = LOAD(sums + 2 * LANES), d = LOAD(sums + 3 * LANES);
    lanes e = LOAD(sums + 4 * LANES), f = LOAD(sums + 5 * LANES), g = LOAD(sums + 6 * LANES), h = LOAD(sums + 7 * LANES);
    uint32_t n;
    for (n = 0; n < number; n++) {
        const float *const row = rows + (list[n].row - before) * stride;
        const lanes value = ALL(list[n].value);
        a = MULTIPLY_ADD(value, LOAD(row), a);
        b = MULTIPLY_ADD(value, LOAD(row + LANES), b);
        c = MULTIPLY_ADD(value, LOAD(row + 2 * LANES), c);
        d = MULTIPLY_ADD(value, LOAD(row + 3 * LANES), d);
        e = MULTIPLY_ADD(value, LOAD(row + 4 * LANES), e);
        f = MULTIPLY_ADD(value, LOAD(row + 5 * LANES), f);
        g = MULTIPLY_ADD(value, LOAD(row + 6 * LANES), g);
        h = MULTIPLY_ADD(value, LOAD(row + 7 * LANES), h);
    }
    STORE(sums, a);
    STORE(sums + LANES, b);
    STORE(sums + 2 * LANES, c);
    STORE(sums + 3 * LANES, d);
    STORE(sums + 4 * LANES, e);
    STORE(sums + 5 * LANES, f);
    STORE(sums + 6 * LANES, g);
    STORE(sums + 7 * LANES, h);
}

/* Adds to sums[taps][ins][outs], for this thread's part of the input channels, of which there are a multiple of 16. `x` is [images][height][width][ins];
   `gradient`, of stride 1, [images][height + kernel − 1][width + kernel − 1][outs], has zeros around it, so that every
   tap of every pixel finds a row. Room: `numbers` for ins, `lists` for as many times images · height · width. */
void bso_gradient(const bso_convolution *k, const float *x, const float *gradient, float *sums, uint32_t *numbers,
                  bso_entry *lists, int32_t rank, int32_t threads)
{
    const int32_t first = k->ins / 16 * rank / threads * 16, last = k->ins / 16 * (rank + 1) / threads * 16;
    const int32_t below = k->kernel[0] - 1, beside = k->kernel[1] - 1;
    const size_t high = (size_t)(k->height + below), wide = (size_t)(k->width + beside);
    const size_t ins = (size_t)k->ins, outs = (size_t)k->outs;
    const size_t room = (size_t)k->images * (size_t)k->height * (size_t)k->width;
    int32_t image, y, w, c, i, j;
    size_t block;
    numbers += first;
    lists += (size_t)first * room;
    memset(numbers, 0, (size_t)(last - first) * sizeof *numbers);
    for (image = 0; image < k->images; image++)
        for (y = 0; y < k->height; y++)
            for (w = 0; w < k->width; w++, x += ins) {
                const uint32_t row = (uint32_t)(((size_t)image * high + (size_t)(y + below)) * wide + (size_t)(w + beside));
                for (c = first; c < last; c += LANES) {
                    uint32_t set = NOT_ZERO(x + c);
                    int32_t at;
                    for (at = c; set; set >>= 1, at++) {
#ifdef __GNUC__
                        const int skipped = __builtin_ctz(set);
                        set >>= skipped;
                        at += skipped;
#endif
                        if (set & 1) {
                            bso_entry *const entry = lists + (size_t)(at - first) * room + numbers[at - first]++;
                            entry->row = row;
                            entry->value = x[at];
                        }
                    }
                }
            }
    for (block = 0; block < outs; block += BLOCK)
        for (c = first; c < last; c++)
            for (i = 0; i < k->kernel[0]; i++)
                for (j = 0; j < k->kernel[1]; j++) {
                    /* Tap (i, j) of a pixel made what lies i rows above and j columns to the left of it. */
                    const uint32_t before = (uint32_t)((size_t)i * wide + (size_t)j);
                    float *const to = sums + ((size_t)(i * k->kernel[1] + j) * ins + (size_t)c) * outs + block;
                    add_rows(lists + (size_t)(c - first) * room, numbers[c - first], gradient + block, before, outs, to);
                }
}

/* −1 or +1 for every bit. */
void bso_signs(const uint8_t *bits, const int64_t *number, float *signs, int32_t rank, int32_t threads)
{
    const int64_t bytes = (*number + 7) / 8, first = bytes * rank / threads, last = bytes * (rank + 1) / threads;
    const int64_t end = 8 * last < *number ? 8 * last : *number;
    if (first < last)
        bso_spread(bits + first, (size_t)(end - 8 * first), 1, -1, signs + 8 * first);
}

/* out[o][c][t] = in[o · steps[0] + c · steps[1] + t · steps[2]], a tile that stays in the cache at a time; the shape is outs,
   ins and taps. */
void bso_reorder(const float *in, const int64_t *steps, const int32_t *shape, float *out, int32_t rank, int32_t threads)
{
    const int32_t outs = shape[0], ins = shape[1], taps = shape[2], tile = 16;
    int32_t o, c, t, first_o, first_c;
    for (first_o = rank * tile; first_o < outs; first_o += threads * tile)
        for (first_c = 0; first_c < ins; first_c += tile)
            for (o = first_o; o < outs && o < first_o + tile; o++)
                for (c = first_c; c < ins && c < first_c + tile; c++) {
                    const float *const from = in + o * steps[0] + c * steps[1];
                    float *const to = out + ((size_t)o * (size_t)ins + (size_t)c) * (size_t)taps;
                    for (t = 0; t < taps; t++)
                        to[t] = from[t * steps[2]];
                }
}
