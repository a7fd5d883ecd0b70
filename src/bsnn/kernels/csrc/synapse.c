/* The convolution of spikes with one-bit weights in training: the counting of csrc/convolution.h, from and to single
   precision. Sums of ±1 over spikes, or over means of four, are whole quarters, which single precision holds exactly in any
   order of addition. src/bsnn/kernels/_synapse.py calls it. */

#include "train.h"
#include "convolution.h"

enum {
    MAX_PLANES = 3, /* of means of four spikes */
    ALIGNMENT = 64,
    SLACK = 32,       /* elements that vectors may write beyond the last one */
    WEIGHT_SLACK = 64 /* bytes that vectors may read beyond the last row */
};

static size_t row_bytes(const bsnn_synapse *s)
{
    return (size_t)((s->outs / s->groups + BSNN_WORD_BITS - 1) / BSNN_WORD_BITS) * sizeof(bsnn_word);
}

/* Takes `bytes` of a workspace; without one (NULL), only counts them. */
static void *take(uint8_t *workspace, size_t *used, size_t bytes)
{
    void *const at = workspace ? workspace + *used : NULL;
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

/* What a thread works on: the parts of its workspace. */
typedef struct {
    bsnn_convolution convolution;
    bsnn_word *words; /* the image as bits */
    int32_t *sums;    /* of one pixel */
    size_t bytes;     /* of all parts */
} bsnn_parts;

static bsnn_parts parts_of(const bsnn_synapse *s, const uint8_t *rows, uint8_t *workspace)
{
    const size_t channels = (size_t)s->channels, height = (size_t)s->height, width = (size_t)s->width;
    const size_t part = channels / (size_t)s->groups;
    const size_t within = (size_t)(s->kernel[0] < s->height ? s->kernel[0] : s->height);
    const size_t across = (size_t)(s->kernel[1] < s->width ? s->kernel[1] : s->width);
    const size_t groups = (size_t)(MAX_PLANES * s->groups); /* and planes */
    size_t lists;
    bsnn_parts parts;
    bsnn_convolution *const k = &parts.convolution;
    memset(&parts, 0, sizeof parts);
    k->channels = s->channels;
    k->height = s->height;
    k->width = s->width;
    k->words = (s->channels + BSNN_WORD_BITS - 1) / BSNN_WORD_BITS;
    k->outs = s->outs;
    memcpy(k->kernel, s->kernel, sizeof k->kernel);
    memcpy(k->stride, s->stride, sizeof k->stride);
    memcpy(k->padding, s->padding, sizeof k->padding);
    memcpy(k->dilation, s->dilation, sizeof k->dilation);
    k->groups = s->groups;
    k->windows = 1;
    k->row = (uint32_t)row_bytes(s);
    k->weight = rows;
    lists = (size_t)reach_of(k) < height ? (size_t)reach_of(k) : height;
    lists *= groups;
    k->list_capacity = (width + 1) * part + 2 * SLACK;
    k->row_capacity = (within * width + 1) * part + 2 * SLACK;
    k->row_capacity = (k->row_capacity + ALIGNMENT / 4 - 1) / (ALIGNMENT / 4) * (ALIGNMENT / 4); /* whole vectors */
    parts.words = take(workspace, &parts.bytes, height * width * MAX_PLANES * (size_t)k->words * sizeof *parts.words);
    parts.sums = take(workspace, &parts.bytes, ((size_t)s->outs + SLACK) * sizeof *parts.sums);
    k->lists = take(workspace, &parts.bytes, lists * k->list_capacity * sizeof *k->lists);
    k->list_ends = take(workspace, &parts.bytes, lists * (width + 2) * sizeof *k->list_ends);
    k->rows = take(workspace, &parts.bytes, groups * k->row_capacity * sizeof *k->rows);
    k->row_ends = take(workspace, &parts.bytes, groups * (width + 1) * sizeof *k->row_ends);
    k->window = take(workspace, &parts.bytes, (MAX_PLANES * within * across * part + SLACK) * sizeof *k->window);
    return parts;
}

/* sizes[0]: bytes of the rows of weights that bsnn_rows writes; sizes[1]: bytes of one thread's workspace. */
void bsnn_synapse_sizes(const bsnn_synapse *s, int64_t sizes[2])
{
    const int64_t rows = (int64_t)s->kernel[0] * s->kernel[1] * s->channels + 1; /* the last one holds zeros */
    sizes[0] = rows * (int64_t)row_bytes(s) + WEIGHT_SLACK;
    sizes[1] = (int64_t)parts_of(s, NULL, NULL).bytes;
}

/* Bit c of word r becomes bit r of word c, of 8 words of 8 bits in one. */
static uint64_t transpose_8(uint64_t x)
{
    uint64_t t = (x ^ x >> 7) & UINT64_C(0x00aa00aa00aa00aa);
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & UINT64_C(0x0000cccc0000cccc);
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & UINT64_C(0x00000000f0f0f0f0);
    return x ^ t ^ t << 28;
}

/* Weights as training has them, one bit each, [outs][ins][taps], as rows of outs for each tap and input. The rows must
   hold zeros. Groups follow one another in outs, and the rows of a tap hold the inputs of all groups. */
void bsnn_rows(const bsnn_synapse *s, const uint8_t *bits, uint8_t *rows, int32_t rank, int32_t threads)
{
    const int32_t groups = s->groups, ins = s->channels / groups, part = s->outs / groups;
    const size_t taps = (size_t)s->kernel[0] * (size_t)s->kernel[1], row = row_bytes(s);
    const size_t columns = (size_t)ins * taps, end = ((size_t)s->outs * columns + 7) / 8;
    int32_t g, o, k;
    for (g = 0; g < groups; g++)
        for (o = 8 * rank; o < part; o += 8 * threads) {
            size_t first, input = (size_t)(g * ins), tap = 0;
            for (first = 0; first < columns; first += 8) {
                uint64_t square = 0;
                for (k = 0; k < 8 && o + k < part; k++) {
                    const size_t bit = (size_t)(g * part + o + k) * columns + first;
                    const uint32_t low = bits[bit / 8], high = bit / 8 + 1 < end ? bits[bit / 8 + 1] : 0;
                    square |= (uint64_t)((low | high << 8) >> bit % 8 & 255) << 8 * k;
                }
                square = transpose_8(square);
                for (k = 0; k < 8 && first + (size_t)k < columns; k++) {
                    rows[(tap * (size_t)s->channels + input) * row + (size_t)(o / 8)] = (uint8_t)(square >> 8 * k);
                    if (++tap == taps) {
                        tap = 0;
                        input++;
                    }
                }
            }
        }
}

/* Packs the channels of a pixel, in units of 1 / unit, unit being 1 or 4; returns whether all of them are such numbers,
   from 0 to unit. */
static int pack_pixel(const float *restrict x, int32_t channels, int32_t words, int unit, bsnn_word *restrict out)
{
    const int32_t planes = unit == 1 ? 1 : 3;
    int32_t c, p, valid = 1;
    memset(out, 0, (size_t)(planes * words) * sizeof *out);
    for (c = 0; c < channels; c += 8) {
        const int32_t here = channels - c < 8 ? channels - c : 8;
        uint32_t bits[3] = {0, 0, 0};
        int32_t k;
#if defined(BSNN_VECTORS) && defined(__AVX2__)
        if (here == 8) {
            const __m256 eight = _mm256_mul_ps(_mm256_loadu_ps(x + c), _mm256_set1_ps((float)unit));
            const __m256i number = _mm256_cvttps_epi32(eight);
            const __m256i high = _mm256_cmpgt_epi32(number, _mm256_set1_epi32(unit));
            const __m256 same = _mm256_cmp_ps(_mm256_cvtepi32_ps(number), eight, _CMP_EQ_OQ);
            valid &= _mm256_movemask_ps(same) == 255;
            valid &= !_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_or_si256(high, number)));
            for (p = 0; p < planes; p++)
                bits[p] = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(number, 31 - p)));
        } else
#endif
        for (k = 0; k < here; k++) {
            const float scaled = x[c + k] * (float)unit;
            const int32_t number = scaled >= 0 && scaled <= (float)unit ? (int32_t)scaled : 0;
            valid &= (float)number == scaled;
            for (p = 0; p < planes; p++)
                bits[p] |= ((uint32_t)number >> p & 1) << k;
        }
        for (p = 0; p < planes; p++)
            out[p * words + c / BSNN_WORD_BITS] |= (bsnn_word)bits[p] << c % BSNN_WORD_BITS;
    }
    return valid;
}

/* Packs an image of spikes, or of means of four of them; returns the unit, 1 or 4, or 0 if some number is neither. */
static int pack_image(const bsnn_synapse *s, const float *x, int32_t words, bsnn_word *out)
{
    const size_t pixels = (size_t)s->height * (size_t)s->width, channels = (size_t)s->channels;
    int unit;
    for (unit = 1; unit <= 4; unit += 3) {
        const size_t step = (size_t)((unit == 1 ? 1 : MAX_PLANES) * words);
        size_t pixel = 0;
        while (pixel < pixels && pack_pixel(x + pixel * channels, s->channels, words, unit, out + pixel * step))
            pixel++;
        if (pixel == pixels)
            return unit;
    }
    return 0;
}

/* Currents of a batch from spikes, or from means of four of them; both [batch][height][width][channels]. Thread `rank` of
   `threads` takes whole images. Returns 0, or 1 if some input is neither. */
int32_t bsnn_currents(const bsnn_synapse *s, const uint8_t *rows, const float *spikes, float *currents,
                      uint8_t *workspace, int32_t rank, int32_t threads)
{
    const size_t taken = (size_t)s->height * (size_t)s->width * (size_t)s->channels;
    const size_t bytes = parts_of(s, NULL, NULL).bytes;
    bsnn_parts parts = parts_of(s, rows, workspace + (size_t)rank * bytes);
    bsnn_convolution *const k = &parts.convolution;
    int32_t image, y, x, row, needed[2], c;
    for (image = rank; image < s->batch; image += threads) {
        const int unit = pack_image(s, spikes + (size_t)image * taken, k->words, parts.words);
        const float scale = unit == 1 ? 1.0f : 0.25f;
        float *out = currents + (size_t)image * (size_t)s->made[0] * (size_t)s->made[1] * (size_t)s->outs;
        if (!unit)
            return 1;
        k->planes = unit == 1 ? 1 : MAX_PLANES;
        for (y = 0, row = 0; y < s->made[0]; y++) {
            rows_to_list(k, y, row, needed);
            for (row = needed[0]; row < needed[1]; row++)
                list_row(k, 0, row, parts.words + (size_t)row * (size_t)k->width * (size_t)(k->planes * k->words));
            gather_columns(k, 0, y);
            for (x = 0; x < s->made[1]; x++, out += s->outs) {
                count_windows(k, x, parts.sums);
                for (c = 0; c < s->outs; c++)
                    out[c] = (float)parts.sums[c] * scale;
            }
        }
    }
    return 0;
}
