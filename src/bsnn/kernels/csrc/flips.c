/* Flips of one-bit weights; src/bsnn/kernels/_flips.py calls it. A bit turns where W M is above a limit, which is compared in
   single precision, as torch does: the same weights flip. */

#include "train.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* Which of up to eight weights flip; what is not a number is above no limit. */
static uint32_t turned(const float *momentum, uint32_t bits, int64_t number, float limit)
{
    uint32_t flips = 0;
    int k;
#if defined(__AVX2__)
    if (number >= 8) {
        const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const __m256i found = _mm256_and_si256(_mm256_set1_epi32((int32_t)bits), each);
        const __m256i negative = _mm256_cmpeq_epi32(found, _mm256_setzero_si256());
        const __m256 signs = _mm256_and_ps(_mm256_castsi256_ps(negative), _mm256_set1_ps(-0.0f));
        const __m256 product = _mm256_xor_ps(_mm256_loadu_ps(momentum), signs);
        return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(product, _mm256_set1_ps(limit), _CMP_GT_OQ));
    }
#endif
    for (k = 0; k < 8 && k < number; k++)
        flips |= (uint32_t)((bits >> k & 1 ? momentum[k] : -momentum[k]) > limit) << k;
    return flips;
}

/* Turns bits of `number` weights, and counts them: one count for each thread. */
void bsnn_flip(const float *momentum, uint8_t *bits, const float *limit, const int64_t *number, int64_t *counts,
               int32_t rank, int32_t threads)
{
    const int64_t bytes = (*number + 7) / 8;
    int64_t byte, count = 0;
    for (byte = bytes * rank / threads; byte < bytes * (rank + 1) / threads; byte++) {
        uint32_t flips = turned(momentum + 8 * byte, bits[byte], *number - 8 * byte, *limit);
        bits[byte] ^= (uint8_t)flips;
        for (; flips; flips &= flips - 1)
            count++;
    }
    counts[rank] = count;
}
