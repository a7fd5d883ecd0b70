/* Bit-sliced counting: how many of the rows of bits that some events name have the bit of each channel set.

   A dot product of weights ±1 and spikes is 2 · count − S, where S is the number of spikes that arrive and count the number
   of those that meet a +1. Every spike names one row of weight bits over the output channels; the rows are added in
   count_width.h, and `expand` makes integers of the counts. All functions are static: include this header where they are
   needed. */

#ifndef BSNN_COUNT_H
#define BSNN_COUNT_H

#include "words.h"

#define BSNN_MAX_PLANES 32

/* ---- events ---- */

/* The rows of weights that the spikes in a window name: a list for each column and plane (see convolution.h), or without
   columns one for each plane, of a multiple of 4 rows. */
typedef struct {
    const bsnn_offset *rows;
    const uint32_t *ends;                             /* of the first column's lists, after where they begin */
    int32_t planes, plane_step, columns, column_step; /* steps in `ends` */
    int32_t first;                                    /* tap of the first column */
    uint32_t tap_size, no_row;                        /* bytes of the weights of one tap; where a row of zeros is */
    bsnn_offset *rest;                                /* room for BSNN_BLOCK rows per column, and for one block more */
} bsnn_events;

#define BSNN_BLOCK 32

/* to[k] = from[k] + offset for `number` rows; vectors write `most` of them, a multiple of 16 when rounded up: what lies
   beyond the end will be overwritten. */
static inline void append_rows(const bsnn_offset *restrict from, uint32_t number, uint32_t most, uint32_t offset,
                               bsnn_offset *restrict to)
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
        to[k] = (bsnn_offset)(from[k] + offset);
    (void)most;
#endif
}

/* ---- counting, at every width that pays here ---- */

#ifdef BSNN_VECTORS
#ifdef __AVX512F__
#define COUNT_BYTES 64
#include "count_width.h"
#define BSNN_WIDEST 64
#endif
#ifdef __AVX2__
#define COUNT_BYTES 32
#include "count_width.h"
#ifndef BSNN_WIDEST
#define BSNN_WIDEST 32
#endif
#endif
#define COUNT_BYTES 16
#include "count_width.h"
#ifndef BSNN_WIDEST
#define BSNN_WIDEST 16
#endif
#define COUNT_BYTES 8
#include "count_width.h"
#define BSNN_NARROWEST 8
#elif BSNN_WORD_BITS == 64
#define COUNT_BYTES 8
#include "count_width.h"
#define BSNN_WIDEST 8
#define BSNN_NARROWEST 8
#else
#define COUNT_BYTES 4
#include "count_width.h"
#define BSNN_WIDEST 4
#define BSNN_NARROWEST 4
#endif

/* Counts for as many channels as fit; writes the width of a plane in bytes and returns the number of planes. */
static int count_rows(const uint8_t *weight, const bsnn_events *events, uint32_t bytes_left, uint8_t *planes,
                      uint32_t *width)
{
#if BSNN_WIDEST >= 64
    if (bytes_left >= 64) {
        *width = 64;
        return count64(weight, events, planes);
    }
#endif
#if BSNN_WIDEST >= 32
    if (bytes_left >= 32) {
        *width = 32;
        return count32(weight, events, planes);
    }
#endif
#if BSNN_WIDEST >= 16
    if (bytes_left >= 16) {
        *width = 16;
        return count16(weight, events, planes);
    }
#endif
    (void)bytes_left;
    *width = BSNN_NARROWEST;
#if BSNN_NARROWEST == 8
    return count8(weight, events, planes);
#else
    return count4(weight, events, planes);
#endif
}

/* ---- numbers from bits, and lists of bits ---- */

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
        for (k = 0; k < 32; k += 4) {
            uint32_t halves[2] = {0, 0}; /* four channels, a byte each: the low 8 bits of their counts, and the high ones */
            int32_t i;
            for (p = low - 1; p >= 0; p--) {
                const uint32_t four = at[(size_t)p * stride + (size_t)k / 8] >> k % 8 & 15u;
                halves[p / 8] = 2 * halves[p / 8] + (four * 0x00204081u & 0x01010101u);
            }
            for (i = 0; i < 4; i++)
                out[c + k + i] = factor * (int32_t)((halves[0] >> 8 * i & 255u) | (halves[1] >> 8 * i & 255u) << 8) - minus;
        }
#endif
        for (p = low; p < num_planes; p++) /* rare: counts above 65535 */
            for (k = 0; k < 32; k++)
                out[c + k] += factor * (int32_t)((uint32_t)(at[(size_t)p * stride + (size_t)k / 8] >> k % 8 & 1) << p);
    }
}

/* sums[o] = Σ weight · input of `channels` outputs, of events that sum up to `arrived`; writes up to 31 beyond. */
BSNN_APART static void count_channels(const uint8_t *weight, uint32_t row, const bsnn_events *events, int32_t channels,
                                      int32_t arrived, int32_t *sums)
{
    uint32_t done, width;
    for (done = 0; done * 8 < (uint32_t)channels; done += width) {
        uint8_t planes[BSNN_MAX_PLANES * BSNN_WIDEST];
        const int used = count_rows(weight + done, events, row - done, planes, &width);
        const int32_t left = channels - (int32_t)done * 8, most = (int32_t)width * 8;
        expand(planes, width, used, left < most ? left : most, 2, arrived, sums + done * 8);
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

/* The bits from `first` up to `last`, either of which may lie outside the word. */
static inline bsnn_word bits_between(bsnn_word bits, int32_t first, int32_t last)
{
    if (first > 0)
        bits = bits >> first << first;
    if (last < BSNN_WORD_BITS)
        bits = bits << (BSNN_WORD_BITS - last) >> (BSNN_WORD_BITS - last);
    return bits;
}

/* Appends (first + n) · row for every bit n that is set; unless BSNN_SMALL, writes up to 15 beyond. */
static inline bsnn_offset *list_bits(bsnn_word bits, uint32_t first, uint32_t row, bsnn_offset *out)
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
#elif defined(__GNUC__) && defined(BSNN_SMALL)
    for (; bits; bits &= bits - 1)
        *out++ = (bsnn_offset)((first + (uint32_t)__builtin_ctzl(bits)) * row);
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
            *out++ = (bsnn_offset)(first * row);
#endif
    return out;
}

#endif
