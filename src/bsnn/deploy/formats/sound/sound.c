/* From samples to the network's input: levels of mel bands, in integers. sound.h says how it is used, and
   docs/model-file.md of bsnn ("Sounds") what is computed. */

#include "sound.h"
#include "sound_tables.h"

#include <string.h>

#define WINDOW BSNN_SOUND_WINDOW
#define HALF (WINDOW / 2)
#define HOP BSNN_SOUND_HOP
#define KEPT (WINDOW - HOP)
#define BANDS BSNN_SOUND_BANDS
#define FRAMES BSNN_SOUND_FRAMES
#define EARLY ((HALF + HOP - 1) / HOP) /* hops until the first frame, which is centered on the first sample */

/* The arithmetic relies on this, as every compiler in use has it. */
typedef char bsnn_sound_shifts_round_down[(-3 >> 1) == -2 ? 1 : -1];

/* Samples that the next frame has in common with the latest one. Those that come after them wait at the end of `work`,
   which is otherwise in use only while a frame is transformed. */
static int16_t kept[KEPT ? KEPT : 2];
static union {
    int32_t numbers[WINDOW]; /* real and imaginary parts in turn */
    int16_t samples[2 * WINDOW];
} work;
static int16_t *const coming = work.samples + 2 * WINDOW - HOP;

static uint16_t levels[FRAMES][BANDS]; /* of the latest frames, a ring */

static struct {
    int32_t gathered; /* samples in `coming` */
    int32_t frames;   /* that there were, counted up to FRAMES; below 0 until the first one */
    int32_t slot;     /* where the next frame's levels go */
} state;

static int64_t round_shift(int64_t number, int shift)
{
    return (number + (INT64_C(1) << (shift - 1))) >> shift;
}

/* cos(2 pi n / WINDOW) in 30 bits, for 0 <= n < WINDOW, and sin for n < HALF */
static int32_t cosine(int n)
{
    n = n > HALF ? WINDOW - n : n;
    return n > HALF / 2 ? -sound_cosines[HALF - n] : sound_cosines[n];
}

static int32_t sine(int n)
{
    return sound_cosines[n > HALF / 2 ? n - HALF / 2 : HALF / 2 - n];
}

static int32_t sample(int n)
{
    return n < KEPT ? kept[n] : coming[n - KEPT];
}

/* Turns the samples of a frame into `work`, each before its place is written over, and keeps those that the next frame
   needs. Returns by how many bits they were scaled up, or -1 if all are 0. */
static int load(void)
{
    int n, scale = 15;
    int32_t peak = 0;
    for (n = 0; n < WINDOW; n++) {
        const int32_t x = sample(n), size = x < 0 ? -x : x;
        peak = size > peak ? size : peak;
    }
    if (peak == 0)
        scale = -1;
    else
        for (peak--; peak; peak >>= 1)
            scale--;
    for (n = 0; n < WINDOW; n++) {
        const int32_t x = sample(n);
        if (n >= HOP)
            kept[n - HOP] = (int16_t)x;
        if (scale >= 0)
            work.numbers[n] = (int32_t)round_shift(
                (x * (INT32_C(1) << scale)) * ((INT64_C(1) << 30) - cosine(n)), 31 - BSNN_SOUND_FRACTION_BITS);
    }
    return scale;
}

/* The Fourier transform of `work`, whose order becomes that of reversed bits; every product is rounded, no sum is. */
static void transform(void)
{
    int size, j, k;
    for (size = HALF / 2; size; size /= 2)
        for (j = 0; j < size; j++) {
            const int turn = j * (HALF / size);
            const int32_t c = cosine(turn), s = sine(turn);
            for (k = j; k < HALF; k += 2 * size) {
                int32_t *const a = work.numbers + 2 * k, *const b = a + 2 * size;
                const int32_t re = a[0] - b[0], im = a[1] - b[1];
                a[0] += b[0];
                a[1] += b[1];
                b[0] = (int32_t)round_shift((int64_t)re * c + (int64_t)im * s, 30);
                b[1] = (int32_t)round_shift((int64_t)im * c - (int64_t)re * s, 30);
            }
        }
}

/* Four times the power at frequency k, untangled from even and odd samples: the numbers at k and at HALF - k. */
static uint64_t power(int k, const int32_t *a, const int32_t *b)
{
    const int32_t c = cosine(k), s = sine(k), odd_re = a[1] + b[1], odd_im = b[0] - a[0];
    const int64_t re = a[0] + b[0] + round_shift((int64_t)odd_re * c + (int64_t)odd_im * s, 30);
    const int64_t im = a[1] - b[1] + round_shift((int64_t)odd_im * c - (int64_t)odd_re * s, 30);
    return (uint64_t)(re * re) + (uint64_t)(im * im);
}

/* log2 of a number above 0, times 1024 and rounded down: one bit for each squaring */
static int32_t logarithm(uint64_t number)
{
    int32_t level = 31;
    uint32_t rest;
    int bit;
    for (; number >> 32; number >>= 1)
        level++;
    for (rest = (uint32_t)number; !(rest >> 31); rest <<= 1)
        level--;
    for (bit = 0; bit < 10; bit++) {
        const uint64_t square = (uint64_t)rest * rest >> 31;
        const int above = (int)(square >> 32);
        rest = (uint32_t)(square >> above);
        level = 2 * level + above;
    }
    return level;
}

/* Levels of the transformed frame. */
static void measure(uint16_t out[BANDS], int scale)
{
    int up = 0, down = HALF - 1, b, k; /* up and down count k and HALF - k, with reversed bits */
    uint64_t rising = 0;
    for (b = 0; b <= BANDS; b++) {
        uint64_t upper = 0, lower = 0;
        for (k = sound_edges[b]; k < sound_edges[b + 1]; k++) {
            uint64_t p, share;
            int bit;
            for (bit = HALF / 2; up & bit; bit >>= 1)
                up ^= bit;
            up |= bit;
            p = power(k, work.numbers + 2 * up, work.numbers + 2 * down) >> 18;
            for (bit = HALF / 2; bit && !(down & bit); bit >>= 1)
                down |= bit;
            down ^= bit;
            share = p * sound_shares[k];
            upper += share;
            lower += (p << 15) - share;
        }
        if (b && rising + lower) {
            const int32_t level = logarithm(rising + lower) + sound_gains[b - 1] - 2048 * scale;
            out[b - 1] = (uint16_t)(level < 0 ? 0 : level > 65535 ? 65535 : level);
        } else if (b)
            out[b - 1] = 0;
        rising = upper;
    }
}

/* A frame is whole. Returns 1 if it is one that counts. */
static int end_frame(void)
{
    const int scale = load();
    state.gathered = 0;
    if (++state.frames <= 0)
        return 0;
    if (scale < 0)
        memset(levels[state.slot], 0, sizeof levels[0]);
    else {
        transform();
        measure(levels[state.slot], scale);
    }
    state.slot = (state.slot + 1) % FRAMES;
    if (state.frames > FRAMES)
        state.frames = FRAMES;
    return 1;
}

void bsnn_sound_reset(void)
{
    memset(kept, 0, sizeof kept);
    memset(&work, 0, sizeof work);
    state.gathered = EARLY * HOP - HALF;
    state.frames = 1 - EARLY;
    state.slot = 0;
}

int bsnn_sound_push(const int16_t *samples, int number)
{
    int i, frames = 0;
    for (i = 0; i < number; i++) {
        coming[state.gathered++] = samples[i];
        if (state.gathered == HOP)
            frames += end_frame();
    }
    return frames;
}

void bsnn_sound_end(void)
{
    while (state.frames < FRAMES) {
        while (state.gathered < HOP)
            coming[state.gathered++] = 0;
        end_frame();
    }
}

int bsnn_sound_ready(void)
{
    return state.frames == FRAMES;
}

int bsnn_sound_input(bsnn_input input[BSNN_INPUT_SIZE])
{
    int32_t loudest = 0;
    int j, b;
    if (!bsnn_sound_ready())
        return 0;
    for (j = 0; j < FRAMES; j++)
        for (b = 0; b < BANDS; b++)
            loudest = levels[j][b] > loudest ? levels[j][b] : loudest;
    for (j = 0; j < FRAMES; j++) {
        const uint16_t *const frame = levels[(state.slot + j) % FRAMES];
        for (b = 0; b < BANDS; b++) {
            const int32_t below = loudest - frame[b];
            const int nothing = frame[b] == 0 || loudest < BSNN_SOUND_SILENCE || below > BSNN_SOUND_RANGE;
            const int64_t x = round_shift(
                BSNN_SOUND_OFFSET - (nothing ? BSNN_SOUND_RANGE : below) * BSNN_SOUND_MULTIPLIER, BSNN_SOUND_SHIFT);
            input[b * FRAMES + j] = (bsnn_input)(x < -32768 ? -32768 : x > 32767 ? 32767 : x);
        }
    }
    return 1;
}
