/* The inference engine; engine.h says how it is called, docs/model-file.md what it computes.

   Synapses of one-bit weights over spikes take nearly all the time. They are computed by counting; see convolution.h. */

#include "engine.h"
#include "convolution.h"

#ifdef BSNN_THREADS
#include <sched.h>
#endif

/* Right shifts of negative numbers round down everywhere we know of; where not, this does not compile. */
typedef char bsnn_shifts_round_down[(-3 >> 1) == -2 ? 1 : -1];

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

/* Packs bytes of 0 and 1 into words of zeros, from channel `first` on, a multiple of 4; reads up to 3 zeros beyond. */
static void pack(const uint8_t *spikes, int32_t first, int32_t channels, bsnn_word *out)
{
    int32_t c;
    for (c = first; c < channels; c += 4) {
        const uint32_t four = spikes[c] | (uint32_t)spikes[c + 1] << 8 | (uint32_t)spikes[c + 2] << 16 |
                              (uint32_t)spikes[c + 3] << 24;
        out[c / BSNN_WORD_BITS] |= (bsnn_word)(four * 0x10204080u >> 28) << c % BSNN_WORD_BITS;
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

/* u = sat(round_shift(m · leak, 16) + current), spike at the threshold, soft reset; from channel `first` on. */
static void fire(const int32_t *restrict current, int32_t *restrict membrane, int32_t first, int32_t channels,
                 int32_t leak, int32_t threshold, uint8_t *restrict spikes)
{
    int32_t c;
    for (c = first; c < channels; c++) {
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
    const size_t pixel = (size_t)y * (size_t)v->width + (size_t)x;
    const size_t size = v->kind == BSNN_BITS ? (size_t)v->planes * (size_t)v->words * sizeof(bsnn_word)
                                            : (size_t)v->channels * sizeof(int32_t);
    return span->base + v->offset + v->step * (size_t)step + pixel * size;
}

static const int16_t *input_pixel(const bsnn_span *span, int32_t value, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const v = span->values + value;
    const bsnn_call *const call = span->call;
    const size_t frame = call->num_frames == 1 ? 0 : (size_t)(span->first_step + step);
    const size_t pixel = (size_t)y * (size_t)v->width + (size_t)x;
    return call->frames + (frame * (size_t)call->batch + (size_t)span->image) * call->model->frame +
           pixel * (size_t)v->channels;
}

/* The integers of a pixel; writes up to 31 beyond. */
static void read_pixel(const bsnn_span *span, int32_t value, int32_t step, int32_t y, int32_t x, int32_t *out)
{
    const bsnn_value *const v = span->values + value;
    int32_t c;
    if (v->kind == BSNN_BITS)
        expand(pixel_of(span, value, step, y, x), (size_t)v->words * sizeof(bsnn_word), v->planes, v->channels, 1, 0,
               out);
    else if (v->kind == BSNN_FIXED)
        memcpy(out, pixel_of(span, value, step, y, x), (size_t)v->channels * sizeof *out);
    else {
        const int16_t *const numbers = input_pixel(span, value, step, y, x);
        for (c = 0; c < v->channels; c++)
            out[c] = numbers[c];
    }
}

/* Neurons of one pixel, given their currents, or with `scaled` the sums that narrow products make currents of. */
static void fire_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x, int scaled,
                       const int32_t *current)
{
    const bsnn_value *const out = span->values + op->output;
    const size_t size = (size_t)out->height * (size_t)out->width, channels = (size_t)out->channels;
    const size_t pixel = (size_t)y * (size_t)out->width + (size_t)x, image = (size_t)span->image;
    uint8_t *const spikes = span->scratch + op->spikes;
    bsnn_word *const words = (bsnn_word *)(void *)pixel_of(span, op->output, step, y, x);
    int32_t *membrane = (int32_t *)(void *)(span->scratch + op->membrane) + (size_t)x * channels;
    int32_t c = 0, w;
    if (span->call->membranes)
        membrane = span->call->membranes[op->neurons] + (image * size + pixel) * channels;
    else if (!step)
        memset(membrane, 0, channels * sizeof *membrane);
#ifdef LANES
    w = out->words - 1; /* the others are filled by whole vectors */
#else
    w = 0;
#endif
    for (; w < out->words; w++)
        words[w] = 0;
#ifdef LANES
    {
        uint8_t *const bits = (uint8_t *)words;
        const int halving = op->leak == 32768;
        if (scaled && halving)
            c = fire_vectors(op, 1, 1, current, membrane, out->channels, bits);
        else if (scaled)
            c = fire_vectors(op, 1, 0, current, membrane, out->channels, bits);
        else
            c = fire_vectors(op, 0, 0, current, membrane, out->channels, bits);
    }
#endif
    (void)scaled;
    fire(current, membrane, c, out->channels, op->leak, op->threshold, spikes);
    pack(spikes, c, out->channels, words);
    if (span->call->records) {
        const size_t time = (size_t)(span->first_step + step) * (size_t)span->call->batch + image;
        uint8_t *const record = span->call->records[op->neurons] + (time * size + pixel) * channels;
        for (c = 0; c < out->channels; c++)
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
    scale(sums, op->multiplier, op->offset, done, channels, op->shift, op->wide);
    if (fused)
        fire_pixel(span, op, step, y, x, done > 0, sums);
    else
        memcpy(pixel_of(span, op->output, step, y, x), sums, (size_t)channels * sizeof *sums);
}

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
    memcpy(k.kernel, op->kernel, sizeof k.kernel);
    memcpy(k.stride, op->stride, sizeof k.stride);
    memcpy(k.padding, op->padding, sizeof k.padding);
    memcpy(k.dilation, op->dilation, sizeof k.dilation);
    k.groups = op->groups;
    k.row = op->row;
    k.weight = op->weight;
    k.list_capacity = op->list_capacity;
    k.lists = (uint32_t *)(void *)(span->scratch + op->lists);
    k.list_ends = (uint32_t *)(void *)(span->scratch + op->ends);
    k.rows = (uint32_t *)(void *)(span->scratch + op->rows);
    k.row_ends = (uint32_t *)(void *)(span->scratch + op->row_ends);
    k.rest = (uint32_t *)(void *)(span->scratch + op->rest);
    return k;
}

static void run_count(const bsnn_span *span, const bsnn_op *op, int32_t steps, int32_t first, int32_t last)
{
    const bsnn_convolution k = convolution_of(span, op);
    const int32_t width = span->values[op->output].width;
    int32_t *const sums = (int32_t *)(void *)(span->scratch + op->sums);
    int32_t y, x, row, step, needed[2], listed = 0;
    for (y = first; y < last; y++) {
        rows_to_list(&k, y, listed, needed);
        for (row = needed[0]; row < needed[1]; row++)
            for (step = 0; step < steps; step++)
                list_row(&k, step, row, (const bsnn_word *)(const void *)pixel_of(span, op->input, step, row, 0));
        listed = row;
        for (step = 0; step < steps; step++) {
            gather_columns(&k, step, y);
            for (x = 0; x < width; x++) {
                count_pixel(&k, x, sums);
                finish_pixel(span, op, step, y, x, sums);
            }
        }
    }
}

/* sums[o] = Σ values[n] · weight[rows[n]][o], for an even number of rows; writes up to 15 beyond. Sums may wrap around on
   the way, not at the end. */
static void multiply(const uint8_t *weight, const uint32_t *rows, const int16_t *values, uint32_t number,
                     int32_t channels, int32_t *sums)
{
    int32_t c;
    uint32_t n;
#if defined(BSNN_VECTORS) && defined(__AVX2__)
    /* Two rows at a time: 16-bit products in pairs. */
    for (c = 0; c < channels; c += 16) {
        const uint8_t *const block = weight + (size_t)c * 2;
        __m256i low = _mm256_setzero_si256(), high = low;
        for (n = 0; n < number; n += 2) {
            const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(block + rows[n]));
            const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(block + rows[n + 1]));
            int32_t two;
            memcpy(&two, values + n, sizeof two);
            const __m256i pair = _mm256_set1_epi32(two);
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair));
        }
        _mm256_storeu_si256((__m256i *)(void *)(sums + c), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(sums + c + 8), _mm256_permute2x128_si256(low, high, 0x31));
    }
#else
    memset(sums, 0, (size_t)channels * sizeof *sums);
    for (n = 0; n < number; n++) {
        const int16_t *const row = (const int16_t *)(const void *)(weight + rows[n]);
        const int32_t x = values[n];
        for (c = 0; c < channels; c++)
            sums[c] = (int32_t)((uint32_t)sums[c] + (uint32_t)(x * row[c]));
    }
#endif
}

static void dense_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    const bsnn_value *const in = span->values + op->input, *const out = span->values + op->output;
    const int32_t part = in->channels / op->groups, made = out->channels / op->groups;
    const int32_t taps = op->kernel[0] * op->kernel[1];
    uint32_t *const rows = (uint32_t *)(void *)(span->scratch + op->rows);
    int16_t *const numbers = (int16_t *)(void *)(rows + op->row_capacity);
    int32_t *const pixel = (int32_t *)(void *)(span->scratch + op->ends);
    int16_t *const window = (int16_t *)(void *)(span->scratch + op->lists);
    int32_t *const sums = (int32_t *)(void *)(span->scratch + op->sums);
    int32_t i, j, c, g;
    for (i = 0; i < op->kernel[0]; i++)
        for (j = 0; j < op->kernel[1]; j++) {
            const int32_t from_y = y * op->stride[0] - op->padding[0] + i * op->dilation[0];
            const int32_t from_x = x * op->stride[1] - op->padding[1] + j * op->dilation[1];
            int16_t *const tap = window + (size_t)(i * op->kernel[1] + j) * (size_t)in->channels;
            if (from_y < 0 || from_y >= in->height || from_x < 0 || from_x >= in->width) {
                memset(tap, 0, (size_t)in->channels * sizeof *tap);
                continue;
            }
            if (in->kind == BSNN_INPUT) {
                const int16_t *const numbers_in = input_pixel(span, op->input, step, from_y, from_x);
                for (c = 0; c < in->channels; c++)
                    tap[c] = numbers_in[c];
                continue;
            }
            read_pixel(span, op->input, step, from_y, from_x, pixel);
            for (c = 0; c < in->channels; c++) {
                const int64_t shifted = ((int64_t)pixel[c] + (INT64_C(1) << op->input_shift >> 1)) >> op->input_shift;
                tap[c] = (int16_t)(shifted < -32768 ? -32768 : shifted > 32767 ? 32767 : shifted);
            }
        }
    for (g = 0; g < op->groups; g++) {
        uint32_t number = 0;
        for (i = 0; i < taps; i++)
            for (c = g * part; c < (g + 1) * part; c++) {
                const uint32_t row = (uint32_t)(i * in->channels + c);
                rows[number] = row * op->row;
                numbers[number] = window[row];
                number += window[row] != 0;
            }
        rows[number] = 0; /* one more, of no weight, makes the number even */
        numbers[number] = 0;
        multiply(op->weight, rows, numbers, (number + 1) & ~1u, made, sums + g * made);
    }
    finish_pixel(span, op, step, y, x, sums);
}

/* number += bits · 2^at, in every channel of a word. */
static void add_bits(bsnn_word *number, int32_t planes, int32_t at, bsnn_word bits)
{
    for (; bits && at < planes; at++) {
        const bsnn_word carry = number[at] & bits;
        number[at] ^= bits;
        bits = carry;
    }
}

/* number = max(number, other), in every channel of a word; bits of a number are `stride` words apart. */
static void max_bits(bsnn_word *number, const bsnn_word *other, int32_t planes, int32_t stride)
{
    bsnn_word larger = 0, equal = ~(bsnn_word)0;
    int32_t p;
    for (p = planes - 1; p >= 0; p--) {
        larger |= equal & other[p * stride] & ~number[p];
        equal &= ~(other[p * stride] ^ number[p]);
    }
    for (p = 0; p < planes; p++)
        number[p] = (other[p * stride] & larger) | (number[p] & ~larger);
}

static void pool_bits(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x,
                      const int32_t window[4])
{
    const bsnn_value *const in = span->values + op->input, *const out = span->values + op->output;
    bsnn_word *const result = (bsnn_word *)(void *)pixel_of(span, op->output, step, y, x);
    int32_t w, p, i, j;
    for (w = 0; w < out->words; w++) {
        bsnn_word number[15] = {0};
        for (i = window[0]; i < window[1]; i++)
            for (j = window[2]; j < window[3]; j++) {
                const bsnn_word *const bits = (const bsnn_word *)(const void *)pixel_of(span, op->input, step, i, j) + w;
                if (op->op == BSNN_MAX_POOL)
                    max_bits(number, bits, in->planes, in->words);
                else
                    for (p = 0; p < in->planes; p++)
                        add_bits(number, out->planes, p, bits[p * in->words]);
            }
        for (p = 0; p < out->planes; p++)
            result[p * out->words + w] = number[p];
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
        if (op->op == BSNN_MAX_POOL)
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
    int32_t window[4], padded[4];
    clip(top, op->kernel[0], 0, in->height, window);
    clip(left, op->kernel[1], 0, in->width, window + 2);
    clip(top, op->kernel[0], -above, in->height + above, padded);
    clip(left, op->kernel[1], -beside, in->width + beside, padded + 2);
    if (in->kind == BSNN_BITS)
        pool_bits(span, op, step, y, x, window);
    else
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

static void run_pixel(const bsnn_span *span, const bsnn_op *op, int32_t step, int32_t y, int32_t x)
{
    switch (op->op) {
    case BSNN_DENSE: dense_pixel(span, op, step, y, x); break;
    case BSNN_LIF:
        fire_pixel(span, op, step, y, x, 0, (const int32_t *)(const void *)pixel_of(span, op->input, step, y, x));
        break;
    case BSNN_AVERAGE_POOL:
    case BSNN_MAX_POOL: pool_pixel(span, op, step, y, x); break;
    case BSNN_ADD: add_pixel(span, op, step, y, x); break;
    case BSNN_CONCAT: concat_pixel(span, op, step, y, x); break;
    default: scale_pixel(span, op, step, y, x);
    }
}

/* Some rows of what a layer makes; all time steps of a row before the next row, so that its membranes stay near. */
static void run_rows(const bsnn_span *span, const bsnn_op *op, int32_t steps, int32_t first, int32_t last)
{
    const bsnn_value *const out = span->values + op->output;
    int32_t y, x, step;
    if (op->neurons >= 0)
        memset(span->scratch + op->spikes, 0, (size_t)out->words * BSNN_WORD_BITS);
    if (op->op == BSNN_COUNT) {
        run_count(span, op, steps, first, last);
        return;
    }
    for (y = first; y < last; y++)
        for (step = 0; step < steps; step++)
            for (x = 0; x < out->width; x++)
                run_pixel(span, op, step, y, x);
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
            for (i = 0; i < model->num_ops; i++) {
                const bsnn_op *const op = model->ops + i;
                const int32_t height = model->values[op->output].height;
                const int32_t first = height * share / sharing, last = height * (share + 1) / sharing;
                if (op->still && span.first_step)
                    continue;
                if (first < last)
                    run_rows(&span, op, op->still ? 1 : steps, first, last);
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
