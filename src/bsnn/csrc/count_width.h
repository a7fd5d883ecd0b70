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

static inline VECTOR COUNT_JOIN(load, COUNT_BYTES)(const uint8_t *at)
{
    VECTOR bits;
    memcpy(&bits, at, COUNT_BYTES);
    return bits;
}

#define ROW(n) COUNT_JOIN(load, COUNT_BYTES)(tap + ((size_t)row[n] << BSNN_OFFSET_SHIFT))

/* sum += a + b, and what is carried to the next higher bit. Where a ternary instruction gives any function of three, the
   carry is taken from a, b and the new sum: then no register needs a copy. Elsewhere it is taken without b, which is then
   read only once, from memory. */
#if COUNT_BYTES == 64 && defined(__AVX512F__)
#define TERNARY(a, b, c, table) (VECTOR) _mm512_ternarylogic_epi64((__m512i)(a), (__m512i)(b), (__m512i)(c), table)
#elif COUNT_BYTES == 32 && defined(__AVX512VL__)
#define TERNARY(a, b, c, table) (VECTOR) _mm256_ternarylogic_epi64((__m256i)(a), (__m256i)(b), (__m256i)(c), table)
#elif COUNT_BYTES == 16 && defined(__AVX512VL__)
#define TERNARY(a, b, c, table) (VECTOR) _mm_ternarylogic_epi64((__m128i)(a), (__m128i)(b), (__m128i)(c), table)
#endif
#ifdef TERNARY
#define FULL_ADD(carry, sum, a, b)                      \
    do {                                                \
        const VECTOR one_ = (a), two_ = (b);            \
        (sum) = TERNARY(sum, one_, two_, 0x96);         \
        (carry) = TERNARY(one_, two_, sum, 0xd4);       \
    } while (0)
#else
#define FULL_ADD(carry, sum, a, b)                      \
    do {                                                \
        const VECTOR one_ = (a), two_ = (b);            \
        const VECTOR odd_ = one_ ^ two_;                \
        (carry) = (~odd_ & one_) | (odd_ & (sum));      \
        (sum) ^= odd_;                                  \
    } while (0)
#endif

/* sum += carry, and what is carried on. */
#define HALF_ADD(carry, sum)                    \
    do {                                        \
        const VECTOR both_ = (carry) & (sum);   \
        (sum) ^= (carry);                       \
        (carry) = both_;                        \
    } while (0)

/* Adds 16 rows from `at` on; what is carried counts 16. */
#define ADD_16_ROWS(carry, at)                                 \
    do {                                                       \
        VECTOR two_a, two_b, four_a, four_b, eight_a, eight_b; \
        FULL_ADD(two_a, ones, ROW(at), ROW(at + 1));           \
        FULL_ADD(two_b, ones, ROW(at + 2), ROW(at + 3));       \
        FULL_ADD(four_a, twos, two_a, two_b);                  \
        FULL_ADD(two_a, ones, ROW(at + 4), ROW(at + 5));       \
        FULL_ADD(two_b, ones, ROW(at + 6), ROW(at + 7));       \
        FULL_ADD(four_b, twos, two_a, two_b);                  \
        FULL_ADD(eight_a, fours, four_a, four_b);              \
        FULL_ADD(two_a, ones, ROW(at + 8), ROW(at + 9));       \
        FULL_ADD(two_b, ones, ROW(at + 10), ROW(at + 11));     \
        FULL_ADD(four_a, twos, two_a, two_b);                  \
        FULL_ADD(two_a, ones, ROW(at + 12), ROW(at + 13));     \
        FULL_ADD(two_b, ones, ROW(at + 14), ROW(at + 15));     \
        FULL_ADD(four_b, twos, two_a, two_b);                  \
        FULL_ADD(eight_b, fours, four_a, four_b);              \
        FULL_ADD(carry, eights, eight_a, eight_b);             \
    } while (0)

/* Adds what counts 32 to the planes above; no channel has counted more than `bound`. */
#define ADD_UPPER(carry)                                \
    do {                                                \
        for (i = 0; i < levels; i++)                    \
            HALF_ADD(carry, upper[i]);                  \
        if (bound >> (5 + levels))                      \
            upper[levels++] = carry;                    \
    } while (0)

/* Counts, for every channel, the rows that have its bit set: those of plane k, 2^k times. Writes the bits of the counts,
   lowest first, and returns how many of them there are. */
static int COUNT_JOIN(count, COUNT_BYTES)(const uint8_t *weight, const bsnn_events *events, uint8_t *planes)
{
    VECTOR ones, twos, fours, eights, sixteens, upper[BSNN_MAX_PLANES - 5], carry;
    uint32_t bound = 0;
    int levels = 0, i;
    int32_t plane, column;
    memset(&ones, 0, sizeof ones);
    twos = fours = eights = sixteens = ones;
    for (plane = events->planes - 1; plane >= 0; plane--) {
        uint32_t rest = 0; /* rows that are not enough for a block, from all columns */
        if (bound) {       /* what was counted so far counts twice */
            bound *= 2;
            if (bound >> 5) {
                for (i = levels++; i > 0; i--)
                    upper[i] = upper[i - 1];
                upper[0] = sixteens;
            }
            sixteens = eights;
            eights = fours;
            fours = twos;
            twos = ones;
            memset(&ones, 0, sizeof ones);
        }
        for (column = 0; column <= events->columns; column++) {
            const int last = column == events->columns;
            const uint32_t *const end = events->ends + column * events->column_step + plane * events->plane_step;
            const uint32_t offset = last ? 0 : (uint32_t)(events->first + column) * events->tap_size;
            const int merged = last && events->columns;
            const bsnn_offset *row = merged ? events->rest : events->rows + end[0];
            const uint8_t *const tap = weight + offset;
            uint32_t left;
            if (merged)
                for (left = rest; left & 3; left++)
                    events->rest[left] = (bsnn_offset)events->no_row;
            else
                left = end[1] - end[0];
            for (; left >= 32; left -= 32, row += 32) {
                VECTOR other;
                ADD_16_ROWS(carry, 0);
                ADD_16_ROWS(other, 16);
                FULL_ADD(carry, sixteens, carry, other);
                bound += 32;
                ADD_UPPER(carry);
            }
            if (!last) {
                append_rows(row, left, BSNN_BLOCK, offset, events->rest + rest);
                rest += left;
                continue;
            }
            if (left >= 16) {
                ADD_16_ROWS(carry, 0);
                HALF_ADD(carry, sixteens);
                bound += 16;
                ADD_UPPER(carry);
                left -= 16;
                row += 16;
            }
            for (; left; left -= 4, row += 4) {
                VECTOR two_a, two_b;
                FULL_ADD(two_a, ones, ROW(0), ROW(1));
                FULL_ADD(two_b, ones, ROW(2), ROW(3));
                FULL_ADD(carry, twos, two_a, two_b);
                HALF_ADD(carry, fours);
                HALF_ADD(carry, eights);
                HALF_ADD(carry, sixteens);
                bound += 4;
                ADD_UPPER(carry);
            }
        }
    }
    memcpy(planes, &ones, COUNT_BYTES);
    memcpy(planes + COUNT_BYTES, &twos, COUNT_BYTES);
    memcpy(planes + 2 * COUNT_BYTES, &fours, COUNT_BYTES);
    memcpy(planes + 3 * COUNT_BYTES, &eights, COUNT_BYTES);
    memcpy(planes + 4 * COUNT_BYTES, &sixteens, COUNT_BYTES);
    for (i = 0; i < levels; i++)
        memcpy(planes + (size_t)(5 + i) * COUNT_BYTES, upper + i, COUNT_BYTES);
    return 5 + levels;
}

#undef COUNT_BYTES
#undef VECTOR
#undef ROW
#undef TERNARY
#undef ADD_16_ROWS
#undef ADD_UPPER
#undef FULL_ADD
#undef HALF_ADD
#undef COUNT_JOIN
#undef COUNT_JOIN_
