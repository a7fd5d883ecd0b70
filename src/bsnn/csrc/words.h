/* Words of bits, and which vectors the compiler has. */

#ifndef BSNN_WORDS_H
#define BSNN_WORDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Spikes are bits, packed into words of this many bits. */
#ifndef BSNN_WORD_BITS
#define BSNN_WORD_BITS 64
#endif

#if defined(__GNUC__) && !defined(BSNN_PORTABLE)
#define BSNN_VECTORS
#endif
#if defined(BSNN_VECTORS) && defined(__SSE2__)
#include <immintrin.h>
#endif

#if BSNN_WORD_BITS == 64
typedef uint64_t bsnn_word;
#else
typedef uint32_t bsnn_word;
#endif

#endif
