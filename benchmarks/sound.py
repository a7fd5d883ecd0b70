"""From samples to a word: the integer front end beside the real-valued one of training, and the C export beside NumPy.

    python benchmarks/sound.py MODEL --data DIR

Over the whole test set: how far both front ends are apart, what that does to predictions, and whether the exported C
gives the same integers as NumPy from samples to outputs. Words are also heard in a stream, behind the word before, so
that the first and the last frame of a window see what lies beyond it. And 60 of them are found in one stream with
pauses of faint noise. Needs gcc; nothing depends on the machine.
Writes results/sound.json.
"""

import argparse
import ctypes
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import bsnn
from bsnn.data.audio import SAMPLE_RATE, fit, read_sound, spectrogram
from bsnn.data.dataset import FileDataset
from bsnn.data.finder import find
from bsnn.deploy.engine import Engine
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.listening import HOP, listen, listening
from bsnn.deploy.sound import read_samples, sound_of

RESULTS = Path(__file__).parent / "results" / "sound.json"
CHUNK = 700
WORDS = 60


def in_c(engine: Engine, stream: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and outputs of sounds of `length` samples, each on its own, by the exported C."""
    sounds = stream.reshape(-1, length)
    inputs = np.zeros((len(sounds), *engine.artifact.input.shape), np.int16)
    outputs = np.zeros((len(sounds), len(engine.classes)), np.int64)
    with tempfile.TemporaryDirectory() as folder:
        export_c(engine.artifact, Path(folder))
        command = ["gcc", "-O2", "-std=c99", "-shared", "-fPIC", "sound.c", "model.c", "engine.c", "-o", "model.so"]
        subprocess.run(command, cwd=folder, check=True)
        library = ctypes.CDLL(f"{folder}/model.so")
        for sound, x, row in zip(sounds, inputs, outputs, strict=True):
            library.bsnn_sound_reset()
            for start in range(0, length, CHUNK):
                part = np.ascontiguousarray(sound[start : start + CHUNK])
                library.bsnn_sound_push(ctypes.c_void_p(part.ctypes.data), len(part))
            library.bsnn_sound_end()
            assert library.bsnn_sound_input(ctypes.c_void_p(x.ctypes.data)) == 1
            library.bsnn_predict(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(row.ctypes.data))
    return inputs, outputs


def measure(model: str, data: str) -> dict[str, Any]:
    engine = bsnn.load(model)
    sound, files = sound_of(engine.artifact.input), find(data).open("test")
    assert isinstance(files, FileDataset)
    labels, length = files.labels, sound.front_end.samples
    real = np.stack([fit(read_sound(path), length) for path in files.paths])
    whole = np.stack([read_samples(path, length) for path in files.paths])
    features = np.stack([spectrogram(one) for one in real])[:, None]
    ours = np.concatenate([sound.integers(part) for part in np.array_split(whole, len(whole) // 64 + 1)])
    spec = engine.artifact.input
    scale = 2.0**spec.fraction_bits / spec.std[0]
    apart = np.abs(ours / scale + spec.mean[0] - features)
    by_float, by_integer = engine.outputs(spec.normalize(features)), engine.outputs(ours)
    inputs, outputs = in_c(engine, whole.reshape(-1), length)
    heard = np.stack(
        [_in_stream(engine, before, word) for before, word in zip(np.roll(whole, 1, 0), whole, strict=True)]
    )
    return {
        "words": len(labels),
        "spectrogram_apart": {"mean": float(apart.mean()), "largest": float(apart.max())},
        "accuracy": {
            "real front end": float((by_float.argmax(1) == labels).mean()),
            "integer front end": float((by_integer.argmax(1) == labels).mean()),
            "integer front end, within a stream": float((heard == labels).mean()),
        },
        "listening": listen_to(engine, whole, labels),
        "predictions_changed": int((by_float.argmax(1) != by_integer.argmax(1)).sum()),
        "c_differs_from_numpy": {"inputs": int((inputs != ours).sum()), "outputs": int((outputs != by_integer).sum())},
    }


def listen_to(engine: Engine, words: np.ndarray, labels: np.ndarray) -> dict[str, int]:
    """How many of some words, with pauses of 0.25 to 1 s between them, are heard within 0.75 s of their place."""
    random, parts, places, at = np.random.default_rng(0), [], [], 0
    for number in random.permutation(len(words))[:WORDS]:
        pause = random.normal(0, 20, random.integers(4000, 16_000)).astype(np.int16)
        parts += [pause, words[number]]
        places.append(((at + len(pause)) / SAMPLE_RATE, labels[number]))
        at += len(pause) + len(words[number])
    settings = listening(sound_of(engine.artifact.input).front_end)
    heard = listen(engine, np.concatenate(parts), settings)
    lag, right = HOP * settings.smoothing, 0
    for begin, label in places:
        near = [one for one in heard if one["class"] == label and -0.75 <= one["start"] - begin <= 0.75 + lag]
        right += bool(near)
        heard = [one for one in heard if one not in near[:1]]
    return {"words": len(places), "heard": right, "heard elsewhere": len(heard)}


def _in_stream(engine: Engine, before: np.ndarray, word: np.ndarray) -> int:
    """The class of a word that begins in the middle of a stream, on a frame of it."""
    front_end = sound_of(engine.artifact.input).front_end
    lead = front_end.samples // front_end.hop
    stream = np.concatenate([before[-lead * front_end.hop :], word, before])
    levels = front_end.stream_levels(stream)[:, lead : lead + front_end.frames]
    return int(engine.predict(sound_of(engine.artifact.input).from_levels(levels)[None])[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    options = parser.parse_args()
    result = {
        "command": f"python benchmarks/sound.py {Path(options.model).name} --data DIR",
        "versions": {"bsnn": bsnn.__version__, "numpy": np.__version__},
        **measure(options.model, options.data),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
