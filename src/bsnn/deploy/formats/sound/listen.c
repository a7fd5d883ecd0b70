/* Words in a stream: shares of the classes in overlapping windows, smoothed, and a threshold. listen.h says how it is
   used. */

#include "listen.h"

#include <string.h>

/* 2^(-2^bit / 1024) in 31 bits */
static const uint32_t roots[10] = {BSNN_LISTEN_ROOTS};

static uint16_t shares[BSNN_LISTEN_SMOOTHING][BSNN_CLASSES]; /* of the latest windows, a ring */

static struct {
    int32_t slot;  /* where the next window's shares go */
    int32_t due;   /* frames since the latest prediction */
    int32_t word;  /* that was heard last, or -1 */
    int32_t hold;  /* windows until it may be heard again */
} state;

/* Writes the shares of the classes in the softmax of the logits, in 15 bits. */
static void share(const int64_t outputs[BSNN_CLASSES], int best, uint16_t out[BSNN_CLASSES])
{
    uint64_t sum = 0;
    int pass, c, bit;
    for (pass = 0; pass < 2; pass++)
        for (c = 0; c < BSNN_CLASSES; c++) {
            const int64_t below = outputs[best] - outputs[c];
            int64_t octaves = ((below < BSNN_LISTEN_FAR ? below : BSNN_LISTEN_FAR) * BSNN_LISTEN_MULTIPLIER) >> BSNN_LISTEN_SHIFT;
            uint32_t weight = UINT32_C(1) << 31;
            octaves = octaves < 20480 ? octaves : 20480;
            for (bit = 0; bit < 10; bit++)
                if (octaves >> bit & 1)
                    weight = (uint32_t)((uint64_t)weight * roots[bit] >> 31);
            weight >>= octaves >> 10;
            if (pass == 0)
                sum += weight;
            else
                out[c] = (uint16_t)(weight / (uint32_t)(sum >> 15));
        }
}

void bsnn_listen_reset(void)
{
    bsnn_sound_reset();
    memset(shares, 0, sizeof shares);
    memset(&state, 0, sizeof state);
    state.word = -1;
}

int bsnn_listen_push(const int16_t *samples, int number)
{
    state.due += bsnn_sound_push(samples, number);
    return state.due >= BSNN_LISTEN_STEP && bsnn_sound_ready();
}

int bsnn_listen_hear(bsnn_input input[BSNN_INPUT_SIZE], bsnn_heard *heard)
{
    int64_t outputs[BSNN_CLASSES];
    uint32_t highest = 0;
    int best = 0, above, new_word, c, k;
    if (!bsnn_sound_input(input))
        return 0;
    state.due = 0;
    share(outputs, bsnn_predict(input, outputs), shares[state.slot]);
#ifdef BSNN_REJECT_BELOW
    if (bsnn_rejects(outputs, BSNN_TIME_STEPS))
        memset(shares[state.slot], 0, sizeof shares[state.slot]);
#endif
    state.slot = (state.slot + 1) % BSNN_LISTEN_SMOOTHING;
    for (c = 0; c < BSNN_CLASSES; c++) {
        uint32_t sum = 0;
        for (k = 0; k < BSNN_LISTEN_SMOOTHING; k++)
            sum += shares[k][c];
        if (sum > highest) {
            highest = sum;
            best = c;
        }
    }
    above = highest >= (uint32_t)BSNN_LISTEN_THRESHOLD * BSNN_LISTEN_SMOOTHING;
    new_word = above && (best != state.word || state.hold == 0);
    if (new_word)
        state.word = best;
    if (above && best == state.word)
        state.hold = BSNN_LISTEN_HOLD;
    else if (state.hold)
        state.hold--;
    heard->label = best;
    heard->score = (int32_t)(highest / BSNN_LISTEN_SMOOTHING);
    return new_word;
}
