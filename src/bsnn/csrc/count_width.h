/* Bit-sliced counting, for COUNT_BYTES · 8 output channels at a time; included once for each width.

   A row has one bit per channel. Rows are added as columns of full adders (a Harley-Seal tree): bit k of the count of every
   channel is one vector, so that one logical instruction serves all channels. */

#define COUNT_JOIN_(a, b) a##b
#define COUNT_JOIN(a, b) COUNT_JOIN_(a, b)
#define VECTOR COUNT_JOIN(vector, COUNT_BYTES)

#if COUNT_BYTES == 4
typedef uint32_t VECTOR;
#elif COUNT_BYTES == 8
typedef uint64_t VECTOR;
#else
typedef uint64_t VECTOR __attribute__((vector_size(COUNT_BYTES)));
#endif

#define LOAD COUNT_JOIN(load, COUNT_BYTES)
static inline VECTOR LOAD(const uint8_t *at)
{
    VECTOR bits;
    memcpy(&bits, at, COUNT_BYTES);
    return bits;
}

#define ROW(n) LOAD(weight + ((size_t)row[n] << BSNN_OFFSET_SHIFT))

/* Numbers that count the same are added in pairs. Where a ternary instruction gives any function of three, a pair is its two
   numbers; then the carry is taken from both and the new sum, so that no register needs a copy. Elsewhere a pair is the first
   number and the exclusive or of both: that way two full adders in a row take 8 operations instead of 10 (the MDFA block of
   Demenkov, Kojevnikov, Kulikov and Yaroslavtsev, 2010). */
#define PAIR COUNT_JOIN(pair, COUNT_BYTES)
typedef struct {
    VECTOR a, b;
} PAIR;

#if COUNT_BYTES == 64 && defined(__AVX512F__)
#define TERNARY(a, b, c, table) (VECTOR) _mm512_ternarylogic_epi64((__m512i)(a), (__m512i)(b), (__m512i)(c), table)
#elif COUNT_BYTES == 32 && defined(__AVX512VL__)
#define TERNARY(a, b, c, table) (VECTOR) _mm256_ternarylogic_epi64((__m256i)(a), (__m256i)(b), (__m256i)(c), table)
#elif COUNT_BYTES == 16 && defined(__AVX512VL__)
#define TERNARY(a, b, c, table) (VECTOR) _mm_ternarylogic_epi64((__m128i)(a), (__m128i)(b), (__m128i)(c), table)
#endif

/* sum += both numbers of a pair, and what is carried to the next higher bit (ADD_PAIR); the same for two pairs, where what is
   carried is a pair (ADD_PAIRS). */
#ifdef TERNARY
#define MAKE_PAIR(pair, one, two)       \
    do {                                \
        (pair).a = (one);               \
        (pair).b = (two);               \
    } while (0)
#define ADD_PAIR(carry, sum, pair)                              \
    do {                                                        \
        (sum) = TERNARY(sum, (pair).a, (pair).b, 0x96);         \
        (carry) = TERNARY((pair).a, (pair).b, sum, 0xd4);       \
    } while (0)
#define ADD_PAIRS(carries, sum, one, two)       \
    do {                                        \
        ADD_PAIR((carries).a, sum, one);        \
        ADD_PAIR((carries).b, sum, two);        \
    } while (0)
#else
#define MAKE_PAIR(pair, one, two)       \
    do {                                \
        (pair).a = (one);               \
        (pair).b = (pair).a ^ (two);    \
    } while (0)
#define ADD_PAIR(carry, sum, pair)                              \
    do {                                                        \
        const VECTOR some_ = ((pair).a ^ (sum)) | (pair).b;     \
        (sum) ^= (pair).b;                                      \
        (carry) = some_ ^ (sum);                                \
    } while (0)
#define ADD_PAIRS(carries, sum, one, two)                       \
    do {                                                        \
        const VECTOR some_ = ((one).a ^ (sum)) | (one).b;       \
        (sum) ^= (one).b;                                       \
        (carries).a = some_ ^ (sum);                            \
        (carries).b = some_ ^ (~(two).b & ((two).a ^ (sum)));   \
        (sum) ^= (two).b;                                       \
    } while (0)
#endif

/* sum += carry, and what is carried on. */
#define HALF_ADD(carry, sum)                    \
    do {                                        \
        const VECTOR both_ = (carry) & (sum);   \
        (sum) ^= (carry);                       \
        (carry) = both_;                        \
    } while (0)

/* Adds rows from `at` on; what is carried is a pair that counts half as much as they may. */
#define ADD_4_ROWS(carries, at)                         \
    do {                                                \
        PAIR one_, two_;                                \
        MAKE_PAIR(one_, ROW(at), ROW((at) + 1));        \
        MAKE_PAIR(two_, ROW((at) + 2), ROW((at) + 3));  \
        ADD_PAIRS(carries, ones, one_, two_);           \
    } while (0)
#define ADD_8_ROWS(carries, at)                         \
    do {                                                \
        PAIR two_a, two_b;                              \
        ADD_4_ROWS(two_a, at);                          \
        ADD_4_ROWS(two_b, (at) + 4);                    \
        ADD_PAIRS(carries, twos, two_a, two_b);         \
    } while (0)
#define ADD_16_ROWS(carries, at)                        \
    do {                                                \
        PAIR four_a, four_b;                            \
        ADD_8_ROWS(four_a, at);                         \
        ADD_8_ROWS(four_b, (at) + 8);                   \
        ADD_PAIRS(carries, fours, four_a, four_b);      \
    } while (0)
#define ADD_32_ROWS(carries, at)                        \
    do {                                                \
        PAIR eight_a, eight_b;                          \
        ADD_16_ROWS(eight_a, at);                       \
        ADD_16_ROWS(eight_b, (at) + 16);                \
        ADD_PAIRS(carries, eights, eight_a, eight_b);   \
    } while (0)

/* Adds what counts 64 to the planes above; no channel has counted more than `bound`. */
#define ADD_UPPER(carry)                                \
    do {                                                \
        for (i = 0; i < levels; i++)                    \
            HALF_ADD(carry, upper[i]);                  \
        if (bound >> (6 + levels))                      \
            upper[levels++] = carry;                    \
    } while (0)

/* Counts, for every channel, how many of these rows have its bit set, and adds them to `counts`, or with `twice` to two times
   what was counted before.

   Few rows come before many: while they are waited for, the processor can go on with the others. */
static void COUNT_JOIN(count, COUNT_BYTES)(const uint8_t *weight, const bsnn_offset *row, uint32_t left,
                                           bsnn_offset no_row, int twice, bsnn_counts *counts)
{
    VECTOR ones, twos, fours, eights, sixteens, thirties, upper[BSNN_MAX_PLANES - 6], carry;
    uint32_t bound = counts->bound;
    int levels = 0, i;
#ifndef BSNN_SMALL
    bsnn_offset block[BSNN_BLOCK];
    const uint32_t some = left % BSNN_BLOCK;
    const bsnn_offset *const rest = row + some;
#endif
    memset(&ones, 0, sizeof ones);
    twos = fours = eights = sixteens = thirties = ones;
    if (bound) {
        const uint8_t *const planes = counts->planes;
        levels = counts->used - 6;
        for (i = 0; i < levels; i++)
            upper[i] = LOAD(planes + (size_t)(6 + i) * COUNT_BYTES);
        thirties = LOAD(planes + 5 * COUNT_BYTES);
        sixteens = LOAD(planes + 4 * COUNT_BYTES);
        eights = LOAD(planes + 3 * COUNT_BYTES);
        fours = LOAD(planes + 2 * COUNT_BYTES);
        twos = LOAD(planes + COUNT_BYTES);
        ones = LOAD(planes);
    }
    if (bound && twice) {
        bound *= 2;
        levels += bound >> (6 + levels) ? 1 : 0;
        for (i = levels - 1; i > 0; i--)
            upper[i] = upper[i - 1];
        if (levels)
            upper[0] = thirties;
        thirties = sixteens;
        sixteens = eights;
        eights = fours;
        fours = twos;
        twos = ones;
        memset(&ones, 0, sizeof ones);
    }
#ifndef BSNN_SMALL
    if (some) {
        row = fill_block(row, some, no_row, block);
        left += BSNN_BLOCK - some;
    }
#define FILLED (row == block)
#define NEXT(number) (row = FILLED ? rest : row + (number))
#else
#define FILLED 0
#define NEXT(number) (row += (number))
#endif
#ifndef BSNN_VECTORS
    for (; left & 15 || FILLED; left -= 4) {
        PAIR two;
        ADD_4_ROWS(two, 0);
        ADD_PAIR(carry, twos, two);
        HALF_ADD(carry, fours);
        HALF_ADD(carry, eights);
        HALF_ADD(carry, sixteens);
        HALF_ADD(carry, thirties);
        bound += 4;
        ADD_UPPER(carry);
        NEXT(4);
    }
#endif
    for (; left & 31 || FILLED; left -= 16) {
        PAIR eight;
        ADD_16_ROWS(eight, 0);
        ADD_PAIR(carry, eights, eight);
        HALF_ADD(carry, sixteens);
        HALF_ADD(carry, thirties);
        bound += 16;
        ADD_UPPER(carry);
        NEXT(16);
    }
#if COUNT_BYTES >= 32
    if (left & 32) {
#else
    while (left) {
#endif
        PAIR sixteen;
        ADD_32_ROWS(sixteen, 0);
        ADD_PAIR(carry, sixteens, sixteen);
        HALF_ADD(carry, thirties);
        bound += 32;
        ADD_UPPER(carry);
        left -= 32;
        row += 32;
    }
#if COUNT_BYTES >= 32
    for (; left; left -= 64, row += 64) {
        PAIR sixteen_a, sixteen_b, thirty;
        ADD_32_ROWS(sixteen_a, 0);
        ADD_32_ROWS(sixteen_b, 32);
        ADD_PAIRS(thirty, sixteens, sixteen_a, sixteen_b);
        ADD_PAIR(carry, thirties, thirty);
        bound += 64;
        ADD_UPPER(carry);
    }
#endif
    memcpy(counts->planes, &ones, COUNT_BYTES);
    memcpy(counts->planes + COUNT_BYTES, &twos, COUNT_BYTES);
    memcpy(counts->planes + 2 * COUNT_BYTES, &fours, COUNT_BYTES);
    memcpy(counts->planes + 3 * COUNT_BYTES, &eights, COUNT_BYTES);
    memcpy(counts->planes + 4 * COUNT_BYTES, &sixteens, COUNT_BYTES);
    memcpy(counts->planes + 5 * COUNT_BYTES, &thirties, COUNT_BYTES);
    for (i = 0; i < levels; i++)
        memcpy(counts->planes + (size_t)(6 + i) * COUNT_BYTES, upper + i, COUNT_BYTES);
#ifdef BSNN_VECTORS
    for (; (6 + i) % 4; i++)
        memset(counts->planes + (size_t)(6 + i) * COUNT_BYTES, 0, COUNT_BYTES);
#endif
    counts->bound = bound;
    counts->used = 6 + levels;
    (void)no_row;
}

#undef COUNT_BYTES
#undef VECTOR
#undef ROW
#undef LOAD
#undef TERNARY
#undef FILLED
#undef NEXT
#undef PAIR
#undef MAKE_PAIR
#undef ADD_PAIR
#undef ADD_PAIRS
#undef ADD_4_ROWS
#undef ADD_8_ROWS
#undef ADD_16_ROWS
#undef ADD_32_ROWS
#undef ADD_UPPER
#undef HALF_ADD
#undef COUNT_JOIN
#undef COUNT_JOIN_
