/* Which of the libraries this processor can run: 0 baseline, 1 also avx2, 2 also avx512. */

#include <stdint.h>

int32_t bsnn_level(void);

int32_t bsnn_level(void)
{
#if defined(__x86_64__)
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                     __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl");
    return avx2 ? avx512 ? 2 : 1 : 0;
#else
    return 0;
#endif
}
