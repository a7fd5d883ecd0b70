/* A training step of a layer of neurons in single precision; src/bsnn/kernels/_neurons.py calls it, the torch path of
   src/bsnn/kernels/step.py computes the same. Tensors are [batch][height][width][channels]; thread `rank` of `threads` takes whole
   images. Additions and products are rounded one by one, so that neurons fire exactly where the reference's do. */

#include "train.h"

#include <math.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { SIGMOID, RECTANGLE, TRIANGLE, ARCTAN }; /* surrogates */

static size_t image_size(const bsnn_neurons *n)
{
    return (size_t)n->height * (size_t)n->width * (size_t)n->channels;
}

/* Bits of numbers that are 0 or 1; the last byte is filled up with zeros. */
static void pack_bits(const float *spikes, size_t number, uint8_t *bits)
{
    size_t i;
    int k;
    for (i = 0; i < number; i += 8) {
        uint32_t byte = 0;
#if defined(__AVX2__)
        if (i + 8 <= number) {
            const __m256 eight = _mm256_loadu_ps(spikes + i);
            bits[i / 8] = (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(eight, _mm256_setzero_ps(), _CMP_NEQ_UQ));
            continue;
        }
#endif
        for (k = 0; k < 8 && i + (size_t)k < number; k++)
            byte |= (uint32_t)(spikes[i + (size_t)k] != 0) << k;
        bits[i / 8] = (uint8_t)byte;
    }
}

/* out = `set` where a bit is 1, else `clear`. */
static void spread(const uint8_t *bits, size_t number, float set, float clear, float *out)
{
    size_t i;
    int k;
    for (i = 0; i < number; i += 8) {
#if defined(__AVX2__)
        if (i + 8 <= number) {
            const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            const __m256i found = _mm256_and_si256(_mm256_set1_epi32(bits[i / 8]), each);
            const __m256 is_set = _mm256_castsi256_ps(_mm256_cmpeq_epi32(found, each));
            _mm256_storeu_ps(out + i, _mm256_blendv_ps(_mm256_set1_ps(clear), _mm256_set1_ps(set), is_set));
            continue;
        }
#endif
        for (k = 0; k < 8 && i + (size_t)k < number; k++)
            out[i + (size_t)k] = bits[i / 8] >> k & 1 ? set : clear;
    }
}

/* −1 or +1 for every bit. */
void bsnn_signs(const uint8_t *bits, const int64_t *number, float *signs, int32_t rank, int32_t threads)
{
    const int64_t bytes = (*number + 7) / 8, first = bytes * rank / threads, last = bytes * (rank + 1) / threads;
    const int64_t end = 8 * last < *number ? 8 * last : *number;
    if (first < last)
        spread(bits + first, (size_t)(end - 8 * first), 1, -1, signs + 8 * first);
}

/* Means of 2 by 2 pixels of two rows. */
static void pool_rows(const float *restrict above, const float *restrict below, int32_t width, int32_t channels,
                      float *restrict out)
{
    int32_t x, c;
    for (x = 0; x + 1 < width; x += 2)
        for (c = 0; c < channels; c++) {
            const size_t at = (size_t)x * (size_t)channels + (size_t)c, next = at + (size_t)channels;
            out[(size_t)(x / 2) * (size_t)channels + (size_t)c] = (above[at] + above[next] + below[at] + below[next]) * 0.25f;
        }
}

static void fire_neurons(float *restrict x, float *restrict membrane, size_t number, float leak, float threshold)
{
    size_t i;
    for (i = 0; i < number; i++) {
        const float u = membrane[i] * leak + x[i], s = u >= threshold ? 1.0f : 0.0f;
        membrane[i] = u - s * threshold;
        x[i] = s;
    }
}

static void move_trace(const float *restrict spikes, float *restrict trace, size_t number, float leak)
{
    size_t i;
    for (i = 0; i < number; i++)
        trace[i] = trace[i] * leak + spikes[i];
}

/* One step on. `x` holds currents and then spikes; `sent` and `sent_trace` are their means, if there is pooling.
   `trace` is NULL if the gradient rule has none. Bits of an image begin with a byte of their own. */
void bsnn_fire(const bsnn_neurons *n, float *x, float *membrane, float *trace, float *sent, float *sent_trace,
               uint8_t *bits, int32_t rank, int32_t threads)
{
    const size_t size = image_size(n), row = (size_t)n->width * (size_t)n->channels;
    const size_t rows = n->pooled ? 2 : 1, sent_row = (size_t)(n->width / 2) * (size_t)n->channels;
    int32_t image;
    for (image = rank; image < n->batch; image += threads) {
        const size_t from = (size_t)image * size;
        size_t at;
        for (at = 0; at < size; at += rows * row) {
            float *const here = x + from + at;
            const size_t to = ((size_t)image * (size_t)(n->height / 2) + at / (2 * row)) * sent_row;
            fire_neurons(here, membrane + from + at, rows * row, n->leak, n->threshold);
            if (trace)
                move_trace(here, trace + from + at, rows * row, n->leak);
            if (n->pooled) {
                pool_rows(here, here + row, n->width, n->channels, sent + to);
                if (trace)
                    pool_rows(trace + from + at, trace + from + at + row, n->width, n->channels, sent_trace + to);
            }
        }
        pack_bits(x + from, size, bits + (size_t)image * ((size + 7) / 8));
    }
}

/* e^−y for y from 0 to 87, within 2e-7: 2^−n e^r with |r| ≤ ln 2 / 2, and e^r by its series. n is rounded by adding a
   number whose last bit counts ones, and read from the sum's bits. What is not a number stays one. */
static inline float exp_minus(float y)
{
    union {
        float number;
        uint32_t bits;
    } sum, power;
    float n, r, series;
    sum.number = y * 1.44269504f + 12582912.0f;
    n = sum.number - 12582912.0f;
    r = (n * 0.693145751953125f - y) + n * 1.42860682e-6f; /* ln 2 in two parts */
    series = 1 + r * (1 + r * (1 / 2.0f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r / 720)))));
    power.bits = (127u + 0x4b400000u - sum.bits) << 23;
    return series * power.number;
}

/* The surrogate's derivative, from distances to the threshold. */
static void differentiate(float *restrict x, size_t number, int32_t surrogate, float parameter)
{
    size_t i;
    switch (surrogate) {
    case SIGMOID:
        for (i = 0; i < number; i++) {
            const float y = fabsf(parameter * x[i]);
            x[i] = y > 87 ? 87 : y;
        }
        for (i = 0; i < number; i++) {
            const float z = exp_minus(x[i]);
            x[i] = parameter * z / ((1 + z) * (1 + z));
        }
        break;
    case RECTANGLE:
        for (i = 0; i < number; i++)
            x[i] = fabsf(x[i]) < parameter / 2 ? 1 / parameter : 0.0f;
        break;
    case TRIANGLE:
        for (i = 0; i < number; i++) {
            const float inside = parameter - fabsf(x[i]);
            x[i] = (inside > 0 ? inside : 0.0f) / (parameter * parameter);
        }
        break;
    default:
        for (i = 0; i < number; i++) {
            const float y = 1.57079633f * parameter * x[i];
            x[i] = parameter / 2 / (1 + y * y);
        }
    }
}

/* Currents of binary synapses are whole quarters, which 16 bits hold: `current` as such. Returns 1 if some are not. */
int32_t bsnn_quarters(const bsnn_neurons *n, const float *current, int16_t *quarters, int32_t rank, int32_t threads)
{
    const size_t size = image_size(n);
    int32_t image, exact = 1;
    for (image = rank; image < n->batch && exact; image += threads) {
        const float *const from = current + (size_t)image * size;
        int16_t *const to = quarters + (size_t)image * size;
        size_t i;
        for (i = 0; i < size; i++) {
            const float four = from[i] * 4;
            const float within = four > 32767 ? 32767 : four < -32768 ? -32768 : four == four ? four : 0;
            const int16_t number = (int16_t)(int32_t)within;
            to[i] = number;
            exact &= (float)number == four;
        }
    }
    return !exact;
}

/* gradient = ∂L/∂u from that of what was sent on. Adds up over pixels, if `current` is not NULL: in sums[0][channels] the
   gradient, in sums[1][channels] its product with current − mean. Each thread has its own sums, and as much `work`. */
void bsnn_through_neurons(const bsnn_neurons *n, const float *sent, const float *membrane, const uint8_t *bits,
                          const void *current, const float *mean, float *gradient, double *sums, float *work,
                          int32_t rank, int32_t threads)
{
    const float *const real = current;
    const int16_t *const quarters = current;
    const size_t size = image_size(n), channels = (size_t)n->channels;
    const float share = n->pooled ? 0.25f : 1.0f;
    float *const first = work + (size_t)rank * 2 * channels, *const second = first + channels;
    int32_t image, y, x;
    size_t c;
    sums += (size_t)rank * 2 * channels;
    for (image = rank; image < n->batch; image += threads) {
        const size_t from = (size_t)image * size;
        float *const g = gradient + from;
        /* u − V_th: the reset has taken V_th off already where the neuron fired. */
        spread(bits + (size_t)image * ((size + 7) / 8), size, 0, n->threshold, g);
        for (c = 0; c < size; c++)
            g[c] = membrane[from + c] - g[c];
        differentiate(g, size, n->surrogate, n->parameter);
        for (y = 0; y < n->height; y++) {
            memset(first, 0, 2 * channels * sizeof *first);
            for (x = 0; x < n->width; x++) {
                const size_t pixel = ((size_t)y * (size_t)n->width + (size_t)x) * channels;
                const size_t low = ((size_t)image * (size_t)(n->height / 2) + (size_t)(y / 2)) * (size_t)(n->width / 2);
                const float *restrict in = sent + (n->pooled ? (low + (size_t)(x / 2)) * channels : from + pixel);
                float *restrict out = g + pixel;
                for (c = 0; c < channels; c++)
                    out[c] *= in[c] * share;
                if (current && n->quarters)
                    for (c = 0; c < channels; c++) {
                        first[c] += out[c];
                        second[c] += out[c] * ((float)quarters[from + pixel + c] * 0.25f - mean[c]);
                    }
                else if (current)
                    for (c = 0; c < channels; c++) {
                        first[c] += out[c];
                        second[c] += out[c] * (real[from + pixel + c] - mean[c]);
                    }
            }
            if (current)
                for (c = 0; c < channels; c++) {
                    sums[c] += first[c];
                    sums[channels + c] += second[c];
                }
        }
    }
}

/* gradient = scale · gradient + slope · current + shift, each [channels]. */
void bsnn_through_norm(const bsnn_neurons *n, float *gradient, const void *current, const float *scale,
                       const float *slope, const float *shift, int32_t rank, int32_t threads)
{
    const float *const real = current;
    const int16_t *const quarters = current;
    const size_t size = image_size(n), channels = (size_t)n->channels;
    int32_t image;
    for (image = rank; image < n->batch; image += threads) {
        size_t at, c;
        for (at = (size_t)image * size; at < ((size_t)image + 1) * size; at += channels) {
            float *restrict g = gradient + at;
            if (n->quarters)
                for (c = 0; c < channels; c++)
                    g[c] = g[c] * scale[c] + (float)quarters[at + c] * 0.25f * slope[c] + shift[c];
            else
                for (c = 0; c < channels; c++)
                    g[c] = g[c] * scale[c] + real[at + c] * slope[c] + shift[c];
        }
    }
}
