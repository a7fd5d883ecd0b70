/* Bit-sliced counting, for COUNT_BYTES · 8 output channels at a time; included once for each width.

   A row is one bit a channel. Rows are added as columns of full adders (a Harley-Seal tree): bit k of the count of every
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

static inline VECTOR COUNT_JOIN(load, COUNT_BYTES)(const uint8_t *at)
{
    VECTOR bits;
    memcpy(&bits, at, COUNT_BYTES);
    return bits;
}

#define ROW(n) COUNT_JOIN(load, COUNT_BYTES)(weight + row[n])

#if COUNT_BYTES == 64 && defined(__AVX512F__)
#define SUM(a, b, c) (VECTOR) _mm512_ternarylogic_epi64((__m512i)(a), (__m512i)(b), (__m512i)(c), 0x96)
#define MAJORITY(a, b, c) (VECTOR) _mm512_ternarylogic_epi64((__m512i)(a), (__m512i)(b), (__m512i)(c), 0xe8)
#elif COUNT_BYTES == 32 && defined(__AVX512VL__)
#define SUM(a, b, c) (VECTOR) _mm256_ternarylogic_epi64((__m256i)(a), (__m256i)(b), (__m256i)(c), 0x96)
#define MAJORITY(a, b, c) (VECTOR) _mm256_ternarylogic_epi64((__m256i)(a), (__m256i)(b), (__m256i)(c), 0xe8)
#elif COUNT_BYTES == 16 && defined(__AVX512VL__)
#define SUM(a, b, c) (VECTOR) _mm_ternarylogic_epi64((__m128i)(a), (__m128i)(b), (__m128i)(c), 0x96)
#define MAJORITY(a, b, c) (VECTOR) _mm_ternarylogic_epi64((__m128i)(a), (__m128i)(b), (__m128i)(c), 0xe8)
#else
#define SUM(a, b, c) ((a) ^ (b) ^ (c))
#define MAJORITY(a, b, c) (((a) & (b)) | (((a) ^ (b)) & (c)))
#endif

/* sum += a + b, and what is carried to the next higher bit. */
#define FULL_ADD(carry, sum, a, b)              \
    do {                                        \
        const VECTOR a_ = (a), b_ = (b);        \
        (carry) = MAJORITY(a_, b_, sum);        \
        (sum) = SUM(a_, b_, sum);               \
    } while (0)

/* sum += carry, and what is carried on. */
#define HALF_ADD(carry, sum)                    \
    do {                                        \
        const VECTOR both_ = (carry) & (sum);   \
        (sum) ^= (carry);                       \
        (carry) = both_;                        \
    } while (0)

/* Counts, for every channel, the rows that have its bit set: those of list k, 2^k times. `lengths` are multiples of 4.
   Writes the bits of the counts, lowest first, and returns how many of them there are. */
static int COUNT_JOIN(count, COUNT_BYTES)(const uint8_t *weight, const uint32_t *rows, const uint32_t *lengths,
                                          size_t capacity, int lists, uint8_t *planes)
{
    VECTOR ones, twos, fours, eights, upper[BSO_MAX_PLANES - 4], four, carry;
    uint32_t bound = 0; /* no channel has counted more */
    int levels = 0, list, i;
    memset(&ones, 0, sizeof ones);
    twos = fours = eights = ones;
    for (list = lists - 1; list >= 0; list--) {
        const uint32_t *row = rows + (size_t)list * capacity;
        uint32_t left = lengths[list];
        if (bound) { /* what was counted so far counts twice */
            bound *= 2;
            if (bound >> 4) {
                for (i = levels++; i > 0; i--)
                    upper[i] = upper[i - 1];
                upper[0] = eights;
            }
            eights = fours;
            fours = twos;
            twos = ones;
            memset(&ones, 0, sizeof ones);
        }
        for (; left >= 16; left -= 16, row += 16) {
            VECTOR two_a, two_b, four_a, four_b, eight_a, eight_b;
            FULL_ADD(two_a, ones, ROW(0), ROW(1));
            FULL_ADD(two_b, ones, ROW(2), ROW(3));
            FULL_ADD(four_a, twos, two_a, two_b);
            FULL_ADD(two_a, ones, ROW(4), ROW(5));
            FULL_ADD(two_b, ones, ROW(6), ROW(7));
            FULL_ADD(four_b, twos, two_a, two_b);
            FULL_ADD(eight_a, fours, four_a, four_b);
            FULL_ADD(two_a, ones, ROW(8), ROW(9));
            FULL_ADD(two_b, ones, ROW(10), ROW(11));
            FULL_ADD(four_a, twos, two_a, two_b);
            FULL_ADD(two_a, ones, ROW(12), ROW(13));
            FULL_ADD(two_b, ones, ROW(14), ROW(15));
            FULL_ADD(four_b, twos, two_a, two_b);
            FULL_ADD(eight_b, fours, four_a, four_b);
            FULL_ADD(carry, eights, eight_a, eight_b);
            bound += 16;
            for (i = 0; i < levels; i++)
                HALF_ADD(carry, upper[i]);
            if (bound >> (4 + levels))
                upper[levels++] = carry;
        }
        for (; left >= 4; left -= 4, row += 4) {
            VECTOR two_a, two_b;
            FULL_ADD(two_a, ones, ROW(0), ROW(1));
            FULL_ADD(two_b, ones, ROW(2), ROW(3));
            FULL_ADD(four, twos, two_a, two_b);
            HALF_ADD(four, fours);
            HALF_ADD(four, eights);
            bound += 4;
            for (i = 0; i < levels; i++)
                HALF_ADD(four, upper[i]);
            if (bound >> (4 + levels))
                upper[levels++] = four;
        }
    }
    memcpy(planes, &ones, COUNT_BYTES);
    memcpy(planes + COUNT_BYTES, &twos, COUNT_BYTES);
    memcpy(planes + 2 * COUNT_BYTES, &fours, COUNT_BYTES);
    memcpy(planes + 3 * COUNT_BYTES, &eights, COUNT_BYTES);
    for (i = 0; i < levels; i++)
        memcpy(planes + (size_t)(4 + i) * COUNT_BYTES, upper + i, COUNT_BYTES);
    return 4 + levels;
}

#undef COUNT_BYTES
#undef VECTOR
#undef ROW
#undef SUM
#undef MAJORITY
#undef FULL_ADD
#undef HALF_ADD
#undef COUNT_JOIN
#undef COUNT_JOIN_
