/* The two backward convolutions of 3 by 3 taps and stride 1 by Winograd's algorithm; src/bsnn/kernels/_tiles.py calls it.

   Seen as polynomials, a tile of 6 pixels and a filter of 3 taps (or of 4 for 3 outputs, in a weight gradient) are
   multiplied by their values at six points. Along both axes that is 36 products for 16 pixels where a plain convolution
   has 144, and summed over channels it is 36 products of matrices, which BLAS computes. Here is what lies around them:
   values at the points from pixels and from bits, and pixels and taps from values.

   The points are 0, ±a, ±b and infinity with a = 5/8 and b = 3/2, whose squares are exact in few bits; the usual 1 and 2
   lose more than twice as much to rounding. Values at the points are single precision or, if less is asked for, bf16. */

#include "train.h"

#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum { LANES = 16, POINTS = 6, ALL_POINTS = 36, TILE = 4, TAPS = 3 };

#define A 0.625f
#define B 1.5f
#define AA (A * A)
#define BB (B * B)

/* 1 / Π(p − other points), for 0, ±a and ±b. */
#define AT_0 (1 / (AA * BB))
#define AT_A (1 / (2 * AA * (AA - BB)))
#define AT_B (1 / (2 * BB * (BB - AA)))

#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif

#define EACH for (n = 0; n < LANES; n++)

typedef float lanes[LANES];

/* Each of these three reads values that are `step` apart and writes elsewhere, so that the compiler keeps them in
   registers; results are `out_step` apart. */

/* Values of six pixels as the product with a filter needs them. */
static ALWAYS_INLINE void pixels_to_points(const lanes *x, int step, lanes *out, int out_step)
{
    int n;
    EACH {
        const float x0 = x[0][n], x1 = x[step][n], x2 = x[2 * step][n], x3 = x[3 * step][n], x4 = x[4 * step][n];
        const float even_a = x4 - BB * x2, odd_a = A * (x3 - BB * x1);
        const float even_b = x4 - AA * x2, odd_b = B * (x3 - AA * x1);
        out[0][n] = AA * BB * x0 - (AA + BB) * x2 + x4;
        out[out_step][n] = even_a + odd_a;
        out[2 * out_step][n] = even_a - odd_a;
        out[3 * out_step][n] = even_b + odd_b;
        out[4 * out_step][n] = even_b - odd_b;
        out[5 * out_step][n] = x[5 * step][n] - (AA + BB) * x3 + AA * BB * x1;
    }
}

/* Values of a filter of four taps, or of three. */
static ALWAYS_INLINE void taps_to_points(const lanes *taps, int step, int number, lanes *out, int out_step)
{
    int n;
    EACH {
        const float t0 = taps[0][n], t1 = taps[step][n], t2 = taps[2 * step][n];
        const float t3 = number == 4 ? taps[3 * step][n] : 0;
        const float even_a = AT_A * (t0 + AA * t2), odd_a = AT_A * A * (t1 + AA * t3);
        const float even_b = AT_B * (t0 + BB * t2), odd_b = AT_B * B * (t1 + BB * t3);
        out[0][n] = AT_0 * t0;
        out[out_step][n] = even_a + odd_a;
        out[2 * out_step][n] = even_a - odd_a;
        out[3 * out_step][n] = even_b + odd_b;
        out[4 * out_step][n] = even_b - odd_b;
        out[5 * out_step][n] = number == 4 ? t3 : t2;
    }
}

/* The first `number` (3 or 4) results from products at six points. */
static ALWAYS_INLINE void points_to_results(const lanes *x, int step, int number, lanes *out, int out_step)
{
    int n;
    EACH {
        const float plus_a = x[step][n] + x[2 * step][n], minus_a = x[step][n] - x[2 * step][n];
        const float plus_b = x[3 * step][n] + x[4 * step][n], minus_b = x[3 * step][n] - x[4 * step][n];
        const float end = x[5 * step][n];
        out[0][n] = x[0][n] + plus_a + plus_b;
        out[out_step][n] = A * minus_a + B * minus_b;
        if (number == 4) {
            out[2 * out_step][n] = AA * plus_a + BB * plus_b;
            out[3 * out_step][n] = A * AA * minus_a + B * BB * minus_b + end;
        } else {
            out[2 * out_step][n] = AA * plus_a + BB * plus_b + end;
        }
    }
}

/* Copies a pixel's channels, as many as there are, or zeros. */
static ALWAYS_INLINE void load(lanes to, const float *from, int32_t number)
{
    if (number == LANES) {
        memcpy(to, from, sizeof(lanes));
    } else {
        memset(to, 0, sizeof(lanes));
        if (number)
            memcpy(to, from, (size_t)number * sizeof *from);
    }
}

static ALWAYS_INLINE void store(float *to, const lanes from, int32_t number)
{
    memcpy(to, from, number == LANES ? sizeof(lanes) : (size_t)number * sizeof *from);
}

/* Values at a point: single precision or, if `narrow`, bf16, the upper half of a float; what is not a number stays so. */
static ALWAYS_INLINE void store_points(void *points, size_t at, const lanes from, int32_t number, int narrow)
{
    uint16_t halves[LANES];
    uint32_t bits[LANES];
    int n;
    if (!narrow) {
        store((float *)points + at, from, number);
        return;
    }
#if defined(__AVX512F__)
    if (number == LANES) {
        const __m512 values = _mm512_loadu_ps(from);
        const __m512i all = _mm512_castps_si512(values), high = _mm512_srli_epi32(all, 16);
        const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        const __m512i moved = _mm512_add_epi32(all, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        const __mmask16 no_number = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
        const __m512i rounded = _mm512_mask_mov_epi32(_mm512_srli_epi32(moved, 16), no_number, _mm512_set1_epi32(0x7fc0));
        _mm256_storeu_si256((__m256i *)((uint16_t *)points + at), _mm512_cvtepi32_epi16(rounded));
        return;
    }
#endif
    memcpy(bits, from, sizeof bits);
    EACH {
        const uint32_t rounded = (bits[n] + 0x7fff + (bits[n] >> 16 & 1)) >> 16; /* ties to even */
        halves[n] = (uint16_t)((bits[n] & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
    }
    memcpy((uint16_t *)points + at, halves, number == LANES ? sizeof halves : (size_t)number * sizeof *halves);
}

static ALWAYS_INLINE void load_points(lanes to, const void *points, size_t at, int32_t number, int narrow)
{
    uint16_t halves[LANES] = {0};
    uint32_t bits[LANES];
    int n;
    if (!narrow) {
        load(to, (const float *)points + at, number);
        return;
    }
#if defined(__AVX512F__)
    if (number == LANES) {
        const __m256i half = _mm256_loadu_si256((const __m256i *)((const uint16_t *)points + at));
        _mm512_storeu_ps(to, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)));
        return;
    }
#endif
    memcpy(halves, (const uint16_t *)points + at, number == LANES ? sizeof halves : (size_t)number * sizeof *halves);
    EACH bits[n] = (uint32_t)halves[n] << 16;
    memcpy(to, bits, sizeof bits);
}

static int32_t channels_at(const bsnn_tiles *k, int32_t channel)
{
    return k->channels - channel < LANES ? k->channels - channel : LANES;
}

/* Values at all points of `number` channels of a tile, `plane` apart. */
static ALWAYS_INLINE void from_image(const bsnn_tiles *k, const float *image, int32_t top, int32_t left, int32_t number,
                                     void *out, size_t to, size_t plane, int32_t side, int narrow)
{
    lanes line[POINTS], values[ALL_POINTS];
    int32_t i, j;
    for (i = 0; i < side; i++) {
        for (j = 0; j < side; j++) {
            const int32_t y = top + i, w = left + j;
            if (y >= 0 && y < k->height && w >= 0 && w < k->width)
                load(line[j], image + ((int64_t)y * k->width + w) * k->step, number);
            else
                memset(line[j], 0, sizeof line[j]);
        }
        if (side == POINTS)
            pixels_to_points(line, 1, values + i * POINTS, 1);
        else
            taps_to_points(line, 1, TILE, values + i * POINTS, 1);
    }
    for (j = 0; j < POINTS; j++) {
        if (side == POINTS)
            pixels_to_points(values + j, POINTS, line, 1);
        else
            taps_to_points(values + j, POINTS, TILE, line, 1);
        for (i = 0; i < POINTS; i++)
            store_points(out, to + (size_t)(i * POINTS + j) * plane, line[i], number, narrow);
    }
}

/* Values at all points of every tile, out[points][images · down · across][channels], for this thread's part of the tiles.
   `side` is 6 for pixels and 4 for a filter; what lies outside of the image is zero. */
static ALWAYS_INLINE void from_images(const bsnn_tiles *k, const float *x, void *out, int32_t side, int narrow,
                                      int32_t rank, int32_t threads)
{
    const int64_t tiles = (int64_t)k->images * k->down * k->across;
    const size_t plane = (size_t)tiles * (size_t)k->channels;
    int64_t tile;
    for (tile = tiles * rank / threads; tile < tiles * (rank + 1) / threads; tile++) {
        const int32_t top = (int32_t)(tile / k->across % k->down) * TILE - k->top;
        const int32_t left = (int32_t)(tile % k->across) * TILE - k->left;
        const float *const image = x + tile / k->across / k->down * k->height * k->width * k->step;
        int32_t channel;
        for (channel = 0; channel < k->channels; channel += LANES) {
            const int32_t number = channels_at(k, channel);
            const size_t to = (size_t)tile * (size_t)k->channels + (size_t)channel;
            if (number == LANES) /* the usual case, by itself, so that it is made of whole vectors */
                from_image(k, image + channel, top, left, LANES, out, to, plane, side, narrow);
            else
                from_image(k, image + channel, top, left, number, out, to, plane, side, narrow);
        }
    }
}

void bsnn_pixels_to_points(const bsnn_tiles *k, const float *x, void *out, int32_t rank, int32_t threads)
{
    if (k->narrow)
        from_images(k, x, out, POINTS, 1, rank, threads);
    else
        from_images(k, x, out, POINTS, 0, rank, threads);
}

void bsnn_filters_to_points(const bsnn_tiles *k, const float *x, float *out, int32_t rank, int32_t threads)
{
    from_images(k, x, out, TILE, 0, rank, threads);
}

/* `number` channels of a tile from products at all points, `plane` apart. */
static ALWAYS_INLINE void to_image(const bsnn_tiles *k, float *image, int32_t top, int32_t left, int32_t number,
                                   const void *products, size_t from, size_t plane, int narrow)
{
    lanes line[POINTS], values[TILE * POINTS];
    int32_t i, j;
    for (j = 0; j < POINTS; j++) {
        for (i = 0; i < POINTS; i++)
            load_points(line[i], products, from + (size_t)(i * POINTS + j) * plane, number, narrow);
        points_to_results(line, 1, TILE, values + j, POINTS);
    }
    for (i = 0; i < TILE && top + i < k->height; i++) {
        points_to_results(values + i * POINTS, 1, TILE, line, 1);
        for (j = 0; j < TILE && left + j < k->width; j++)
            store(image + ((int64_t)(top + i) * k->width + left + j) * k->step, line[j], number);
    }
}

/* Images from products at all points; the reverse of `from_images`. */
static ALWAYS_INLINE void to_images(const bsnn_tiles *k, float *x, const void *products, int narrow, int32_t rank,
                                    int32_t threads)
{
    const int64_t tiles = (int64_t)k->images * k->down * k->across;
    const size_t plane = (size_t)tiles * (size_t)k->channels;
    int64_t tile;
    for (tile = tiles * rank / threads; tile < tiles * (rank + 1) / threads; tile++) {
        const int32_t top = (int32_t)(tile / k->across % k->down) * TILE;
        const int32_t left = (int32_t)(tile % k->across) * TILE;
        float *const image = x + tile / k->across / k->down * k->height * k->width * k->step;
        int32_t channel;
        for (channel = 0; channel < k->channels; channel += LANES) {
            const int32_t number = channels_at(k, channel);
            const size_t from = (size_t)tile * (size_t)k->channels + (size_t)channel;
            if (number == LANES)
                to_image(k, image + channel, top, left, LANES, products, from, plane, narrow);
            else
                to_image(k, image + channel, top, left, number, products, from, plane, narrow);
        }
    }
}

void bsnn_points_to_pixels(const bsnn_tiles *k, float *x, const void *products, int32_t rank, int32_t threads)
{
    if (k->narrow)
        to_images(k, x, products, 1, rank, threads);
    else
        to_images(k, x, products, 0, rank, threads);
}

/* Nine bits each of `number` filters from the first on. */
static void load_codes(const uint8_t *bits, size_t first, int32_t number, int32_t *codes)
{
    int32_t group, n, k;
    if (first % 8 || number < LANES) {
        for (n = 0; n < number; n++) {
            const size_t bit = (first + (size_t)n) * 9; /* nine bits always reach into a second byte */
            codes[n] = (bits[bit / 8] | bits[bit / 8 + 1] << 8) >> bit % 8;
        }
        return;
    }
    for (group = 0; group < LANES; group += 8) { /* eight filters have nine bytes of their own */
        const uint8_t *const bytes = bits + (first + (size_t)group) / 8 * 9;
        uint64_t word = 0;
        for (k = 0; k < 8; k++)
            word |= (uint64_t)bytes[k] << 8 * k;
        for (n = 0; n < 7; n++)
            codes[group + n] = (int32_t)(word >> 9 * n & 511);
        codes[group + 7] = bytes[7] >> 7 | bytes[8] << 1;
    }
}

/* Values of `number` filters, turned by half a circle, at the six points of the row that `by` makes of a column. */
static ALWAYS_INLINE void some_signs(const uint8_t *bits, const float by[TAPS], size_t first, int32_t number, void *out,
                                     size_t plane, int narrow)
{
    int32_t codes[LANES] = {0};
    lanes taps[TAPS], values[POINTS];
    int i, n;
    load_codes(bits, first, number, codes);
    for (i = 0; i < TAPS; i++)
        EACH taps[i][n] = by[0] * (float)((codes[n] >> (8 - i) & 1) * 2 - 1) +
                          by[1] * (float)((codes[n] >> (5 - i) & 1) * 2 - 1) +
                          by[2] * (float)((codes[n] >> (2 - i) & 1) * 2 - 1);
    taps_to_points(taps, 1, TAPS, values, 1);
    for (i = 0; i < POINTS; i++)
        store_points(out, (size_t)i * plane + first, values[i], number, narrow);
}

/* Values of all filters, turned by half a circle, at the six points of a row, out[6][outs][ins]; `shape` is outs, ins, the
   row, and 1 for bf16. */
void bsnn_signs_to_points(const uint8_t *bits, const int32_t *shape, void *out, int32_t rank, int32_t threads)
{
    static const float WEIGHTS[POINTS][TAPS] = {
        {AT_0, 0, 0},
        {AT_A, AT_A * A, AT_A * AA},
        {AT_A, -AT_A * A, AT_A * AA},
        {AT_B, AT_B * B, AT_B * BB},
        {AT_B, -AT_B * B, AT_B * BB},
        {0, 0, 1},
    };
    const int32_t outs = shape[0], ins = shape[1], narrow = shape[3];
    const size_t plane = (size_t)outs * (size_t)ins;
    int32_t o, c;
    for (o = (int32_t)((int64_t)outs * rank / threads); o < (int32_t)((int64_t)outs * (rank + 1) / threads); o++)
        for (c = 0; c < ins; c += LANES) {
            const size_t first = (size_t)o * (size_t)ins + (size_t)c;
            const int32_t number = ins - c < LANES ? ins - c : LANES;
            if (number < LANES)
                some_signs(bits, WEIGHTS[shape[2]], first, number, out, plane, narrow);
            else if (narrow)
                some_signs(bits, WEIGHTS[shape[2]], first, LANES, out, plane, 1);
            else
                some_signs(bits, WEIGHTS[shape[2]], first, LANES, out, plane, 0);
        }
}

/* Weight gradients out[outs][ins][3][3] from products[points][outs][ins]; `shape` is outs and ins. */
void bsnn_points_to_taps(const float *products, const int32_t *shape, float *out, int32_t rank, int32_t threads)
{
    const int64_t number = (int64_t)shape[0] * shape[1], blocks = (number + LANES - 1) / LANES;
    int64_t block;
    for (block = blocks * rank / threads; block < blocks * (rank + 1) / threads; block++) {
        const int64_t first = block * LANES;
        const int32_t here = (int32_t)(number - first < LANES ? number - first : LANES);
        lanes line[POINTS], values[TAPS * POINTS];
        int32_t i, j, n;
        for (j = 0; j < POINTS; j++) {
            for (i = 0; i < POINTS; i++)
                load(line[i], products + (size_t)(i * POINTS + j) * (size_t)number + first, here);
            points_to_results(line, 1, TAPS, values + j, POINTS);
        }
        for (i = 0; i < TAPS; i++) {
            points_to_results(values + i * POINTS, 1, TAPS, line, 1);
            for (j = 0; j < TAPS; j++)
                for (n = 0; n < here; n++)
                    out[(first + n) * 9 + i * TAPS + j] = line[j][n];
        }
    }
}
