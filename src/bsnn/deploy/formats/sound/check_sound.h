/* Checks of the front end and of listening, for main.c and cortex-m: how many numbers are not those of golden.h and
   golden_sound.h. Samples come 10 ms at a time, or 160 of them. */

#include "golden_sound.h"
#include "listen.h"

static int check_hearing(int vector, bsnn_input input[BSNN_INPUT_SIZE])
{
    int at, wrong;
    bsnn_sound_reset();
    for (at = 0; at < BSNN_SOUND_SAMPLES; at += 160)
        bsnn_sound_push(golden_samples + vector * BSNN_SOUND_SAMPLES + at,
                        BSNN_SOUND_SAMPLES - at < 160 ? BSNN_SOUND_SAMPLES - at : 160);
    bsnn_sound_end();
    wrong = !bsnn_sound_input(input);
    for (at = 0; at < BSNN_INPUT_SIZE; at++)
        wrong += input[at] != golden_inputs[vector][at];
    return wrong;
}

/* All golden sounds as one stream, as far as golden_heard goes. */
static int check_listening(bsnn_input input[BSNN_INPUT_SIZE])
{
    int at, number = 0, wrong = 0;
    bsnn_listen_reset();
    for (at = 0; number < GOLDEN_HEARD; at += 160)
        if (bsnn_listen_push(golden_samples + at, 160)) {
            bsnn_heard heard;
            const int new_word = bsnn_listen_hear(input, &heard);
            wrong += new_word != golden_heard[number][0] || heard.label != golden_heard[number][1] ||
                     heard.score != golden_heard[number][2];
            number++;
        }
    return wrong;
}
