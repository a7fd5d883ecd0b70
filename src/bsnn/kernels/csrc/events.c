/* The weight gradient of a convolution of 3 by 3 taps and stride 1, from the inputs that are not zero: spikes are few.
   src/bsnn/kernels/_events.py calls it.

   Such an input, an event, adds its value times the gradients of the nine outputs that it reaches to the nine taps of its
   channel. LANES output channels are worked on at a time, so that the nine sums stay in registers. Their gradients are
   copied for a few images at a time, a chunk, with a border of zeros, into memory that the cache holds. The events of a
   chunk are sorted by channel: the sums of a channel are loaded and stored once per chunk.

   The order of additions does not depend on the number of threads. */

#include "train.h"

#include <string.h>

#include "words.h"

enum { TAPS = 3, ALL_TAPS = 9 };

#if defined(BSNN_VECTORS) && defined(__AVX512F__)
enum { WIDTH = 16, VECTORS = 2 };
typedef __m512 vector;
#define LOAD(from) _mm512_loadu_ps(from)
#define STORE(to, value) _mm512_storeu_ps(to, value)
#define FILL(value) _mm512_set1_ps(value)
#define MULTIPLY_ADD(a, b, sum) _mm512_fmadd_ps(a, b, sum)
#elif defined(BSNN_VECTORS) && defined(__AVX2__)
enum { WIDTH = 8, VECTORS = 1 };
typedef __m256 vector;
#define LOAD(from) _mm256_loadu_ps(from)
#define STORE(to, value) _mm256_storeu_ps(to, value)
#define FILL(value) _mm256_set1_ps(value)
#define MULTIPLY_ADD(a, b, sum) _mm256_fmadd_ps(a, b, sum)
#elif defined(BSNN_VECTORS)
enum { WIDTH = 4, VECTORS = 1 };
typedef float vector __attribute__((vector_size(16), aligned(4), may_alias));
#define LOAD(from) (*(const vector *)(const void *)(from))
#define STORE(to, value) (*(vector *)(void *)(to) = (value))
#define FILL(value) ((vector){value, value, value, value})
#define MULTIPLY_ADD(a, b, sum) ((a) * (b) + (sum))
#else
enum { WIDTH = 1, VECTORS = 4 };
typedef float vector;
#define LOAD(from) (*(from))
#define STORE(to, value) (*(to) = (value))
#define FILL(value) (value)
#define MULTIPLY_ADD(a, b, sum) ((a) * (b) + (sum))
#endif

enum { LANES = WIDTH * VECTORS };

int32_t bsnn_event_lanes(void)
{
    return LANES;
}

static int32_t chunks_of(const bsnn_event_table *k)
{
    return (k->batch + k->images - 1) / k->images;
}

static int32_t last_image(const bsnn_event_table *k, int32_t chunk)
{
    return (chunk + 1) * k->images < k->batch ? (chunk + 1) * k->images : k->batch;
}

/* Pixels of an image of gradients with its border: two more than the image that enters has, either way. */
static size_t area_of(const bsnn_event_table *k)
{
    return (size_t)(k->height + TAPS - 1) * (size_t)(k->width + TAPS - 1);
}

/* counts[chunk][channel] = events. */
void bsnn_count_events(const bsnn_event_table *k, const float *x, int32_t *counts, int32_t rank, int32_t threads)
{
    const size_t channels = (size_t)k->channels, pixels = (size_t)k->height * (size_t)k->width;
    int32_t chunk;
    for (chunk = rank; chunk < chunks_of(k); chunk += threads) {
        int32_t *restrict number = counts + (size_t)chunk * channels;
        size_t pixel, c;
        memset(number, 0, channels * sizeof *number);
        for (pixel = (size_t)(chunk * k->images) * pixels; pixel < (size_t)last_image(k, chunk) * pixels; pixel++)
            for (c = 0; c < channels; c++)
                number[c] += x[pixel * channels + c] != 0;
    }
}

/* Which of the next `number` inputs, at most 16, are not zero. */
static inline uint32_t not_zero(const float *x, size_t number)
{
    uint32_t found = 0;
    size_t n;
#if defined(BSNN_VECTORS) && defined(__AVX512F__)
    if (number == 16)
        return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), _mm512_setzero_ps(), _CMP_NEQ_UQ);
#endif
    for (n = 0; n < number; n++)
        found |= (uint32_t)(x[n] != 0) << n;
    return found;
}

static inline uint32_t lowest_bit(uint32_t word)
{
#if defined(__GNUC__)
    return (uint32_t)__builtin_ctz(word);
#else
    uint32_t bit = 0;
    while (!(word >> bit & 1))
        bit++;
    return bit;
#endif
}

/* Values and places of the events, sorted by chunk and channel. A place is that of the first of the nine outputs among the
   gradients of a chunk. `ends` has the beginning of every list, and then its end. */
void bsnn_list_events(const bsnn_event_table *k, const float *x, int32_t *ends, float *values, uint16_t *places,
                      int32_t rank, int32_t threads)
{
    const size_t channels = (size_t)k->channels;
    int32_t chunk, image, y, w;
    for (chunk = rank; chunk < chunks_of(k); chunk += threads) {
        int32_t *const end = ends + (size_t)chunk * channels;
        for (image = chunk * k->images; image < last_image(k, chunk); image++)
            for (y = 0; y < k->height; y++)
                for (w = 0; w < k->width; w++) {
                    const size_t row = (size_t)image * (size_t)k->height + (size_t)y;
                    const float *const from = x + (row * (size_t)k->width + (size_t)w) * channels;
                    const size_t within = (size_t)y * (size_t)(k->width + TAPS - 1) + (size_t)w;
                    const size_t place = (size_t)(image - chunk * k->images) * area_of(k) + within;
                    size_t c;
                    for (c = 0; c < channels; c += 16) {
                        uint32_t found = not_zero(from + c, channels - c < 16 ? channels - c : 16);
                        for (; found; found &= found - 1) {
                            const size_t channel = c + lowest_bit(found);
                            const int32_t at = end[channel]++;
                            values[at] = from[channel];
                            places[at] = (uint16_t)place;
                        }
                    }
                }
    }
}

/* The gradients of up to LANES output channels of a chunk, with a border that is zero already. */
static void copy_gradients(const bsnn_event_table *k, const float *gradient, int32_t chunk, int32_t first, float *copy)
{
    const size_t across = (size_t)(k->width + TAPS - 1), outs = (size_t)k->outs;
    const size_t above = (size_t)(TAPS - 1 - k->padding[0]), before = (size_t)(TAPS - 1 - k->padding[1]);
    const size_t number = (size_t)(k->outs - first < LANES ? k->outs - first : LANES);
    int32_t image, y, w;
    for (image = chunk * k->images; image < last_image(k, chunk); image++)
        for (y = 0; y < k->made[0]; y++) {
            const size_t row = (size_t)image * (size_t)k->made[0] + (size_t)y;
            const size_t place = (size_t)(image - chunk * k->images) * area_of(k) + ((size_t)y + above) * across + before;
            const float *from = gradient + row * (size_t)k->made[1] * outs + first;
            float *to = copy + place * LANES;
            for (w = 0; w < k->made[1]; w++, from += outs, to += LANES)
                if (number == LANES)
                    memcpy(to, from, LANES * sizeof *to);
                else
                    memcpy(to, from, number * sizeof *to);
        }
}

/* Adds the events of one channel to its sums [taps][LANES]. */
static void add_events(const float *restrict values, const uint16_t *restrict places, int32_t number,
                       const float *restrict copy, size_t across, float *restrict sums)
{
    vector sum[ALL_TAPS][VECTORS];
    int32_t n;
    int i, j, v;
    for (i = 0; i < ALL_TAPS; i++)
        for (v = 0; v < VECTORS; v++)
            sum[i][v] = LOAD(sums + i * LANES + v * WIDTH);
    for (n = 0; n < number; n++) {
        const vector value = FILL(values[n]);
        const float *const from = copy + (size_t)places[n] * LANES;
        /* The first output is met by the last tap. */
        for (i = 0; i < TAPS; i++)
            for (j = 0; j < TAPS; j++)
                for (v = 0; v < VECTORS; v++) {
                    const int tap = ALL_TAPS - 1 - i * TAPS - j;
                    const float *const output = from + ((size_t)i * across + (size_t)j) * LANES + v * WIDTH;
                    sum[tap][v] = MULTIPLY_ADD(value, LOAD(output), sum[tap][v]);
                }
    }
    for (i = 0; i < ALL_TAPS; i++)
        for (v = 0; v < VECTORS; v++)
            STORE(sums + i * LANES + v * WIDTH, sum[i][v]);
}

/* out[outs][channels][3][3] from the events. Each thread has `work` for the gradients of a chunk and for the sums of all
   channels. */
void bsnn_weights_from_events(const bsnn_event_table *k, const float *gradient, const int32_t *ends, const float *values,
                              const uint16_t *places, float *work, float *out, int32_t rank, int32_t threads)
{
    const size_t channels = (size_t)k->channels, taps = channels * ALL_TAPS, copied = (size_t)k->images * area_of(k) * LANES;
    float *const copy = work + (size_t)rank * (copied + taps * LANES), *const sums = copy + copied;
    int32_t first, chunk, lane;
    size_t c, tap;
    for (first = rank * LANES; first < k->outs; first += threads * LANES) {
        memset(copy, 0, (copied + taps * LANES) * sizeof *copy);
        for (chunk = 0; chunk < chunks_of(k); chunk++) {
            copy_gradients(k, gradient, chunk, first, copy);
            for (c = 0; c < channels; c++) {
                const size_t list = (size_t)chunk * channels + c;
                const int32_t begin = list ? ends[list - 1] : 0;
                if (ends[list] > begin)
                    add_events(values + begin, places + begin, ends[list] - begin, copy, (size_t)(k->width + TAPS - 1),
                               sums + c * ALL_TAPS * LANES);
            }
        }
        for (lane = 0; lane < LANES && first + lane < k->outs; lane++)
            for (tap = 0; tap < taps; tap++)
                out[(size_t)(first + lane) * taps + tap] = sums[tap * LANES + (size_t)lane];
    }
}
