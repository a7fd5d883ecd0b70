/* Bit-sliced counting: how many of the rows of bits that some events name have the bit of each channel set.

   A dot product of weights ±1 and spikes is 2 · count − S, where S is the number of spikes that arrive and count the number
   of those that meet a +1. Every spike names one row of weight bits over the output channels; the rows are added in
   count_width.h, and `expand` makes integers of the counts. All functions are static: include this header where they are
   needed. */

#ifndef BSNN_COUNT_H
#define BSNN_COUNT_H

#include "words.h"

#define BSNN_MAX_PLANES 32

/* Bytes of the vectors that count. */
#if defined(BSNN_VECTORS) && defined(__AVX512F__)
#define BSNN_WIDEST 64
#elif defined(BSNN_VECTORS) && defined(__AVX2__)
#define BSNN_WIDEST 32
#elif defined(BSNN_VECTORS)
#define BSNN_WIDEST 16
#else
#define BSNN_WIDEST (BSNN_WORD_BITS / 8)
#endif
#if defined(BSNN_VECTORS) || BSNN_WORD_BITS == 64
#define BSNN_NARROWEST 8
#else
#define BSNN_NARROWEST 4
#endif

/* ---- events and counts ---- */

/* The rows of weights that the spikes in a window name: a list for each plane, of a multiple of 4 rows with BSNN_SMALL. */
typedef struct {
    const bsnn_offset *rows;
    const uint32_t *begins, *ends; /* of every plane's list */
    int32_t planes;
    bsnn_offset no_row; /* a row of zeros; unused with BSNN_SMALL */
} bsnn_events;

/* How often each channel was counted: plane k holds bit k of all counts, and with vectors zeros follow up to a multiple of 4
   planes. */
typedef struct {
    uint8_t planes[BSNN_MAX_PLANES * BSNN_WIDEST];
    uint32_t bound; /* no count is larger; 0: nothing was counted, and the planes are undefined */
    int used;       /* planes */
} bsnn_counts;

/* Vectors of a row of weights that are counted in turns, and after how many rows: these stay in the fastest cache. */
#ifdef BSNN_VECTORS
#define BSNN_TOGETHER 2
#else
#define BSNN_TOGETHER 1
#endif
#define BSNN_CHUNK 256

#ifndef BSNN_SMALL
/* With vectors, a few rows of zeros cost less than a number of rows that the processor cannot foresee. */
#ifdef BSNN_VECTORS
#define BSNN_BLOCK 16
#else
#define BSNN_BLOCK 4
#endif

/* Copies the first rows of a list, fewer than a block, into a block that is filled up with rows of zeros; vectors read a whole
   block of the list. */
static inline const bsnn_offset *fill_block(const bsnn_offset *rows, uint32_t number, bsnn_offset no_row,
                                            bsnn_offset *block)
{
    uint32_t n;
#if defined(BSNN_VECTORS) && defined(__AVX512F__)
    _mm512_storeu_si512(block, _mm512_mask_loadu_epi32(_mm512_set1_epi32((int)no_row), (__mmask16)((1u << number) - 1u), rows));
    (void)n;
#elif defined(BSNN_VECTORS) && defined(__AVX2__)
    for (n = 0; n < BSNN_BLOCK; n += 8) {
        const __m256i places = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)n));
        const __m256i beyond = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)number), places);
        const __m256i here = _mm256_loadu_si256((const __m256i *)(const void *)(rows + n));
        _mm256_storeu_si256((__m256i *)(void *)(block + n),
                            _mm256_blendv_epi8(_mm256_set1_epi32((int)no_row), here, beyond));
    }
#else
    for (n = 0; n < BSNN_BLOCK; n++)
        block[n] = n < number ? rows[n] : no_row;
#endif
    return block;
}
#endif

/* ---- counting, at every width that pays here ---- */

#if BSNN_WIDEST >= 64
#define COUNT_BYTES 64
#include "count_width.h"
#endif
#if BSNN_WIDEST >= 32
#define COUNT_BYTES 32
#include "count_width.h"
#endif
#if BSNN_WIDEST >= 16
#define COUNT_BYTES 16
#include "count_width.h"
#endif
#define COUNT_BYTES BSNN_NARROWEST
#include "count_width.h"

/* The widest of these that rows with so many bytes left fill. */
static inline uint32_t count_width(uint32_t bytes_left)
{
    uint32_t width = BSNN_WIDEST;
    while (width > bytes_left && width > BSNN_NARROWEST)
        width /= 2;
    return width;
}

static inline void count_rows(uint32_t width, const uint8_t *weight, const bsnn_offset *rows, uint32_t number,
                              bsnn_offset no_row, int twice, bsnn_counts *counts)
{
#if BSNN_WIDEST >= 64
    if (width == 64)
        count64(weight, rows, number, no_row, twice, counts);
    else
#endif
#if BSNN_WIDEST >= 32
    if (width == 32)
        count32(weight, rows, number, no_row, twice, counts);
    else
#endif
#if BSNN_WIDEST >= 16
    if (width == 16)
        count16(weight, rows, number, no_row, twice, counts);
    else
#endif
#if BSNN_NARROWEST == 8
        count8(weight, rows, number, no_row, twice, counts);
#else
        count4(weight, rows, number, no_row, twice, counts);
#endif
    (void)width;
}

/* ---- numbers from bits, and lists of bits ---- */

#if defined(BSNN_VECTORS) && defined(__AVX2__) && !defined(__AVX512BW__)
#define BSNN_EXPAND_256
/* Exchanges the bits of a that are `size` places above the mask with the bits of b that are in it. */
#define SWAP(a, b, size, mask)                                                                          \
    do {                                                                                                \
        const __m256i both_ = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi64(a, size), b), mask);  \
        (b) = _mm256_xor_si256(b, both_);                                                               \
        (a) = _mm256_xor_si256(a, _mm256_slli_epi64(both_, size));                                      \
    } while (0)
#define UNPACK(to, unit, n, a, b)                       \
    do {                                                \
        (to)[n] = _mm256_unpacklo_##unit(a, b);         \
        (to)[(n) + 1] = _mm256_unpackhi_##unit(a, b);   \
    } while (0)

/* Numbers from 4 or 8 planes of 256 bits each, a byte for each channel: bytes[k] has channels 16 k to 16 k + 15, and as many
   from 16 k + 128 on. */
static inline void bytes_of_planes(const uint8_t *planes, int number, __m256i bytes[8])
{
    const __m256i ones = _mm256_set1_epi8(0x55), twos = _mm256_set1_epi8(0x33), fours = _mm256_set1_epi8(0x0f);
    __m256i p[8], q[8];
#define PLANE(k)                                                                                         \
    p[k] = (k) < number ? _mm256_loadu_si256((const __m256i *)(const void *)(planes + (k) * 32))         \
                        : _mm256_setzero_si256()
    PLANE(0), PLANE(1), PLANE(2), PLANE(3), PLANE(4), PLANE(5), PLANE(6), PLANE(7);
#undef PLANE
    /* A transposition of 8 × 8 bits: then byte n of p[k] is the number of channel 8 n + k. */
    SWAP(p[0], p[1], 1, ones);
    SWAP(p[2], p[3], 1, ones);
    SWAP(p[0], p[2], 2, twos);
    SWAP(p[1], p[3], 2, twos);
    if (number > 4) {
        SWAP(p[4], p[5], 1, ones);
        SWAP(p[6], p[7], 1, ones);
        SWAP(p[4], p[6], 2, twos);
        SWAP(p[5], p[7], 2, twos);
    }
    SWAP(p[0], p[4], 4, fours);
    SWAP(p[1], p[5], 4, fours);
    SWAP(p[2], p[6], 4, fours);
    SWAP(p[3], p[7], 4, fours);
    UNPACK(q, epi8, 0, p[0], p[1]);
    UNPACK(q, epi8, 2, p[2], p[3]);
    UNPACK(q, epi8, 4, p[4], p[5]);
    UNPACK(q, epi8, 6, p[6], p[7]);
    UNPACK(p, epi16, 0, q[0], q[2]);
    UNPACK(p, epi16, 2, q[1], q[3]);
    UNPACK(p, epi16, 4, q[4], q[6]);
    UNPACK(p, epi16, 6, q[5], q[7]);
    UNPACK(bytes, epi32, 0, p[0], p[4]);
    UNPACK(bytes, epi32, 2, p[1], p[5]);
    UNPACK(bytes, epi32, 4, p[2], p[6]);
    UNPACK(bytes, epi32, 6, p[3], p[7]);
}
#undef SWAP
#undef UNPACK

/* out[c] = 2 · (number in the planes) − minus[c / 32] for 256 channels, of numbers below 2^15 in 8, 12 or 16 planes. */
static void expand_256(const uint8_t *planes, int num_planes, const int32_t minus[8], int32_t *out)
{
    __m256i low[8], high[8];
    int k;
    bytes_of_planes(planes, 8, low);
    if (num_planes > 12)
        bytes_of_planes(planes + 8 * 32, 8, high);
    else if (num_planes > 8)
        bytes_of_planes(planes + 8 * 32, 4, high);
    else
        memset(high, 0, sizeof high);
    for (k = 0; k < 8; k++) {
        const __m256i less = _mm256_set1_epi32(minus[k / 2]), below = _mm256_set1_epi32(minus[4 + k / 2]);
        const __m256i one = _mm256_unpacklo_epi8(low[k], high[k]), two = _mm256_unpackhi_epi8(low[k], high[k]);
        __m256i *const to = (__m256i *)(void *)(out + 16 * k);
#define NUMBERS(both, half) _mm256_cvtepu16_epi32(_mm256_extracti128_si256(_mm256_add_epi16(both, both), half))
        _mm256_storeu_si256(to, _mm256_sub_epi32(NUMBERS(one, 0), less));
        _mm256_storeu_si256(to + 1, _mm256_sub_epi32(NUMBERS(two, 0), less));
        _mm256_storeu_si256(to + 16, _mm256_sub_epi32(NUMBERS(one, 1), below));
        _mm256_storeu_si256(to + 17, _mm256_sub_epi32(NUMBERS(two, 1), below));
#undef NUMBERS
    }
}
#endif

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

/* sums[o] = 2 · count − arrived of the window, for the channels from `first` up to `end`, where counting stopped. */
static void expand_counts(const bsnn_counts *counts, uint32_t width, int32_t first, int32_t end, int32_t channels,
                          const int32_t *arrived, int32_t *sums)
{
    int32_t c;
#ifdef BSNN_EXPAND_256
    if (end - first == 256 && counts->bound < 32768) {
        int32_t minus[8], k;
        for (k = 0; k < 8; k++)
            minus[k] = arrived[channels < 256 ? 32 * k / channels : 0];
        expand_256(counts->planes, counts->used, minus, sums + first);
        return;
    }
#endif
    for (c = first; c < end; c += channels)
        expand(counts->planes + (c - first) / 8, width, counts->used, end - c < channels ? end - c : channels, 2,
               arrived[c / channels], sums + c);
}

/* sums[o] = Σ weight · input of `channels` outputs in each of `windows` side by side, whose events sum up to `arrived`; writes
   up to 31 beyond. Several windows have a multiple of 32 channels each, and together at most as many as fill a vector. */
BSNN_APART static void count_channels(const uint8_t *weight, uint32_t row, const bsnn_events *events, int32_t windows,
                                      int32_t channels, const int32_t *arrived, int32_t *sums)
{
    const int32_t all = windows * channels;
    int32_t done, plane, n;
    for (done = 0; done < all;) {
        const uint32_t width = count_width(row - (uint32_t)done / 8);
        const int32_t wide = (int32_t)width * 8;
        const int32_t parts = width == BSNN_WIDEST && all - done > wide ? BSNN_TOGETHER : 1;
        bsnn_counts counts[BSNN_TOGETHER];
        for (n = 0; n < parts; n++)
            counts[n].bound = 0;
        for (plane = events->planes - 1; plane >= 0; plane--) {
            const bsnn_offset *rows = events->rows + events->begins[plane];
            uint32_t left = events->ends[plane] - events->begins[plane], some;
            int twice = 1;
            if (!left && plane && !counts[0].bound)
                continue;
            do {
                some = parts > 1 && left > BSNN_CHUNK ? BSNN_CHUNK : left;
                for (n = 0; n < parts; n++)
                    count_rows(width, weight + done / 8 + n * (int32_t)width, rows, some, events->no_row, twice, counts + n);
                rows += some;
                left -= some;
                twice = 0;
            } while (left);
        }
        for (n = 0; n < parts; n++, done += wide)
            expand_counts(counts + n, width, done, done + wide < all ? done + wide : all, channels, arrived, sums);
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
    const __m256i places = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)first));
    __m256i offsets = _mm256_mullo_epi32(places, by);
    int k;
    for (k = 0; k < BSNN_WORD_BITS; k += 8, bits >>= 8) {
        const __m128i set = _mm_loadl_epi64((const __m128i *)(const void *)(bits_of_byte + (bits & 255)));
        _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permutevar8x32_epi32(offsets, _mm256_cvtepu8_epi32(set)));
        offsets = _mm256_add_epi32(offsets, further);
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
