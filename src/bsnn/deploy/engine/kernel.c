/* The inference engine; kernel.h says how it is called, docs/model-file.md what it computes.

   Synapses of one-bit weights over spikes take nearly all the time. They are computed from events: a dot product of
   weights ±1 and spikes is 2 · count − S, where S is the number of spikes that arrive and count the number of those
   that meet a +1. Every spike names one row of weight bits over the output channels; the rows are counted in count.h. */

#include "kernel.h"

#include <string.h>

#if defined(__GNUC__) && !defined(BSNN_PORTABLE)
#define BSNN_VECTORS
#endif
#if defined(BSNN_VECTORS) && defined(__SSE2__)
#include <immintrin.h>
#endif
#ifdef BSNN_THREADS
#include <sched.h>
#endif

/* Right shifts of negative numbers round down everywhere we know of; where not, this does not compile. */
typedef char bsnn_shifts_round_down[(-3 >> 1) == -2 ? 1 : -1];

#define BSNN_MAX_PLANES 32
#define LARGEST 1073741824 /* 2^30: fixed values lie between minus this and this */

#if BSNN_WORD_BITS == 64
typedef uint64_t bsnn_word;
#else
typedef uint32_t bsnn_word;
#endif

/* ---- vectors of 32-bit integers ---- */

#if defined(BSNN_VECTORS) && defined(__AVX512F__)
#define LANES 16
#define SMALLER(a, b) (lanes) _mm512_min_epi32((__m512i)(a), (__m512i)(b))
#define LARGER(a, b) (lanes) _mm512_max_epi32((__m512i)(a), (__m512i)(b))
/* Resets u where it reaches the threshold, and writes which. */
#define RESET(u, threshold, bits)                                                                      \
    do {                                                                                               \
        const uint16_t set_ = _mm512_cmpge_epi32_mask((__m512i)(u), (__m512i)(threshold));             \
        (u) = (lanes)_mm512_mask_sub_epi32((__m512i)(u), set_, (__m512i)(u), (__m512i)(threshold));    \
        memcpy(bits, &set_, 2);                                                                        \
    } while (0)
#elif defined(BSNN_VECTORS) && defined(__AVX2__)
#define LANES 8
#define SMALLER(a, b) (lanes) _mm256_min_epi32((__m256i)(a), (__m256i)(b))
#define LARGER(a, b) (lanes) _mm256_max_epi32((__m256i)(a), (__m256i)(b))
#define RESET(u, threshold, bits)                                                                      \
    do {                                                                                               \
        const lanes set_ = (u) >= (threshold);                                                         \
        (u) -= set_ & (threshold);                                                                     \
        *(bits) = (uint8_t)_mm256_movemask_ps((__m256)set_);                                           \
    } while (0)
#endif
#ifdef LANES
typedef int32_t lanes __attribute__((vector_size(LANES * 4)));
typedef uint32_t unsigned_lanes __attribute__((vector_size(LANES * 4)));
#endif

/* ---- events ---- */

/* The rows of weights that the spikes in a window name; see gather_columns. */
typedef struct {
    const uint32_t *rows, *ends;                    /* ends: of the first column's lists, after where they begin */
    int32_t planes, plane_step, columns, column_step; /* steps in `ends` */
    int32_t first;                                  /* tap of the first column */
    uint32_t tap_size, no_row;                      /* bytes of the weights of one tap; where a row of zeros is */
    uint32_t *rest;                                 /* room for BLOCK rows a column, and BLOCK more */
} bsnn_events;

#define BLOCK 32

/* to[k] = from[k] + offset for `number` rows; vectors write `most` of them, a multiple of 16 when rounded up: what lies
   beyond the end will be overwritten. */
static inline void append_rows(const uint32_t *restrict from, uint32_t number, uint32_t most, uint32_t offset,
                               uint32_t *restrict to)
{
    uint32_t k;
#if defined(BSNN_VECTORS) && defined(__AVX512F__)
    const __m512i more = _mm512_set1_epi32((int)offset);
    for (k = 0; k < most; k += 16)
        _mm512_storeu_si512(to + k, _mm512_add_epi32(_mm512_loadu_si512(from + k), more));
    (void)number;
#elif defined(BSNN_VECTORS) && defined(__AVX2__)
    const __m256i more = _mm256_set1_epi32((int)offset);
    for (k = 0; k < most; k += 8)
        _mm256_storeu_si256((__m256i *)(void *)(to + k),
                            _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(from + k)), more));
    (void)number;
#else
    for (k = 0; k < number; k++)
        to[k] = from[k] + offset;
    (void)most;
#endif
}

/* ---- counting, at every width that pays here ---- */

#ifdef BSNN_VECTORS
#ifdef __AVX512F__
#define COUNT_BYTES 64
#include "count.h"
#define WIDEST 64
#endif
#ifdef __AVX2__
#define COUNT_BYTES 32
#include "count.h"
#ifndef WIDEST
#define WIDEST 32
#endif
#endif
#define COUNT_BYTES 16
#include "count.h"
#ifndef WIDEST
#define WIDEST 16
#endif
#define COUNT_BYTES 8
#include "count.h"
#define NARROWEST 8
#elif BSNN_WORD_BITS == 64
#define COUNT_BYTES 8
#include "count.h"
#define WIDEST 8
#define NARROWEST 8
#else
#define COUNT_BYTES 4
#include "count.h"
#define WIDEST 4
#define NARROWEST 4
#endif

/* Counts for as many channels as fit; writes the width of a plane in bytes and returns the number of planes. */
static int count_rows(const uint8_t *weight, const bsnn_events *events, uint32_t bytes_left, uint8_t *planes,
                      uint32_t *width)
{
#if WIDEST >= 64
    if (bytes_left >= 64) {
        *width = 64;
        return count64(weight, events, planes);
    }
#endif
#if WIDEST >= 32
    if (bytes_left >= 32) {
        *width = 32;
        return count32(weight, events, planes);
    }
#endif
#if WIDEST >= 16
    if (bytes_left >= 16) {
        *width = 16;
        return count16(weight, events, planes);
    }
#endif
    (void)bytes_left;
    *width = NARROWEST;
#if NARROWEST == 8
    return count8(weight, events, planes);
#else
    return count4(weight, events, planes);
#endif
}

/* ---- numbers of bits and bits of numbers ---- */

/* out[c] = factor · (number in the planes) − minus, for channels in steps of 32: writes up to 31 beyond. */
static void expand(const uint8_t *planes, size_t stride, int num_planes, int32_t channels, int32_t factor,
                   int32_t minus, int32_t *out)
{
    int32_t c, k;
    int p;
    const int low = num_planes < 16 ? num_planes : 16;
    for (c = 0; c < channels; c += 32) {
        const uint8_t *const at = planes + c / 8;
#if defined(BSNN_VECTORS) && defined(__AVX512BW__)
        const __m512i by = _mm512_set1_epi32(factor), less = _mm512_set1_epi32(minus);
        __m512i sum = _mm512_setzero_si512(), one = _mm512_set1_epi16(1), part;
        for (p = 0; p < low; p++) {
            uint32_t bits;
            memcpy(&bits, at + (size_t)p * stride, 4);
            sum = _mm512_mask_add_epi16(sum, bits, sum, one);
            one = _mm512_add_epi16(one, one);
        }
        part = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(sum));
        _mm512_storeu_si512(out + c, _mm512_sub_epi32(_mm512_mullo_epi32(part, by), less));
        part = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(sum, 1));
        _mm512_storeu_si512(out + c + 16, _mm512_sub_epi32(_mm512_mullo_epi32(part, by), less));
#elif defined(BSNN_VECTORS) && defined(__AVX2__)
        /* Every byte holds one channel: first the low 8 bits of all counts, then the high ones. */
        const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2,
                                                3, 3, 3, 3, 3, 3, 3, 3);
        const __m256i each = _mm256_set1_epi64x((long long)0x8040201008040201);
        const __m256i by = _mm256_set1_epi32(factor), less = _mm256_set1_epi32(minus);
        __m256i halves[2];
        uint8_t bytes[64];
        for (k = 0; k < 2; k++) {
            __m256i sum = _mm256_setzero_si256();
            for (p = (low < 8 * k + 8 ? low : 8 * k + 8) - 1; p >= 8 * k; p--) {
                int four;
                memcpy(&four, at + (size_t)p * stride, 4);
                const __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
                const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(all, each), each);
                sum = _mm256_sub_epi8(_mm256_add_epi8(sum, sum), set);
            }
            halves[k] = sum;
        }
        /* Interleaved within halves of a vector: channels 0-7 and 16-23, then 8-15 and 24-31. */
        _mm256_storeu_si256((__m256i *)(void *)bytes, _mm256_unpacklo_epi8(halves[0], halves[1]));
        _mm256_storeu_si256((__m256i *)(void *)(bytes + 32), _mm256_unpackhi_epi8(halves[0], halves[1]));
        for (k = 0; k < 4; k++) {
            const __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * k));
            const __m256i numbers = _mm256_mullo_epi32(_mm256_cvtepu16_epi32(eight), by);
            _mm256_storeu_si256((__m256i *)(void *)(out + c + (k & 1) * 16 + (k >> 1) * 8), _mm256_sub_epi32(numbers, less));
        }
#elif defined(BSNN_VECTORS)
        typedef uint16_t eight __attribute__((vector_size(16)));
        const eight each = {1, 2, 4, 8, 16, 32, 64, 128};
        for (k = 0; k < 32; k += 8) {
            eight sum = each ^ each;
            int32_t i;
            for (p = low - 1; p >= 0; p--) {
                const eight all = at[(size_t)p * stride + (size_t)k / 8] - (each ^ each);
                sum = sum + sum - (eight)((all & each) == each);
            }
            for (i = 0; i < 8; i++)
                out[c + k + i] = factor * (int32_t)sum[i] - minus;
        }
#else
        for (k = 0; k < 32; k++)
            out[c + k] = -minus;
        for (p = 0; p < low; p++) {
            const uint8_t *const four = at + (size_t)p * stride;
            for (k = 0; k < 32; k++)
                out[c + k] += factor * (int32_t)((uint32_t)(four[k / 8] >> k % 8 & 1) << p);
        }
#endif
        for (p = low; p < num_planes; p++) /* rare: counts above 65535 */
            for (k = 0; k < 32; k++)
                out[c + k] += factor * (int32_t)((uint32_t)(at[(size_t)p * stride + (size_t)k / 8] >> k % 8 & 1) << p);
    }
}

/* Packs bytes of 0 and 1 into words of zeros, from channel `first` on, a multiple of 4; reads up to 3 zeros beyond. */
static void pack(const uint8_t *spikes, int32_t first, int32_t channels, bsnn_word *out)
{
    int32_t c;
    for (c = first; c < channels; c += 4) {
        const uint32_t four = spikes[c] | (uint32_t)spikes[c + 1] << 8 | (uint32_t)spikes[c + 2] << 16 |
                              (uint32_t)spikes[c + 3] << 24;
        out[c / BSNN_WORD_BITS] |= (bsnn_word)(four * 0x10204080u >> 28) << c % BSNN_WORD_BITS;
    }
}

#if defined(BSNN_VECTORS) && defined(__AVX2__) && !defined(__AVX512F__)
/* Which bits of a byte are set, the lowest first, a byte each. */
#define BIT(byte, n, above) ((above) << 8 * ((byte) >> (n) & 1) | (uint64_t)(n) * ((byte) >> (n) & 1))
#define BITS(byte)                                                                                       \
    BIT(byte, 0, BIT(byte, 1, BIT(byte, 2, BIT(byte, 3, BIT(byte, 4, BIT(byte, 5, BIT(byte, 6, BIT(byte, 7, 0))))))))
#define BITS_4(byte) BITS(byte), BITS(byte + 1), BITS(byte + 2), BITS(byte + 3)
#define BITS_16(byte) BITS_4(byte), BITS_4(byte + 4), BITS_4(byte + 8), BITS_4(byte + 12)
#define BITS_64(byte) BITS_16(byte), BITS_16(byte + 16), BITS_16(byte + 32), BITS_16(byte + 48)
static const uint64_t bits_of_byte[256] = {BITS_64(0), BITS_64(64), BITS_64(128), BITS_64(192)};
#endif

/* Appends (first + n) · row for every bit n that is set; writes up to 15 beyond. */
static inline uint32_t *list_bits(bsnn_word bits, uint32_t first, uint32_t row, uint32_t *out)
{
#if defined(BSNN_VECTORS) && defined(__AVX512F__)
    const __m512i counting = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i by = _mm512_set1_epi32((int)row), further = _mm512_set1_epi32((int)(16 * row));
    __m512i offsets = _mm512_mullo_epi32(_mm512_add_epi32(counting, _mm512_set1_epi32((int)first)), by);
    int k;
    for (k = 0; k < BSNN_WORD_BITS; k += 16, bits >>= 16) { /* all bits: a number that the processor can foresee */
        const __mmask16 set = (__mmask16)bits;
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(set, offsets));
        offsets = _mm512_add_epi32(offsets, further);
        out += __builtin_popcount(set);
    }
#elif defined(BSNN_VECTORS) && defined(__AVX2__)
    const __m256i by = _mm256_set1_epi32((int)row), further = _mm256_set1_epi32((int)(8 * row));
    __m256i begin = _mm256_set1_epi32((int)(first * row));
    int k;
    for (k = 0; k < BSNN_WORD_BITS; k += 8, bits >>= 8) {
        const __m128i set = _mm_loadl_epi64((const __m128i *)(const void *)(bits_of_byte + (bits & 255)));
        const __m256i offsets = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(set), by);
        _mm256_storeu_si256((__m256i *)(void *)out, _mm256_add_epi32(offsets, begin));
        begin = _mm256_add_epi32(begin, further);
        out += __builtin_popcount((unsigned)(bits & 255));
    }
#elif defined(__GNUC__)
    while (bits) {
        /* Four without a test in between: what is written beyond the last one is overwritten. */
        const int number = __builtin_popcountll(bits);
        int k;
        for (k = 0; k < 4; k++) {
            out[k] = (first + (uint32_t)(bits ? __builtin_ctzll(bits) : 0)) * row;
            bits &= bits - 1;
        }
        out += number < 4 ? number : 4;
    }
#else
    for (; bits; bits >>= 1, first++)
        if (bits & 1)
            *out++ = first * row;
#endif
    return out;
}

/* ---- arithmetic of one pixel ---- */

static inline int32_t saturate(int32_t x)
{
    x = x < LARGEST ? x : LARGEST;
    return x > -LARGEST ? x : -LARGEST;
}

/* v = sat(round_shift(v · multiplier, shift) + offset); from channel `first` on;
   unless `wide`, 32 bits hold all steps and the result needs no cut. */
static void scale(int32_t *restrict v, const int32_t *restrict multiplier, const int32_t *restrict offset,
                  int32_t first, int32_t channels, int32_t shift, int32_t wide)
{
    int32_t c;
    if (wide) {
        /* 2^62 is larger than any product, so that the shift is one of an unsigned number, which vectors have. */
        const uint64_t up = UINT64_C(1) << 62, half = up + (UINT64_C(1) << shift >> 1), down = up >> shift;
        for (c = first; c < channels; c++) {
            const uint64_t product = (uint64_t)((int64_t)v[c] * multiplier[c]);
            const int64_t current = (int64_t)(((product + half) >> shift) - down) + offset[c];
            const int64_t cut = current < LARGEST ? current : LARGEST;
            v[c] = (int32_t)(cut > -LARGEST ? cut : -LARGEST);
        }
    } else {
        const int32_t half = (int32_t)(UINT32_C(1) << shift >> 1);
        for (c = first; c < channels; c++)
            v[c] = ((v[c] * multiplier[c] + half) >> shift) + offset[c];
    }
}

/* u = sat(round_shift(m · leak, 16) + current), spike at the threshold, soft reset; from channel `first` on. */
static void fire(const int32_t *restrict current, int32_t *restrict membrane, int32_t first, int32_t channels,
                 int32_t leak, int32_t threshold, uint8_t *restrict spikes)
{
    int32_t c;
    for (c = first; c < channels; c++) {
        /* m = 2^16 · high + low, so that 32 bits hold both products. */
        const int32_t high = membrane[c] >> 16;
        const uint32_t low = (uint32_t)membrane[c] & 65535u;
        const uint32_t kept = (uint32_t)high * (uint32_t)leak + ((low * (uint32_t)leak + 32768u) >> 16);
        const int32_t potential = saturate((int32_t)(kept + (uint32_t)current[c]));
        const int32_t spike = potential >= threshold;
        membrane[c] = potential - (spike ? threshold : 0);
        spikes[c] = (uint8_t)spike;
    }
}

#ifdef LANES
/* The same for whole vectors of channels, bits at once; returns how many channels were done. With `scaled`, `current`
   are sums, scaled on the way as by `scale`. */
static inline int32_t fire_vectors(const bsnn_op *op, int scaled, int halving, const int32_t *restrict current,
                                   int32_t *restrict membrane, int32_t channels, uint8_t *restrict bits)
{
    const lanes zero = {0}, largest = zero + LARGEST, threshold = zero + op->threshold, one = zero + 1;
    const lanes leak = zero + op->leak, half = zero + (int32_t)(UINT32_C(1) << op->shift % 32 >> 1);
    const int shift = op->shift;
    int32_t c;
    for (c = 0; c + LANES <= channels; c += LANES) {
        lanes v, m, multiplier, offset, kept;
        memcpy(&v, current + c, sizeof v);
        memcpy(&m, membrane + c, sizeof m);
        if (scaled) {
            memcpy(&multiplier, op->multiplier + c, sizeof multiplier);
            memcpy(&offset, op->offset + c, sizeof offset);
            v = ((v * multiplier + half) >> shift) + offset;
        }
        if (halving)
            kept = (m + one) >> 1;
        else
            kept = (m >> 16) * leak + (lanes)(((unsigned_lanes)(m & 65535) * (unsigned_lanes)leak + 32768u) >> 16);
        v = (lanes)((unsigned_lanes)kept + (unsigned_lanes)v);
        v = LARGER(SMALLER(v, largest), -largest);
        RESET(v, threshold, bits + c / 8);
        memcpy(membrane + c, &v, sizeof v);
    }
    return c;
}
#endif

/* ---- layers ---- */

/* One image and some consecutive time steps of it. */
typedef struct {
    const bsnn_call *call;
    const bsnn_value *values;
    uint8_t *base, *scratch;
    int32_t image, first_step;
} bsnn_span;

static inline uint8_t *pixel_of(const bsnn_span *span, int32_t value, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const v = span->values + value;
    const size_t pixel = (size_t)y * (size_t)v->width + (size_t)x;
    const size_t size = v->kind == BSNN_BITS ? (size_t)v->planes * (size_t)v->words * sizeof(bsnn_word)
                                            : (size_t)v->channels * sizeof(int32_t);
    return span->base + v->offset + v->step * (size_t)step + pixel * size;
}

static const int16_t *input_pixel(const bsnn_span *span, int32_t value, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const v = span->values + value;
    const bsnn_call *const call = span->call;
    const size_t frame = call->num_frames == 1 ? 0 : (size_t)(span->first_step + step);
    const size_t pixel = (size_t)y * (size_t)v->width + (size_t)x;
    return call->frames + (frame * (size_t)call->batch + (size_t)span->image) * call->model->frame +
           pixel * (size_t)v->channels;
}

/* The integers of a pixel; writes up to 31 beyond. */
static void read_pixel(const bsnn_span *span, int32_t value, int32_t step, int32_t y, int32_t x, int32_t *out)
{
    const bsnn_value *const v = span->values + value;
    int32_t c;
    if (v->kind == BSNN_BITS)
        expand(pixel_of(span, value, step, y, x), (size_t)v->words * sizeof(bsnn_word), v->planes, v->channels, 1, 0,
               out);
    else if (v->kind == BSNN_FIXED)
        memcpy(out, pixel_of(span, value, step, y, x), (size_t)v->channels * sizeof *out);
    else {
        const int16_t *const numbers = input_pixel(span, value, step, y, x);
        for (c = 0; c < v->channels; c++)
            out[c] = numbers[c];
    }
}

/* Neurons of one pixel, given their currents, or with `scaled` the sums that narrow products make currents of. */
static void fire_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x, int scaled,
                       const int32_t *current)
{
    const bsnn_value *const out = span->values + op->output;
    const size_t size = (size_t)out->height * (size_t)out->width, channels = (size_t)out->channels;
    const size_t pixel = (size_t)y * (size_t)out->width + (size_t)x, image = (size_t)span->image;
    uint8_t *const spikes = span->scratch + op->spikes;
    bsnn_word *const words = (bsnn_word *)(void *)pixel_of(span, op->output, step, y, x);
    int32_t *membrane = (int32_t *)(void *)(span->scratch + op->membrane) + (size_t)x * channels;
    int32_t c = 0, w;
    if (span->call->membranes)
        membrane = span->call->membranes[op->neurons] + (image * size + pixel) * channels;
    else if (!step)
        memset(membrane, 0, channels * sizeof *membrane);
#ifdef LANES
    w = out->words - 1; /* the others are filled by whole vectors */
#else
    w = 0;
#endif
    for (; w < out->words; w++)
        words[w] = 0;
#ifdef LANES
    {
        uint8_t *const bits = (uint8_t *)words;
        const int halving = op->leak == 32768;
        if (scaled && halving)
            c = fire_vectors(op, 1, 1, current, membrane, out->channels, bits);
        else if (scaled)
            c = fire_vectors(op, 1, 0, current, membrane, out->channels, bits);
        else
            c = fire_vectors(op, 0, 0, current, membrane, out->channels, bits);
    }
#endif
    (void)scaled;
    fire(current, membrane, c, out->channels, op->leak, op->threshold, spikes);
    pack(spikes, c, out->channels, words);
    if (span->call->records) {
        const size_t time = (size_t)(span->first_step + step) * (size_t)span->call->batch + image;
        uint8_t *const record = span->call->records[op->neurons] + (time * size + pixel) * channels;
        for (c = 0; c < out->channels; c++)
            record[c] = (uint8_t)(words[c / BSNN_WORD_BITS] >> c % BSNN_WORD_BITS & 1);
    }
}

/* From the sums of a synapse to currents, and to spikes if it has neurons. */
static void finish_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x, int32_t *sums)
{
    const int32_t channels = span->values[op->output].channels;
    int32_t done = 0;
    const int fused = op->neurons >= 0;
#ifdef LANES
    if (fused && !op->wide) /* what fills whole vectors is scaled there */
        done = channels / LANES * LANES;
#endif
    scale(sums, op->multiplier, op->offset, done, channels, op->shift, op->wide);
    if (fused)
        fire_pixel(span, op, step, y, x, done > 0, sums);
    else
        memcpy(pixel_of(span, op->output, step, y, x), sums, (size_t)channels * sizeof *sums);
}

/* Where the lists of one row of the input at one time step are kept. */
typedef struct {
    uint32_t *rows;    /* of weights of the first tap, one a channel that fires: by pixel, plane and group */
    uint32_t *ends;    /* of every such list, after a zero */
    uint32_t *longest; /* list of each plane */
} bsnn_row_lists;

static bsnn_row_lists row_lists(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t slot)
{
    const bsnn_value *const in = span->values + op->input;
    const size_t reach = (size_t)(op->dilation[0] * (op->kernel[0] - 1) + 1);
    const size_t rows = reach < (size_t)in->height ? reach : (size_t)in->height;
    const size_t number = (size_t)in->width * (size_t)(in->planes * op->groups) + 1 + (size_t)in->planes;
    const size_t row = (size_t)step * rows + (size_t)slot;
    bsnn_row_lists lists;
    lists.rows = (uint32_t *)(void *)(span->scratch + op->lists) + row * op->list_capacity;
    lists.longest = (uint32_t *)(void *)(span->scratch + op->ends) + row * number;
    lists.ends = lists.longest + in->planes;
    return lists;
}

/* Lists the channels that fire in a row of the input. */
static void list_row(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t slot)
{
    const bsnn_value *const in = span->values + op->input;
    const bsnn_row_lists lists = row_lists(span, op, step, slot);
    const int32_t part = in->channels / op->groups;
    uint32_t *out = lists.rows;
    uint32_t *end = lists.ends;
    int32_t x, p, g, w;
    *end = 0;
    for (p = 0; p < in->planes; p++)
        lists.longest[p] = 0;
    for (x = 0; x < in->width; x++) {
        const bsnn_word *words = (const bsnn_word *)(const void *)pixel_of(span, op->input, step, y, x);
        for (p = 0; p < in->planes; p++, words += in->words)
            for (g = 0; g < op->groups; g++) {
                const int32_t first = g * part, last = first + part;
                uint32_t length;
                for (w = first / BSNN_WORD_BITS; w * BSNN_WORD_BITS < last; w++) {
                    bsnn_word bits = words[w];
                    if (w * BSNN_WORD_BITS < first)
                        bits = bits >> (first - w * BSNN_WORD_BITS) << (first - w * BSNN_WORD_BITS);
                    if ((w + 1) * BSNN_WORD_BITS > last)
                        bits = bits << ((w + 1) * BSNN_WORD_BITS - last) >> ((w + 1) * BSNN_WORD_BITS - last);
                    out = list_bits(bits, (uint32_t)(w * BSNN_WORD_BITS), op->row, out);
                }
                end[1] = (uint32_t)(out - lists.rows);
                length = end[1] - end[0];
                lists.longest[p] = length > lists.longest[p] ? length : lists.longest[p];
                end++;
            }
    }
}

/* The rows of weights that the spikes of one column of a window name, from all the rows of the window: for every column
   of the input, plane by plane, group by group. Columns are shared by the windows that lie side by side. */
static void gather_columns(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t top)
{
    const bsnn_value *const in = span->values + op->input;
    const int32_t down = op->dilation[0], reach = down * (op->kernel[0] - 1) + 1, planes = in->planes;
    const uint32_t line = (uint32_t)(op->kernel[1] * in->channels) * op->row;
    uint32_t *const rows = (uint32_t *)(void *)(span->scratch + op->rows);
    uint32_t *end = (uint32_t *)(void *)(span->scratch + op->row_ends), *to = rows;
    int32_t x, i, p, g;
    *end = 0;
    for (x = 0; x < in->width; x++)
        for (p = 0; p < planes; p++)
            for (g = 0; g < op->groups; g++) {
                for (i = 0; i < op->kernel[0]; i++) {
                    const int32_t y = top + i * down;
                    if (y >= 0 && y < in->height) {
                        const bsnn_row_lists lists = row_lists(span, op, step, y % reach);
                        const uint32_t *const from = lists.ends + (x * planes + p) * op->groups + g;
                        /* As many as the longest list has: a number that the processor can foresee. */
                        append_rows(lists.rows + from[0], from[1] - from[0], lists.longest[p], (uint32_t)i * line, to);
                        to += from[1] - from[0];
                    }
                }
                *++end = (uint32_t)(to - rows);
            }
}

static void run_count(const bsnn_span *span, const bsnn_op *op, int32_t steps, int32_t first, int32_t last)
{
    const bsnn_value *const in = span->values + op->input, *const out = span->values + op->output;
    const int32_t reach = op->dilation[0] * (op->kernel[0] - 1) + 1; /* rows whose lists are kept */
    const int32_t part = out->channels / op->groups, across = op->dilation[1];
    const uint8_t *const weight = op->weight;
    const uint32_t *const ends = (const uint32_t *)(const void *)(span->scratch + op->row_ends);
    int32_t *const sums = (int32_t *)(void *)(span->scratch + op->sums);
    int32_t y, x, g, p, step, column, listed = 0;
    bsnn_events events;
    events.rows = (const uint32_t *)(const void *)(span->scratch + op->rows);
    events.rest = (uint32_t *)(void *)(span->scratch + op->rest);
    events.planes = in->planes;
    events.plane_step = op->groups;
    events.column_step = across * in->planes * op->groups;
    events.tap_size = (uint32_t)in->channels * op->row;
    events.no_row = (uint32_t)(op->kernel[0] * op->kernel[1]) * events.tap_size; /* zeros */
    for (y = first; y < last; y++) {
        const int32_t top = y * op->stride[0] - op->padding[0];
        for (listed = listed > top ? listed : top > 0 ? top : 0; listed < in->height && listed < top + reach; listed++)
            for (step = 0; step < steps; step++)
                list_row(span, op, step, listed, listed % reach);
        for (step = 0; step < steps; step++) {
            gather_columns(span, op, step, top);
            for (x = 0; x < out->width; x++) {
                const int32_t left = x * op->stride[1] - op->padding[1];
                int32_t end = op->kernel[1];
                for (events.first = 0; events.first < end && left + events.first * across < 0;)
                    events.first++;
                while (events.first < end && left + (end - 1) * across >= in->width)
                    end--;
                events.columns = end - events.first;
                for (g = 0; g < op->groups; g++) {
                    uint32_t done, width;
                    int32_t arrived = 0;
                    events.ends = ends + (left + events.first * across) * in->planes * op->groups + g;
                    for (column = 0; column < events.columns; column++)
                        for (p = 0; p < in->planes; p++) {
                            const uint32_t *const one = events.ends + column * events.column_step + p * op->groups;
                            arrived += (int32_t)((one[1] - one[0]) << p);
                        }
                    for (done = 0; done * 8 < (uint32_t)part; done += width) {
                        uint8_t planes[BSNN_MAX_PLANES * WIDEST];
                        const int used = count_rows(weight + done, &events, op->row - done, planes, &width);
                        const int32_t channels = part - (int32_t)done * 8, most = (int32_t)width * 8;
                        expand(planes, width, used, channels < most ? channels : most, 2, arrived,
                               sums + g * part + (int32_t)done * 8);
                    }
                }
                finish_pixel(span, op, step, y, x, sums);
            }
        }
    }
}

/* sums[o] = Σ values[n] · weight[rows[n]][o], for an even number of rows; writes up to 15 beyond. Sums may wrap around on
   the way, not at the end. */
static void multiply(const uint8_t *weight, const uint32_t *rows, const int16_t *values, uint32_t number,
                     int32_t channels, int32_t *sums)
{
    int32_t c;
    uint32_t n;
#if defined(BSNN_VECTORS) && defined(__AVX2__)
    /* Two rows at a time: 16-bit products in pairs. */
    for (c = 0; c < channels; c += 16) {
        const uint8_t *const block = weight + (size_t)c * 2;
        __m256i low = _mm256_setzero_si256(), high = low;
        for (n = 0; n < number; n += 2) {
            const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(block + rows[n]));
            const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(block + rows[n + 1]));
            int32_t two;
            memcpy(&two, values + n, sizeof two);
            const __m256i pair = _mm256_set1_epi32(two);
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair));
        }
        _mm256_storeu_si256((__m256i *)(void *)(sums + c), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(sums + c + 8), _mm256_permute2x128_si256(low, high, 0x31));
    }
#else
    memset(sums, 0, (size_t)channels * sizeof *sums);
    for (n = 0; n < number; n++) {
        const int16_t *const row = (const int16_t *)(const void *)(weight + rows[n]);
        const int32_t x = values[n];
        for (c = 0; c < channels; c++)
            sums[c] = (int32_t)((uint32_t)sums[c] + (uint32_t)(x * row[c]));
    }
#endif
}

static void dense_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const in = span->values + op->input, *const out = span->values + op->output;
    const int32_t part = in->channels / op->groups, made = out->channels / op->groups;
    const int32_t taps = op->kernel[0] * op->kernel[1];
    uint32_t *const rows = (uint32_t *)(void *)(span->scratch + op->rows);
    int16_t *const numbers = (int16_t *)(void *)(rows + op->row_capacity);
    int32_t *const pixel = (int32_t *)(void *)(span->scratch + op->ends);
    int16_t *const window = (int16_t *)(void *)(span->scratch + op->lists);
    int32_t *const sums = (int32_t *)(void *)(span->scratch + op->sums);
    int32_t i, j, c, g;
    for (i = 0; i < op->kernel[0]; i++)
        for (j = 0; j < op->kernel[1]; j++) {
            const int32_t from_y = y * op->stride[0] - op->padding[0] + i * op->dilation[0];
            const int32_t from_x = x * op->stride[1] - op->padding[1] + j * op->dilation[1];
            int16_t *const tap = window + (size_t)(i * op->kernel[1] + j) * (size_t)in->channels;
            if (from_y < 0 || from_y >= in->height || from_x < 0 || from_x >= in->width) {
                memset(tap, 0, (size_t)in->channels * sizeof *tap);
                continue;
            }
            if (in->kind == BSNN_INPUT) {
                const int16_t *const numbers_in = input_pixel(span, op->input, step, from_y, from_x);
                for (c = 0; c < in->channels; c++)
                    tap[c] = numbers_in[c];
                continue;
            }
            read_pixel(span, op->input, step, from_y, from_x, pixel);
            for (c = 0; c < in->channels; c++) {
                const int64_t shifted = ((int64_t)pixel[c] + (INT64_C(1) << op->input_shift >> 1)) >> op->input_shift;
                tap[c] = (int16_t)(shifted < -32768 ? -32768 : shifted > 32767 ? 32767 : shifted);
            }
        }
    for (g = 0; g < op->groups; g++) {
        uint32_t number = 0;
        for (i = 0; i < taps; i++)
            for (c = g * part; c < (g + 1) * part; c++) {
                const uint32_t row = (uint32_t)(i * in->channels + c);
                rows[number] = row * op->row;
                numbers[number] = window[row];
                number += window[row] != 0;
            }
        rows[number] = 0; /* one more, of no weight, makes the number even */
        numbers[number] = 0;
        multiply(op->weight, rows, numbers, (number + 1) & ~1u, made, sums + g * made);
    }
    finish_pixel(span, op, step, y, x, sums);
}

/* number += bits · 2^at, in every channel of a word. */
static void add_bits(bsnn_word *number, int32_t planes, int32_t at, bsnn_word bits)
{
    for (; bits && at < planes; at++) {
        const bsnn_word carry = number[at] & bits;
        number[at] ^= bits;
        bits = carry;
    }
}

/* number = max(number, other), in every channel of a word; bits of a number are `stride` words apart. */
static void max_bits(bsnn_word *number, const bsnn_word *other, int32_t planes, int32_t stride)
{
    bsnn_word larger = 0, equal = ~(bsnn_word)0;
    int32_t p;
    for (p = planes - 1; p >= 0; p--) {
        larger |= equal & other[p * stride] & ~number[p];
        equal &= ~(other[p * stride] ^ number[p]);
    }
    for (p = 0; p < planes; p++)
        number[p] = (other[p * stride] & larger) | (number[p] & ~larger);
}

static void pool_bits(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x,
                      const int32_t window[4])
{
    const bsnn_value *const in = span->values + op->input, *const out = span->values + op->output;
    bsnn_word *const result = (bsnn_word *)(void *)pixel_of(span, op->output, step, y, x);
    int32_t w, p, i, j;
    for (w = 0; w < out->words; w++) {
        bsnn_word number[15] = {0};
        for (i = window[0]; i < window[1]; i++)
            for (j = window[2]; j < window[3]; j++) {
                const bsnn_word *const bits = (const bsnn_word *)(const void *)pixel_of(span, op->input, step, i, j) + w;
                if (op->op == BSNN_MAX_POOL)
                    max_bits(number, bits, in->planes, in->words);
                else
                    for (p = 0; p < in->planes; p++)
                        add_bits(number, out->planes, p, bits[p * in->words]);
            }
        for (p = 0; p < out->planes; p++)
            result[p * out->words + w] = number[p];
    }
}

static void pool_fixed(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x,
                       const int32_t window[4], int64_t places)
{
    const int32_t channels = span->values[op->output].channels;
    int32_t *const result = (int32_t *)(void *)pixel_of(span, op->output, step, y, x);
    int32_t c, i, j;
    for (c = 0; c < channels; c++) {
        int64_t sum = 0, largest = -LARGEST;
        for (i = window[0]; i < window[1]; i++)
            for (j = window[2]; j < window[3]; j++) {
                const int32_t number = ((const int32_t *)(const void *)pixel_of(span, op->input, step, i, j))[c];
                sum += number;
                largest = number > largest ? number : largest;
            }
        if (op->op == BSNN_MAX_POOL)
            result[c] = (int32_t)largest;
        else {
            const int64_t twice = 2 * sum + places, quotient = twice / (2 * places);
            result[c] = (int32_t)(quotient - (twice % (2 * places) < 0)); /* rounded down */
        }
    }
}

/* The part of a window along one axis that lies between `low` and `high`. */
static void clip(int32_t begin, int32_t size, int32_t low, int32_t high, int32_t out[2])
{
    out[0] = begin > low ? begin : low;
    out[1] = begin + size < high ? begin + size : high;
}

static void pool_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const in = span->values + op->input;
    const int32_t top = y * op->stride[0] - op->padding[0], left = x * op->stride[1] - op->padding[1];
    const int32_t above = op->count_padding ? op->padding[0] : 0, beside = op->count_padding ? op->padding[1] : 0;
    int32_t window[4], padded[4];
    clip(top, op->kernel[0], 0, in->height, window);
    clip(left, op->kernel[1], 0, in->width, window + 2);
    clip(top, op->kernel[0], -above, in->height + above, padded);
    clip(left, op->kernel[1], -beside, in->width + beside, padded + 2);
    if (in->kind == BSNN_BITS)
        pool_bits(span, op, step, y, x, window);
    else
        pool_fixed(span, op, step, y, x, window, (int64_t)(padded[1] - padded[0]) * (padded[3] - padded[2]));
}

static void add_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const a = span->values + op->input, *const b = span->values + op->other;
    const bsnn_value *const out = span->values + op->output;
    const void *const from = pixel_of(span, op->input, step, y, x);
    const void *const other = pixel_of(span, op->other, step, y, x);
    void *const to = pixel_of(span, op->output, step, y, x);
    int32_t c, w, p;
    if (out->kind == BSNN_FIXED) {
        for (c = 0; c < out->channels; c++) {
            const int64_t sum = (int64_t)((const int32_t *)from)[c] + ((const int32_t *)other)[c];
            ((int32_t *)to)[c] = (int32_t)(sum > LARGEST ? LARGEST : sum < -LARGEST ? -LARGEST : sum);
        }
        return;
    }
    for (w = 0; w < out->words; w++) {
        bsnn_word carry = 0;
        for (p = 0; p < out->planes; p++) {
            const bsnn_word one = p < a->planes ? ((const bsnn_word *)from)[p * out->words + w] : 0;
            const bsnn_word two = p < b->planes ? ((const bsnn_word *)other)[p * out->words + w] : 0;
            ((bsnn_word *)to)[p * out->words + w] = one ^ two ^ carry;
            carry = (one & two) | ((one ^ two) & carry);
        }
    }
}

/* Copies one value into the channels of the result that begin at `other`. */
static void concat_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const in = span->values + op->input, *const out = span->values + op->output;
    const int32_t word = op->other / BSNN_WORD_BITS, bit = op->other % BSNN_WORD_BITS;
    const void *const from = pixel_of(span, op->input, step, y, x);
    void *const to = pixel_of(span, op->output, step, y, x);
    int32_t w, p;
    if (out->kind == BSNN_FIXED) {
        memcpy((int32_t *)to + op->other, from, (size_t)in->channels * sizeof(int32_t));
        return;
    }
    if (!op->other)
        memset(to, 0, (size_t)out->planes * (size_t)out->words * sizeof(bsnn_word));
    for (p = 0; p < in->planes; p++)
        for (w = 0; w < in->words; w++) {
            const bsnn_word bits = ((const bsnn_word *)from)[p * in->words + w];
            bsnn_word *const at = (bsnn_word *)to + p * out->words + word + w;
            at[0] |= bits << bit;
            if (bit && word + w + 1 < out->words)
                at[1] |= bits >> (BSNN_WORD_BITS - bit);
        }
}

static void scale_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const int32_t channels = span->values[op->output].channels;
    int32_t *const pixel = (int32_t *)(void *)(span->scratch + op->sums);
    read_pixel(span, op->input, step, y, x, pixel);
    scale(pixel, op->multiplier, op->offset, 0, channels, op->shift, op->wide);
    memcpy(pixel_of(span, op->output, step, y, x), pixel, (size_t)channels * sizeof *pixel);
}

/* ---- the network ---- */

static void run_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    switch (op->op) {
    case BSNN_DENSE: dense_pixel(span, op, step, y, x); break;
    case BSNN_LIF:
        fire_pixel(span, op, step, y, x, 0, (const int32_t *)(const void *)pixel_of(span, op->input, step, y, x));
        break;
    case BSNN_AVERAGE_POOL:
    case BSNN_MAX_POOL: pool_pixel(span, op, step, y, x); break;
    case BSNN_ADD: add_pixel(span, op, step, y, x); break;
    case BSNN_CONCAT: concat_pixel(span, op, step, y, x); break;
    default: scale_pixel(span, op, step, y, x);
    }
}

/* Some rows of what a layer makes; all time steps of a row before the next row, so that its membranes stay near. */
static void run_rows(const bsnn_span *span, const bsnn_op *op, int32_t steps, int32_t first, int32_t last)
{
    const bsnn_value *const out = span->values + op->output;
    int32_t y, x, step;
    if (op->neurons >= 0)
        memset(span->scratch + op->spikes, 0, (size_t)out->words * BSNN_WORD_BITS);
    if (op->op == BSNN_COUNT) {
        run_count(span, op, steps, first, last);
        return;
    }
    for (y = first; y < last; y++)
        for (step = 0; step < steps; step++)
            for (x = 0; x < out->width; x++)
                run_pixel(span, op, step, y, x);
}

/* Waits until all threads are here. */
static void wait_for_all(const bsnn_call *call)
{
#ifdef BSNN_THREADS
    uint32_t *const arrived = call->barrier, *const round = call->barrier + 1;
    const uint32_t now = __atomic_load_n(round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)call->threads) {
        __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(round, now + 1, __ATOMIC_RELEASE);
    } else {
        int spins = 0;
        while (__atomic_load_n(round, __ATOMIC_ACQUIRE) == now)
            if (++spins > 2000)
                sched_yield();
    }
#else
    (void)call;
#endif
}

void bsnn_run(const bsnn_call *call, int32_t rank)
{
    const bsnn_model *const model = call->model;
    const int32_t sharing = call->by_rows ? call->threads : 1, share = call->by_rows ? rank : 0;
    const int32_t images = call->by_rows ? 1 : call->threads;
    const size_t values_parts = call->by_rows ? 1 : (size_t)call->threads;
    bsnn_span span;
    int32_t i, step, c;
    span.call = call;
    span.values = model->values;
    span.base = call->workspace + (call->by_rows ? 0 : (size_t)rank * call->values_bytes);
    span.scratch = call->workspace + values_parts * call->values_bytes + (size_t)rank * call->scratch_bytes;
    for (span.image = call->by_rows ? 0 : rank; span.image < call->batch; span.image += images)
        for (span.first_step = 0; span.first_step < call->time_steps; span.first_step += call->chunk) {
            const bsnn_value *const out = model->values + model->output;
            const int32_t left = call->time_steps - span.first_step;
            const int32_t steps = left < call->chunk ? left : call->chunk;
            for (i = 0; i < model->num_ops; i++) {
                const bsnn_op *const op = model->ops + i;
                const int32_t height = model->values[op->output].height;
                const int32_t first = height * share / sharing, last = height * (share + 1) / sharing;
                if (op->still && span.first_step)
                    continue;
                if (first < last)
                    run_rows(&span, op, op->still ? 1 : steps, first, last);
                if (sharing > 1)
                    wait_for_all(call);
            }
            if (!share) {
                int64_t *const total = call->outputs + (size_t)span.image * (size_t)out->channels;
                /* The output is one pixel; its integers go where every layer has scratch. */
                int32_t *const pixel = (int32_t *)(void *)span.scratch;
                for (step = 0; step < steps; step++) {
                    read_pixel(&span, model->output, step, 0, 0, pixel);
                    for (c = 0; c < out->channels; c++)
                        total[c] += pixel[c];
                }
            }
        }
}

#ifdef BSNN_THREADS
/* ---- training: a synapse on its own ---- */

/* Packs the channels of a pixel, in units of 1 / unit, unit being 1 or 4; returns whether all of them are such numbers,
   from 0 to unit. */
static int pack_pixel(const float *restrict x, int32_t channels, int32_t words, int unit, bsnn_word *restrict out)
{
    const int32_t planes = unit == 1 ? 1 : 3;
    int32_t c, p, valid = 1;
    memset(out, 0, (size_t)(planes * words) * sizeof *out);
    for (c = 0; c < channels; c += 8) {
        const int32_t here = channels - c < 8 ? channels - c : 8;
        uint32_t bits[3] = {0, 0, 0};
        int32_t k;
#if defined(BSNN_VECTORS) && defined(__AVX2__)
        if (here == 8) {
            const __m256 eight = _mm256_mul_ps(_mm256_loadu_ps(x + c), _mm256_set1_ps((float)unit));
            const __m256i number = _mm256_cvttps_epi32(eight);
            const __m256i high = _mm256_cmpgt_epi32(number, _mm256_set1_epi32(unit));
            const __m256 same = _mm256_cmp_ps(_mm256_cvtepi32_ps(number), eight, _CMP_EQ_OQ);
            valid &= _mm256_movemask_ps(same) == 255;
            valid &= !_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_or_si256(high, number)));
            for (p = 0; p < planes; p++)
                bits[p] = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(number, 31 - p)));
        } else
#endif
        for (k = 0; k < here; k++) {
            const float scaled = x[c + k] * (float)unit;
            const int32_t number = scaled >= 0 && scaled <= (float)unit ? (int32_t)scaled : 0;
            valid &= (float)number == scaled;
            for (p = 0; p < planes; p++)
                bits[p] |= ((uint32_t)number >> p & 1) << k;
        }
        for (p = 0; p < planes; p++)
            out[p * words + c / BSNN_WORD_BITS] |= (bsnn_word)bits[p] << c % BSNN_WORD_BITS;
    }
    return valid;
}

/* Bit c of word r becomes bit r of word c, of 8 words of 8 bits in one. */
static uint64_t transpose_8(uint64_t x)
{
    uint64_t t = (x ^ x >> 7) & UINT64_C(0x00aa00aa00aa00aa);
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & UINT64_C(0x0000cccc0000cccc);
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & UINT64_C(0x00000000f0f0f0f0);
    return x ^ t ^ t << 28;
}

/* Weights as training has them, a bit each, [outs][ins][taps], as rows of outs for each tap and input, which hold zeros.
   The shape is outs, ins, taps, groups and bytes of a row. Groups follow one another in outs, and rows of a tap hold the
   inputs of all groups. */
void bsnn_rows(const uint8_t *bits, const int32_t *shape, uint8_t *rows, int32_t rank, int32_t threads)
{
    const int32_t outs = shape[0], ins = shape[1], taps = shape[2], groups = shape[3];
    const size_t row = (size_t)shape[4];
    const size_t columns = (size_t)ins * (size_t)taps, end = ((size_t)outs * columns + 7) / 8;
    const int32_t part = outs / groups;
    int32_t g, o, k;
    for (g = 0; g < groups; g++)
        for (o = 8 * rank; o < part; o += 8 * threads) {
            size_t first, input = (size_t)(g * ins), tap = 0;
            for (first = 0; first < columns; first += 8) {
                uint64_t square = 0;
                for (k = 0; k < 8 && o + k < part; k++) {
                    const size_t bit = (size_t)(g * part + o + k) * columns + first;
                    const uint32_t low = bits[bit / 8], high = bit / 8 + 1 < end ? bits[bit / 8 + 1] : 0;
                    square |= (uint64_t)((low | high << 8) >> bit % 8 & 255) << 8 * k;
                }
                square = transpose_8(square);
                for (k = 0; k < 8 && first + (size_t)k < columns; k++) {
                    rows[(tap * (size_t)(ins * groups) + input) * row + (size_t)(o / 8)] = (uint8_t)(square >> 8 * k);
                    if (++tap == (size_t)taps) {
                        tap = 0;
                        input++;
                    }
                }
            }
        }
}

/* Currents of a batch from spikes, or from means of four of them; both [batch][height][width][channels]. Thread `rank`
   of `threads` takes whole images. values[0] is the input with 3 planes, values[1] the output; op has no neurons. Sizes
   are the batch, the bytes of both values, and those of a thread's workspace: the values and then scratch. Returns 0, or 1
   if some input is neither. */
int32_t bsnn_currents(const bsnn_op *op, const bsnn_value *values, const float *spikes, float *currents,
                     const int64_t *sizes, uint8_t *workspace, int32_t rank, int32_t threads)
{
    const int32_t batch = (int32_t)sizes[0];
    bsnn_value mine[2];
    bsnn_span span;
    const size_t pixels = (size_t)values[0].height * (size_t)values[0].width;
    const size_t made = (size_t)values[1].height * (size_t)values[1].width * (size_t)values[1].channels;
    memcpy(mine, values, sizeof mine);
    memset(&span, 0, sizeof span);
    span.values = mine;
    span.base = workspace + (size_t)rank * (size_t)sizes[2];
    span.scratch = span.base + sizes[1];
    for (span.image = rank; span.image < batch; span.image += threads) {
        const float *const x = spikes + (size_t)span.image * pixels * (size_t)values[0].channels;
        float *const out = currents + (size_t)span.image * made;
        const int32_t *const sums = (const int32_t *)(const void *)(span.base + values[1].offset);
        int unit = 1;
        size_t k = 0;
        while (k < pixels) {
            bsnn_word *const words = (bsnn_word *)(void *)(span.base + values[0].offset);
            const int32_t planes = unit == 1 ? 1 : 3;
            bsnn_word *const at = words + k * (size_t)(planes * values[0].words);
            if (pack_pixel(x + k * (size_t)values[0].channels, values[0].channels, values[0].words, unit, at))
                k++;
            else if (unit == 1) {
                unit = 4;
                k = 0;
            } else
                return 1;
        }
        mine[0].planes = unit == 1 ? 1 : 3;
        run_count(&span, op, 1, 0, values[1].height);
        for (k = 0; k < made; k++)
            out[k] = (float)sums[k] * (unit == 1 ? 1.0f : 0.25f);
    }
    return 0;
}
#endif

#if defined(BSNN_THREADS) && defined(__x86_64__)
/* Which of the libraries this processor can run: 0 baseline, 1 also avx2, 2 also avx512. */
int32_t bsnn_level(void)
{
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                     __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl");
    return avx2 ? avx512 ? 2 : 1 : 0;
}
#endif
