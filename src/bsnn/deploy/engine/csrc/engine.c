/* The inference engine; engine.h says how it is called, docs/model-file.md what it computes.

   Synapses of one-bit weights over spikes take nearly all the time. They are computed by counting (count.h): from lists
   of the spikes of whole rows (convolution.h), or with BSNN_SMALL from lists of one window, which take less memory. */

#include "engine.h"
#ifdef BSNN_SMALL
#include "count.h"
#else
#include "convolution.h"
#endif

#ifdef BSNN_THREADS
#include <sched.h>
#endif

/* Right shifts of negative numbers round down everywhere we know of; where not, this does not compile. */
typedef char bsnn_shifts_round_down[(-3 >> 1) == -2 ? 1 : -1];

/* Which ops the network has; the code of others is left out. */
#ifndef BSNN_OPS
#define BSNN_OPS ~0u
#endif
#define HAS(op) ((BSNN_OPS >> (op)) & 1u)

#define LARGEST 1073741824 /* 2^30: fixed values lie between minus this and this */

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

/* ---- bits of numbers ---- */

/* Packs bytes of 0 and 1 into a word of zeros, from bit `first` on, a multiple of 4; reads up to 3 zeros beyond. */
static void pack(const uint8_t *spikes, int32_t first, int32_t number, bsnn_word *out)
{
    int32_t c;
    for (c = 0; c < number; c += 4) {
        const uint32_t four = spikes[c] | (uint32_t)spikes[c + 1] << 8 | (uint32_t)spikes[c + 2] << 16 |
                              (uint32_t)spikes[c + 3] << 24;
        *out |= (bsnn_word)(four * 0x10204080u >> 28) << (first + c);
    }
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

/* u = sat(round_shift(m · leak, 16) + current), spike at the threshold, soft reset. */
static void fire(const int32_t *restrict current, int32_t *restrict membrane, int32_t channels, int32_t leak,
                 int32_t threshold, uint8_t *restrict spikes)
{
    int32_t c;
    for (c = 0; c < channels; c++) {
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
    const int32_t place = y < v->ring ? y : y % v->ring; /* few divisions */
    if (v->local)
        return span->scratch + v->offset;
    return span->base + v->offset + v->step * (size_t)step + v->row * (size_t)place + v->pixel * (size_t)x;
}

/* The numbers of some pixels of the input, side by side. */
static inline void read_input(const bsnn_span *span, const bsnn_value *v, int32_t step, int32_t y, int32_t x,
                              int32_t pixels, int32_t *out)
{
    const bsnn_call *const call = span->call;
    const size_t frame = call->num_frames == 1 ? 0 : (size_t)(span->first_step + step);
    const size_t pixel = ((size_t)y * (size_t)v->width + (size_t)x) * (size_t)v->channels;
    const size_t at = (frame * (size_t)call->batch + (size_t)span->image) * call->model->frame + pixel;
    const int32_t size = pixels * v->channels;
    int32_t i, c;
    if (call->of_byte) {
        const uint8_t *const bytes = (const uint8_t *)call->frames + at;
        for (i = 0; i < size; i += v->channels)
            for (c = 0; c < v->channels; c++)
                out[i + c] = call->of_byte[c * 256 + bytes[i + c]];
    } else {
        const int16_t *const numbers = (const int16_t *)call->frames + at;
        for (i = 0; i < size; i++)
            out[i] = numbers[i];
    }
}

/* The integers of a pixel; writes up to 31 beyond. */
static inline void read_pixel(const bsnn_span *span, int32_t value, int32_t step, int32_t y, int32_t x, int32_t *out)
{
    const bsnn_value *const v = span->values + value;
    if (v->kind == BSNN_BITS)
        expand(pixel_of(span, value, step, y, x), (size_t)v->words * sizeof(bsnn_word), v->planes, v->channels, 1, 0,
               out);
    else if (v->kind == BSNN_FIXED)
        memcpy(out, pixel_of(span, value, step, y, x), (size_t)v->channels * sizeof *out);
    else
        read_input(span, v, step, y, x, 1, out);
}

/* Neurons of some pixels side by side, given their currents, or with `scaled` the sums that narrow products make currents of;
   several pixels only if their channels fill whole words, and if they are not scaled. */
static void fire_pixels(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x, int32_t pixels,
                        int scaled, const int32_t *current)
{
    const bsnn_value *const out = span->values + op->output;
    const size_t size = (size_t)out->height * (size_t)out->width, channels = (size_t)out->channels;
    const size_t pixel = (size_t)y * (size_t)out->width + (size_t)x, image = (size_t)span->image;
    const int32_t number = pixels * out->channels, all = pixels * out->words;
    bsnn_word *const words = (bsnn_word *)(void *)pixel_of(span, op->output, step, y, x);
    int32_t *membrane = (int32_t *)(void *)(span->scratch + op->membrane) + x * op->membrane_step;
    int32_t c = 0, w, here;
    if (span->call->membranes)
        membrane = span->call->membranes[op->neurons] + (image * size + pixel) * channels;
    else if (!step)
        memset(membrane, 0, (size_t)number * sizeof *membrane);
#ifdef LANES
    w = all - 1; /* the others are filled by whole vectors */
#else
    w = 0;
#endif
    for (; w < all; w++)
        words[w] = 0;
#ifdef LANES
    {
        uint8_t *const bits = (uint8_t *)words;
        const int halving = op->leak == 32768;
        if (scaled && halving)
            c = fire_vectors(op, 1, 1, current, membrane, number, bits);
        else if (scaled)
            c = fire_vectors(op, 1, 0, current, membrane, number, bits);
        else if (halving)
            c = fire_vectors(op, 0, 1, current, membrane, number, bits);
        else
            c = fire_vectors(op, 0, 0, current, membrane, number, bits);
    }
#endif
    (void)scaled;
    for (; c < number; c += here) { /* up to the next word */
        uint8_t spikes[BSNN_WORD_BITS] = {0};
        const int32_t left = number - c, room = BSNN_WORD_BITS - (c & (BSNN_WORD_BITS - 1));
        here = left < room ? left : room;
        fire(current + c, membrane + c, here, op->leak, op->threshold, spikes);
        pack(spikes, c % BSNN_WORD_BITS, here, words + c / BSNN_WORD_BITS);
    }
    if (span->call->records) {
        const size_t time = (size_t)(span->first_step + step) * (size_t)span->call->batch + image;
        uint8_t *const record = span->call->records[op->neurons] + (time * size + pixel) * channels;
        for (c = 0; c < number; c++)
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
    if (done < channels)
        scale(sums, op->multiplier, op->offset, done, channels, op->shift, op->wide);
    if (fused)
        fire_pixels(span, op, step, y, x, 1, done > 0, sums);
    else
        memcpy(pixel_of(span, op->output, step, y, x), sums, (size_t)channels * sizeof *sums);
}

#ifdef BSNN_SMALL
/* Lists the rows of weights that the spikes of group g in a window name, the lists of all planes one after another, and
   writes where each of them ends, after a zero. Every list is filled up with rows of zeros to a multiple of 4. Returns the
   sum of the window. */
static int32_t list_window(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x, int32_t g,
                           bsnn_offset *list, uint32_t *ends)
{
    const bsnn_value *const in = span->values + op->input;
    const int32_t part = in->channels / op->groups, first = g * part, last = first + part;
    const uint32_t row = op->row >> BSNN_OFFSET_SHIFT;
    const uint32_t no_row = (uint32_t)(op->kernel[0] * op->kernel[1] * in->channels) * row;
    const int32_t left = x * op->stride[1] - op->padding[1];
    bsnn_offset *out = list;
    int32_t arrived = 0, p, i, j, w;
    ends[0] = 0;
    for (p = 0; p < in->planes; p++) {
        for (i = 0; i < op->kernel[0]; i++) {
            const int32_t from_y = y * op->stride[0] - op->padding[0] + i * op->dilation[0];
            uint32_t tap = (uint32_t)(i * op->kernel[1] * in->channels);
            int32_t from_x = left;
            const uint8_t *line;
            if (from_y < 0 || from_y >= in->height)
                continue;
            line = pixel_of(span, op->input, step, from_y, 0) + (size_t)(p * in->words) * sizeof(bsnn_word);
            for (j = 0; j < op->kernel[1]; j++, from_x += op->dilation[1], tap += (uint32_t)in->channels)
                if (from_x >= 0 && from_x < in->width) {
                    const bsnn_word *const words = (const bsnn_word *)(const void *)(line + (size_t)from_x * in->pixel);
                    for (w = first / BSNN_WORD_BITS; w * BSNN_WORD_BITS < last; w++)
                        out = list_bits(bits_between(words[w], first - w * BSNN_WORD_BITS, last - w * BSNN_WORD_BITS),
                                        tap + (uint32_t)(w * BSNN_WORD_BITS), row, out);
                }
        }
        arrived += (int32_t)((uint32_t)(out - list) - ends[p]) << p;
        while ((out - list) & 3)
            *out++ = (bsnn_offset)no_row;
        ends[p + 1] = (uint32_t)(out - list);
    }
    return arrived;
}

static void count_window(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const in = span->values + op->input;
    const int32_t made = span->values[op->output].channels / op->groups;
    bsnn_offset *const list = (bsnn_offset *)(void *)(span->scratch + op->lists);
    int32_t *const sums = (int32_t *)(void *)(span->scratch + op->sums);
    uint32_t ends[16];
    bsnn_events events;
    int32_t g;
    events.rows = list;
    events.begins = ends;
    events.ends = ends + 1;
    events.planes = in->planes;
    for (g = 0; g < op->groups; g++) {
        const int32_t arrived = list_window(span, op, step, y, x, g, list, ends);
        count_channels(op->weight, op->row, &events, 1, made, &arrived, sums + g * made);
    }
    finish_pixel(span, op, step, y, x, sums);
}
#else
/* What a synapse of one-bit weights reads and works on. */
static bsnn_convolution convolution_of(const bsnn_span *span, const bsnn_op *op)
{
    const bsnn_value *const in = span->values + op->input;
    bsnn_convolution k;
    k.channels = in->channels;
    k.height = in->height;
    k.width = in->width;
    k.planes = in->planes;
    k.words = in->words;
    k.outs = span->values[op->output].channels;
    if (op->windows > 1)
        k.outs = (k.outs + 31) / 32 * 32;
    memcpy(k.kernel, op->kernel, sizeof k.kernel);
    memcpy(k.stride, op->stride, sizeof k.stride);
    memcpy(k.padding, op->padding, sizeof k.padding);
    memcpy(k.dilation, op->dilation, sizeof k.dilation);
    k.groups = op->groups;
    k.windows = op->windows;
    k.row = op->row;
    k.weight = op->weight;
    k.list_capacity = op->list_capacity;
    k.lists = (bsnn_offset *)(void *)(span->scratch + op->lists);
    k.list_ends = (uint32_t *)(void *)(span->scratch + op->ends);
    k.rows = (bsnn_offset *)(void *)(span->scratch + op->rows);
    k.row_ends = (uint32_t *)(void *)(span->scratch + op->row_ends);
    k.row_capacity = op->row_capacity;
    k.window = (bsnn_offset *)(void *)(span->scratch + op->window);
    return k;
}

/* Asks for the weights of a layer: after the layers before it, most of them are no longer in the second cache, and counting
   reads them in no order that the processor could foresee. */
static inline void prefetch_weights(const bsnn_convolution *k)
{
#ifdef BSNN_VECTORS
    const size_t bytes = (size_t)(k->kernel[0] * taps_across(k) * k->channels) * k->row;
    size_t at;
    for (at = 0; at < bytes; at += 64)
        __builtin_prefetch(k->weight + at, 0, 2);
#else
    (void)k;
#endif
}

BSNN_APART static void run_count(const bsnn_span *span, const bsnn_op *op, int32_t steps, int32_t first, int32_t last)
{
    const bsnn_convolution k = convolution_of(span, op);
    const int32_t width = span->values[op->output].width;
    int32_t *const sums = (int32_t *)(void *)(span->scratch + op->sums);
    int32_t y, x, n, row, step, needed[2], listed = 0;
    prefetch_weights(&k);
    for (y = first; y < last; y++) {
        rows_to_list(&k, y, listed, needed);
        for (row = needed[0]; row < needed[1]; row++)
            for (step = 0; step < steps; step++)
                list_row(&k, step, row, (const bsnn_word *)(const void *)pixel_of(span, op->input, step, row, 0));
        listed = row;
        for (step = 0; step < steps; step++) {
            gather_columns(&k, step, y);
            for (x = 0; x < width; x += k.windows) {
                count_windows(&k, x, sums);
                for (n = 0; n < k.windows && x + n < width; n++)
                    finish_pixel(span, op, step, y, x + n, sums + n * k.outs);
            }
        }
    }
}
#endif

/* sums[o] += Σ values[n] · weight[rows[n]][o], for an even number of rows. Sums may wrap around on the way, not at the
   end. */
static void multiply(const uint8_t *weight, const uint32_t *rows, const int16_t *values, uint32_t number,
                     int32_t channels, int32_t *sums)
{
    int32_t c;
    uint32_t n;
#if defined(BSNN_VECTORS) && defined(__AVX2__)
    /* Two rows at a time: 16-bit products in pairs. */
    for (c = 0; c + 32 <= channels; c += 32) {
        const uint8_t *const block = weight + (size_t)c * 2;
        __m256i sum[4], *const to = (__m256i *)(void *)(sums + c);
        sum[0] = sum[1] = sum[2] = sum[3] = _mm256_setzero_si256();
        for (n = 0; n < number; n += 2) {
            const __m256i *const one = (const __m256i *)(const void *)(block + rows[n]);
            const __m256i *const two = (const __m256i *)(const void *)(block + rows[n + 1]);
            const __m256i a = _mm256_loadu_si256(one), b = _mm256_loadu_si256(two);
            const __m256i a_next = _mm256_loadu_si256(one + 1), b_next = _mm256_loadu_si256(two + 1);
            int32_t both;
            memcpy(&both, values + n, sizeof both);
            const __m256i pair = _mm256_set1_epi32(both);
            sum[0] = _mm256_add_epi32(sum[0], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair));
            sum[1] = _mm256_add_epi32(sum[1], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair));
            sum[2] = _mm256_add_epi32(sum[2], _mm256_madd_epi16(_mm256_unpacklo_epi16(a_next, b_next), pair));
            sum[3] = _mm256_add_epi32(sum[3], _mm256_madd_epi16(_mm256_unpackhi_epi16(a_next, b_next), pair));
        }
        for (n = 0; n < 4; n += 2) {
            const __m256i low = _mm256_permute2x128_si256(sum[n], sum[n + 1], 0x20);
            const __m256i high = _mm256_permute2x128_si256(sum[n], sum[n + 1], 0x31);
            _mm256_storeu_si256(to + n, _mm256_add_epi32(_mm256_loadu_si256(to + n), low));
            _mm256_storeu_si256(to + n + 1, _mm256_add_epi32(_mm256_loadu_si256(to + n + 1), high));
        }
    }
    for (; c < channels; c += 16) {
        const uint8_t *const block = weight + (size_t)c * 2;
        __m256i low = _mm256_setzero_si256(), high = low, halves[2];
        int32_t rest[16] = {0}, *to = sums + c;
        if (channels - c < 16)
            to = memcpy(rest, to, (size_t)(channels - c) * sizeof *sums);
        for (n = 0; n < number; n += 2) {
            const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(block + rows[n]));
            const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(block + rows[n + 1]));
            int32_t two;
            memcpy(&two, values + n, sizeof two);
            const __m256i pair = _mm256_set1_epi32(two);
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair));
        }
        memcpy(halves, to, sizeof halves);
        halves[0] = _mm256_add_epi32(halves[0], _mm256_permute2x128_si256(low, high, 0x20));
        halves[1] = _mm256_add_epi32(halves[1], _mm256_permute2x128_si256(low, high, 0x31));
        memcpy(to, halves, sizeof halves);
        if (channels - c < 16)
            memcpy(sums + c, rest, (size_t)(channels - c) * sizeof *sums);
    }
#else
    for (n = 0; n < number; n++) {
        const int16_t *const row = (const int16_t *)(const void *)(weight + rows[n]);
        const int32_t x = values[n];
        for (c = 0; c < channels; c++)
            sums[c] = (int32_t)((uint32_t)sums[c] + (uint32_t)(x * row[c]));
    }
#endif
}

/* The same for any number of rows, of which an odd one is followed by room for one more; returns how many are left. */
static uint32_t multiply_all(const bsnn_op *op, uint32_t *rows, int16_t *values, uint32_t number, int32_t channels,
                             int32_t *sums)
{
    if (number & 1) { /* one more, of no weight */
        rows[number] = 0;
        values[number++] = 0;
    }
    multiply(op->weight, rows, values, number, channels, sums);
    return 0;
}

/* The numbers of some pixels side by side, several only of the input, as a synapse of 16-bit weights takes them; writes up
   to 31 beyond. */
static inline void read_shifted(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x,
                                int32_t pixels, int32_t *out)
{
    const bsnn_value *const in = span->values + op->input;
    int32_t c;
    if (in->kind == BSNN_INPUT)
        read_input(span, in, step, y, x, pixels, out);
    else
        read_pixel(span, op->input, step, y, x, out);
    if (in->kind == BSNN_FIXED)
        for (c = 0; c < in->channels; c++) {
            const int64_t shifted = ((int64_t)out[c] + (INT64_C(1) << op->input_shift >> 1)) >> op->input_shift;
            out[c] = (int32_t)(shifted < -32768 ? -32768 : shifted > 32767 ? 32767 : shifted);
        }
}

/* Collects rows of weights and the numbers that they meet, and multiplies whenever there is no room for more. */
static void dense_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const in = span->values + op->input, *const out = span->values + op->output;
    const int32_t made = out->channels / op->groups;
    const uint32_t capacity = (uint32_t)op->row_capacity; /* even */
    const int32_t across = op->dilation[1], left = x * op->stride[1] - op->padding[1];
    uint32_t *const rows = (uint32_t *)(void *)(span->scratch + op->rows);
    int16_t *const numbers = (int16_t *)(void *)(rows + capacity);
    int32_t *const line = (int32_t *)(void *)(span->scratch + op->ends);
    int32_t *const sums = (int32_t *)(void *)(span->scratch + op->sums);
    uint32_t number = 0;
    int32_t first = 0, end = op->kernel[1], taps = 1, part, i, j, c, g;
    while (first < end && left + first * across < 0)
        first++;
    while (first < end && left + (end - 1) * across >= in->width)
        end--;
    if (in->kind == BSNN_INPUT && across == 1 && op->groups == 1 && first < end)
        taps = end - first; /* they lie side by side */
    part = taps * in->channels / op->groups;
    memset(sums, 0, (size_t)out->channels * sizeof *sums);
    for (i = 0; i < op->kernel[0]; i++) {
        const int32_t from_y = y * op->stride[0] - op->padding[0] + i * op->dilation[0];
        uint32_t row = (uint32_t)((i * op->kernel[1] + first) * in->channels) * op->row;
        if (from_y < 0 || from_y >= in->height)
            continue;
        for (j = first; j < end; j += taps) {
            read_shifted(span, op, step, from_y, left + j * across, taps, line);
            for (g = 0; g < op->groups; g++)
                for (c = g * part; c < (g + 1) * part;) {
                    const int32_t left_over = (g + 1) * part - c, room = (int32_t)(capacity - number);
                    const int32_t stop = c + (left_over < room ? left_over : room);
                    for (; c < stop; c++, row += op->row) {
                        rows[number] = row;
                        numbers[number] = (int16_t)line[c];
                        number += line[c] != 0;
                    }
                    if (number == capacity || op->groups > 1)
                        number = multiply_all(op, rows, numbers, number, made, sums + g * made);
                }
        }
    }
    multiply_all(op, rows, numbers, number, made, sums);
    finish_pixel(span, op, step, y, x, sums);
}

/* Whether to go on when all bits may be 0: a small processor saves the work, others do better without the question. */
#ifdef BSNN_SMALL
#define MORE(bits) (bits)
#else
#define MORE(bits) 1
#endif

/* number += bits · 2^at, in every channel of a word; bits of a number are `stride` words apart. */
static inline void add_bits(bsnn_word *number, int32_t planes, int32_t stride, int32_t at, bsnn_word bits)
{
    for (; MORE(bits) && at < planes; at++) {
        const bsnn_word carry = number[at * stride] & bits;
        number[at * stride] ^= bits;
        bits = carry;
    }
}

/* number = max(number, other), in every channel of a word. */
static void max_bits(bsnn_word *number, const bsnn_word *other, int32_t planes, int32_t stride)
{
    bsnn_word larger = 0, equal = ~(bsnn_word)0;
    int32_t p;
    for (p = (planes - 1) * stride; p >= 0; p -= stride) {
        larger |= equal & other[p] & ~number[p];
        equal &= ~(other[p] ^ number[p]);
    }
    for (p = 0; p < planes * stride; p += stride)
        number[p] = (other[p] & larger) | (number[p] & ~larger);
}

/* Adds a pixel of spikes or counts to what a window has so far, or takes the larger ones. */
static inline void pool_bits(const bsnn_span *span, const bsnn_op *op, const void *pixel, void *window)
{
    const bsnn_value *const in = span->values + op->input, *const out = span->values + op->output;
    const bsnn_word *const bits = pixel;
    bsnn_word *const number = window;
    int32_t w, p;
    for (w = 0; w < out->words; w++)
        if (op->largest)
            max_bits(number + w, bits + w, in->planes, in->words);
        else
            for (p = 0; p < in->planes; p++)
                add_bits(number + w, out->planes, out->words, p, bits[p * in->words + w]);
}

#ifndef BSNN_SMALL
/* How many of four pixels, from (top, left) on, spike: the pool that most networks have. */
static void pool_four(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x, int32_t top,
                      int32_t left)
{
    const int32_t words = span->values[op->input].words;
    const bsnn_word *const a = (const bsnn_word *)(const void *)pixel_of(span, op->input, step, top, left);
    const bsnn_word *const b = (const bsnn_word *)(const void *)pixel_of(span, op->input, step, top + 1, left);
    bsnn_word *const number = (bsnn_word *)(void *)pixel_of(span, op->output, step, y, x);
    int32_t w;
    for (w = 0; w < words; w++) {
        const bsnn_word one = a[w] ^ a[words + w], two = a[w] & a[words + w];
        const bsnn_word other_one = b[w] ^ b[words + w], other_two = b[w] & b[words + w];
        number[w] = one ^ other_one;
        number[words + w] = two ^ other_two ^ (one & other_one);
        number[2 * words + w] = two & other_two;
    }
}
#endif

/* The windows along one axis that pixel `at` lies in, from [0] up to [1]. */
static void windows_over(const bsnn_op *op, int32_t axis, int32_t at, int32_t number, int32_t out[2])
{
    const int32_t shifted = at + op->padding[axis], stride = op->stride[axis], size = op->kernel[axis];
    out[0] = shifted < size ? 0 : (shifted - size) / stride + 1;
    out[1] = shifted / stride + 1 < number ? shifted / stride + 1 : number;
}

/* Pools pixel (y, x) of the input, which was just made, into all windows that it lies in. */
static void scatter_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const out = span->values + op->output;
    const void *const pixel = pixel_of(span, op->input, step, y, x);
    int32_t rows[2], columns[2], i, j;
    windows_over(op, 0, y, out->height, rows);
    windows_over(op, 1, x, out->width, columns);
    for (i = rows[0]; i < rows[1]; i++)
        for (j = columns[0]; j < columns[1]; j++) {
            const int32_t top = i * op->stride[0] - op->padding[0], left = j * op->stride[1] - op->padding[1];
            void *const window = pixel_of(span, op->output, step, i, j);
            if (y == (top > 0 ? top : 0) && x == (left > 0 ? left : 0)) /* the first pixel of the window */
                memset(window, 0, out->pixel);
            pool_bits(span, op, pixel, window);
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
        if (op->largest)
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
    int32_t window[4], padded[4], i, j;
    clip(top, op->kernel[0], 0, in->height, window);
    clip(left, op->kernel[1], 0, in->width, window + 2);
    clip(top, op->kernel[0], -above, in->height + above, padded);
    clip(left, op->kernel[1], -beside, in->width + beside, padded + 2);
#ifndef BSNN_SMALL
    if (op->op == BSNN_POOL && !op->largest && in->planes == 1 && span->values[op->output].planes == 3 &&
        window[1] - window[0] == 2 && window[3] - window[2] == 2) {
        pool_four(span, op, step, y, x, window[0], window[2]);
        return;
    }
#endif
    if (HAS(BSNN_POOL) && op->op == BSNN_POOL) {
        void *const result = pixel_of(span, op->output, step, y, x);
        memset(result, 0, span->values[op->output].pixel);
        for (i = window[0]; i < window[1]; i++)
            for (j = window[2]; j < window[3]; j++)
                pool_bits(span, op, pixel_of(span, op->input, step, i, j), result);
    }
    if (HAS(BSNN_POOL_FIXED) && op->op == BSNN_POOL_FIXED)
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

/* Runs an op for a pixel, or neurons for several. */
static void run_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x, int32_t pixels)
{
#ifdef BSNN_SMALL
    if (HAS(BSNN_COUNT) && op->op == BSNN_COUNT)
        count_window(span, op, step, y, x);
#endif
    if (HAS(BSNN_DENSE) && op->op == BSNN_DENSE)
        dense_pixel(span, op, step, y, x);
    if (HAS(BSNN_LIF) && op->op == BSNN_LIF)
        fire_pixels(span, op, step, y, x, pixels, 0,
                    (const int32_t *)(const void *)pixel_of(span, op->input, step, y, x));
    if (HAS(BSNN_SCATTER) && op->op == BSNN_SCATTER)
        scatter_pixel(span, op, step, y, x);
    if ((HAS(BSNN_POOL) && op->op == BSNN_POOL) || (HAS(BSNN_POOL_FIXED) && op->op == BSNN_POOL_FIXED))
        pool_pixel(span, op, step, y, x);
    if (HAS(BSNN_ADD) && op->op == BSNN_ADD)
        add_pixel(span, op, step, y, x);
    if (HAS(BSNN_CONCAT) && op->op == BSNN_CONCAT)
        concat_pixel(span, op, step, y, x);
    if (HAS(BSNN_SCALE) && op->op == BSNN_SCALE)
        scale_pixel(span, op, step, y, x);
}

/* Some rows of a task: all ops at all time steps of a pixel before the next pixel; on a desktop, where the ops of a task are
   of one layer, all pixels of a row before the next time step, as they lie in memory. */
static void run_rows(const bsnn_span *span, const bsnn_task *task, int32_t steps, int32_t first, int32_t last)
{
    const bsnn_op *const ops = span->call->model->ops + task->op;
    const int32_t width = span->values[ops->output].width;
    int32_t y, x, step, i;
#ifdef BSNN_SMALL
    for (y = first; y < last; y++)
        for (x = 0; x < width; x++)
            for (step = 0; step < steps; step++)
                for (i = 0; i < task->ops; i++)
                    if (!ops[i].still || !(step + span->first_step))
                        run_pixel(span, ops + i, step, y, x, 1);
#else
    int32_t pixels = 1;
    if (ops->still)
        steps = span->first_step ? 0 : 1;
    if (ops->op == BSNN_LIF && span->values[ops->output].channels % BSNN_WORD_BITS == 0)
        pixels = width; /* they lie side by side */
    if (ops->op == BSNN_COUNT)
        run_count(span, ops, steps, first, last);
    else
        for (y = first; y < last; y++)
            for (step = 0; step < steps; step++)
                for (i = 0; i < task->ops; i++)
                    for (x = 0; x < width; x += pixels)
                        run_pixel(span, ops + i, step, y, x, pixels);
#endif
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
            for (i = 0; i < model->num_tasks; i++) {
                const bsnn_task *const task = model->tasks + i;
                const int32_t rows = task->last - task->first + 1;
                const int32_t first = rows * share / sharing, last = rows * (share + 1) / sharing;
                if (first < last)
                    run_rows(&span, task, steps, task->first + first, task->first + last);
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
