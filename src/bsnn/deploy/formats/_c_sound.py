"""Sounds in the C99 export: the front end, listening, and golden vectors that begin at samples."""

from pathlib import Path

import numpy as np

from bsnn.data.audio import SAMPLE_RATE
from bsnn.data.front_end import RANGE, SILENT_BELOW
from bsnn.deploy.engine import Engine
from bsnn.deploy.formats import _c_text
from bsnn.deploy.listening import SHARE_BITS, hear, listening, roots, shares_of, windows
from bsnn.deploy.schema import Artifact
from bsnn.deploy.sound import Sound
from bsnn.errors import UserError

_SOURCES = Path(__file__).with_name("sound")
_MADE = ("sound.h", "sound_tables.h", "listen.h", "golden_sound.h")
NAMES = (*(file.name for file in sorted(_SOURCES.iterdir())), *_MADE)
"""The files of `sound_files`."""
_GOLDEN = 4
_GOLDEN_WINDOWS = 8


def sound_files(engine: Engine, sound: Sound, sounds: np.ndarray) -> dict[str, str]:
    """The files of the front end and of listening, with the sounds of the golden vectors, `[N, samples]`."""
    tables = sound.front_end.tables()
    constants = [
        _c_text.constant("int32_t", "sound_cosines", tables.cosines),
        _c_text.constant("uint16_t", "sound_shares", tables.shares),
        _c_text.constant("uint16_t", "sound_edges", tables.edges),
        _c_text.constant("int32_t", "sound_gains", tables.gains),
    ]
    head = (
        "/* Constants of sound.c: cosines, shares of the upper band, where bands begin, logarithms of their gains. */\n"
    )
    return {
        **{file.name: file.read_text() for file in sorted(_SOURCES.iterdir())},
        "sound.h": _header(sound),
        "sound_tables.h": "\n".join([head, *constants]),
        "listen.h": _listen_header(engine.artifact, sound),
        "golden_sound.h": _golden(engine, sound, sounds),
    }


def golden_sounds(sound: Sound, given: np.ndarray | None) -> np.ndarray:
    """The sounds of the golden vectors, int16, `[N, samples]`: those given, or tones in noise, louder and softer."""
    count = sound.front_end.samples
    if given is not None:
        if given.dtype != np.int16 or given.ndim != 2 or given.shape[1] != count:
            raise UserError(
                f"golden vectors: received {given.dtype} of shape {given.shape}; expected sounds as 16-bit samples, "
                f"int16 [N, {count}]."
            )
        return given
    random, time = np.random.default_rng(0), np.arange(count) / SAMPLE_RATE
    pitches, loudness = random.uniform(100, 3000, (_GOLDEN, 1)), np.array([[20_000.0], [3000.0], [200.0], [4.0]])
    tones = np.sin(2 * np.pi * pitches * time * (1 + time)) * np.sin(np.pi * time) ** 2
    return np.rint(loudness * (tones + 0.02 * random.standard_normal((_GOLDEN, count)))).astype(np.int16)


def _golden(engine: Engine, sound: Sound, sounds: np.ndarray) -> str:
    stream, settings = sounds.ravel(), listening(sound.front_end)
    whole = sound.front_end.stream_levels(stream).shape[1] - sound.front_end.frames
    number = 0 if whole < 0 else min(_GOLDEN_WINDOWS, 1 + whole // settings.step)
    heard = hear(engine, windows(sound, stream, settings.step)[:number], settings)
    rows = ", ".join(f"{{{int(one.new)}, {one.label}, {one.score}}}" for one in heard) or "{0}"
    return f"""/* The samples from which the inputs in golden.h are made, one sound after another. And what is heard in
   them as one stream, window by window: whether a word is new, the best class, and its score. */

{_c_text.constant("int16_t", "golden_samples", stream)}
#define GOLDEN_HEARD {number}

static const int32_t golden_heard[{max(number, 1)}][3] = {{{rows}}};
"""


def _header(sound: Sound) -> str:
    front_end = sound.front_end
    seconds, hop = front_end.samples / SAMPLE_RATE, 1000 * front_end.hop / SAMPLE_RATE
    return f"""/* From samples to the network's input: {seconds:g} s of one channel at {SAMPLE_RATE:,} Hz, 16 bits.

   One recording:
       bsnn_sound_reset();
       bsnn_sound_push(samples, BSNN_SOUND_SAMPLES);
       bsnn_sound_end();
       bsnn_sound_input(input);
       class = bsnn_predict(input, outputs);

   A microphone, forever; every {hop:g} ms a frame is whole, and the input is that of the latest {seconds:g} s:
       bsnn_sound_reset();
       for (;;) {{
           n = as many samples as there are, in a buffer of yours;
           if (bsnn_sound_push(buffer, n) && bsnn_sound_input(input))
               class = bsnn_predict(input, outputs);
       }}

   bsnn_sound_push may be called from an interrupt while bsnn_predict runs, but not while bsnn_sound_input does. */

#ifndef BSNN_SOUND_H
#define BSNN_SOUND_H

#include "model.h"

#define BSNN_SOUND_RATE {SAMPLE_RATE}
#define BSNN_SOUND_SAMPLES {front_end.samples}
#define BSNN_SOUND_WINDOW {front_end.window}
#define BSNN_SOUND_HOP {front_end.hop}
#define BSNN_SOUND_BANDS {front_end.bands}
#define BSNN_SOUND_FRAMES {front_end.frames}

/* Bytes of static memory; BSNN_RAM_BYTES of model.h includes it. */
#define BSNN_SOUND_RAM_BYTES {sound.ram_bytes}

/* Of the arithmetic, in levels: 1024 for each factor of 2 in power. */
#define BSNN_SOUND_FRACTION_BITS {front_end.fraction_bits}
#define BSNN_SOUND_SILENCE {SILENT_BELOW}
#define BSNN_SOUND_RANGE {RANGE}
#define BSNN_SOUND_OFFSET INT64_C({sound.offset})
#define BSNN_SOUND_MULTIPLIER INT64_C({sound.multiplier})
#define BSNN_SOUND_SHIFT {sound.shift}

#ifdef __cplusplus
extern "C" {{
#endif

/* Begins anew: before the first sample there was silence. To be called before all else. */
void bsnn_sound_reset(void);

/* Takes samples as they come, any number at a time; returns how many frames they complete. */
int bsnn_sound_push(const int16_t *samples, int number);

/* Ends a recording that is shorter than a window by silence. */
void bsnn_sound_end(void);

/* Whether there were enough frames for an input, BSNN_SOUND_FRAMES. */
int bsnn_sound_ready(void);

/* Writes the input of the latest window, which is BSNN_SOUND_FRAMES frames, and returns 1; or 0 if there were fewer. */
int bsnn_sound_input(bsnn_input input[BSNN_INPUT_SIZE]);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _listen_header(artifact: Artifact, sound: Sound) -> str:
    settings, shares = listening(sound.front_end), shares_of(artifact)
    hop = 1000 * sound.front_end.hop / SAMPLE_RATE
    return f"""/* Words in a stream.

       bsnn_listen_reset();
       for (;;) {{
           n = as many samples as there are, in a buffer of yours;
           if (bsnn_listen_push(buffer, n) && bsnn_listen_hear(input, &heard))
               bsnn_classes[heard.label] was said;
       }}

   What is heard so, bsnn predict --window hears too, to the bit, provided that at most BSNN_SOUND_HOP samples are
   pushed at a time, and each prediction is made before the next samples come. A device that is too slow for that
   pushes from an interrupt, and predicts outside of it whenever it is time; then it hears fewer windows. The
   interrupt has to wait only for bsnn_sound_input, with which bsnn_listen_hear begins. */

#ifndef BSNN_LISTEN_H
#define BSNN_LISTEN_H

#include "sound.h"

/* Frames of {hop:g} ms from one prediction to the next. */
#ifndef BSNN_LISTEN_STEP
#define BSNN_LISTEN_STEP {settings.step}
#endif

/* The score of a class is the mean of its shares in so many predictions; a share is that of the softmax, of 32768. */
#ifndef BSNN_LISTEN_SMOOTHING
#define BSNN_LISTEN_SMOOTHING {settings.smoothing}
#endif

/* A word is heard from this score on. */
#ifndef BSNN_LISTEN_THRESHOLD
#define BSNN_LISTEN_THRESHOLD {settings.threshold}
#endif

/* The same word is heard again after so many predictions in which it was not above the threshold. */
#ifndef BSNN_LISTEN_HOLD
#define BSNN_LISTEN_HOLD {settings.hold}
#endif

/* Of the arithmetic: from outputs to logits to the base 2, and 2^(-2^bit / 1024) in 31 bits. */
#define BSNN_LISTEN_MULTIPLIER INT64_C({shares.multiplier})
#define BSNN_LISTEN_SHIFT {shares.shift}
#define BSNN_LISTEN_FAR INT64_C({shares.far})
#define BSNN_LISTEN_ROOTS {", ".join(f"{root}u" for root in roots())}

typedef struct {{
    int32_t label; /* the class whose score is highest */
    int32_t score; /* of {1 << SHARE_BITS} */
}} bsnn_heard;

#ifdef __cplusplus
extern "C" {{
#endif

/* Begins anew, with silence; the front end too. To be called before all else. */
void bsnn_listen_reset(void);

/* Takes samples as they come; returns 1 if it is time for a prediction. */
int bsnn_listen_push(const int16_t *samples, int number);

/* Predicts from the latest window, whose input it writes; says which class is likeliest, and returns 1 if it is a word
   that is heard now. */
int bsnn_listen_hear(bsnn_input input[BSNN_INPUT_SIZE], bsnn_heard *heard);

#ifdef __cplusplus
}}
#endif

#endif
"""
