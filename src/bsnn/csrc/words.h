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

#if defined(__GNUC__) && !defined(BSNN_PORTABLE) && !defined(BSNN_SMALL)
#define BSNN_VECTORS
#endif
#if defined(BSNN_VECTORS) && defined(__SSE2__)
#include <immintrin.h>
#endif

/* Before functions that are called once, but faster if they have all registers to themselves. */
#ifdef BSNN_VECTORS
#define BSNN_APART __attribute__((noinline))
#else
#define BSNN_APART
#endif

/* Where a row of weights begins, in units of 2^BSNN_OFFSET_SHIFT bytes; processors add up to 2^3 for nothing. */
#ifndef BSNN_OFFSET_SHIFT
#define BSNN_OFFSET_SHIFT 0
#endif
#if defined(BSNN_OFFSET_BITS) && BSNN_OFFSET_BITS == 16
typedef uint16_t bsnn_offset;
#else
typedef uint32_t bsnn_offset;
#endif

#if BSNN_WORD_BITS == 64
typedef uint64_t bsnn_word;
#else
typedef uint32_t bsnn_word;
#endif

#endif
