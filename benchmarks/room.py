"""How far a word spotter falls in a noisy room, and what it makes of noise and silence, with and without augmentation.

    python benchmarks/room.py --data DIR [--out RUNS] [--seed 0]

DIR holds Speech Commands, or some of its words, with the official lists of speakers. The recipe speech-commands-small
is trained twice: as it is, and on the recordings alone (`without_room`). Both model files hear the same test words: as
recorded; with white or pink noise 10 dB below the word (root mean squares over the second); with the loud part of the
word, which holds 99 % of its energy, at a random place in the second; and with both. Noise, drawn anew, and silence are
counted as rejected by a threshold that lets 99 % of the validation words pass: that in the model file, or for the
network that was trained without noise, one that is chosen in the same way. Every run is a run directory in RUNS: a
finished one is not trained again, an interrupted one goes on. Writes results/room.json.
"""

import argparse
import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bsnn
from bsnn.cli._runs import export_run
from bsnn.data.audio import NUM_SAMPLES, fit, read_sound, spectrogram
from bsnn.data.sounds import moved
from bsnn.data.speech import speech_commands_files
from bsnn.deploy.engine import Engine
from bsnn.paper.recipes import recipe
from bsnn.train.build import load_data
from bsnn.train.loop import train
from bsnn.train.recipes import without_room
from bsnn.train.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "room.json"
RECIPE, SHARE = "speech-commands-small", 0.01
DRAWS, CLIPS = 5, 500
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def pink(rng: np.random.Generator) -> np.ndarray:
    """Noise whose power falls as 1/f."""
    spectrum = np.fft.rfft(rng.standard_normal(NUM_SAMPLES))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[0] = 0
    return np.fft.irfft(spectrum)


def white(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(NUM_SAMPLES)


def at_level(noise: np.ndarray, level: float) -> np.ndarray:
    return noise * (level / np.sqrt(np.mean(noise**2)))


def placed(wave: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The word at a random place; its loud part stays within the second."""
    energy = np.cumsum(wave**2)
    begin, end = np.searchsorted(energy, np.array([0.005, 0.995]) * energy[-1])
    return moved(wave, int(rng.integers(-begin, NUM_SAMPLES - end)), 1.0)


def with_noise(make: Callable[[np.random.Generator], np.ndarray], decibels: float) -> Change:
    def change(wave: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return wave + at_level(make(rng), np.sqrt(np.mean(wave**2)) * 10 ** (-decibels / 20))

    return change


def both(first: Change, second: Change) -> Change:
    return lambda wave, rng: second(first(wave, rng), rng)


CONDITIONS: dict[str, Change] = {
    "random placement": placed,
    "white noise at 10 dB": with_noise(white, 10),
    "pink noise at 10 dB": with_noise(pink, 10),
    "white noise at 10 dB and random placement": both(placed, with_noise(white, 10)),
    "pink noise at 10 dB and random placement": both(placed, with_noise(pink, 10)),
    "white noise at 5 dB and random placement": both(placed, with_noise(white, 5)),
}


def noises(rng: np.random.Generator) -> dict[str, Iterator[np.ndarray]]:
    """What belongs to no class."""
    levels = 10 ** rng.uniform(-3, -0.5, CLIPS)
    times = np.arange(NUM_SAMPLES) / NUM_SAMPLES
    return {
        "white noise": (at_level(white(rng), level) for level in levels),
        "pink noise": (at_level(pink(rng), level) for level in levels),
        "digital silence": iter([np.zeros(NUM_SAMPLES)]),
        "silence with noise of one or two bits": (at_level(white(rng), 10 ** rng.uniform(-5, -4)) for _ in levels),
        "hum of 50 Hz in white noise": (
            at_level(np.sin(2 * np.pi * 50 * times + rng.uniform(0, 6)), level) + at_level(white(rng), level / 10)
            for level in levels
        ),
    }


def outputs_of(engine: Engine, waves: Iterator[np.ndarray]) -> np.ndarray:
    """Of sounds as 16-bit samples."""
    recorded = (np.clip(np.rint(wave * 32768), -32768, 32767) / 32768 for wave in waves)
    spectrograms = np.stack([spectrogram(wave)[None] for wave in recorded])
    return engine.outputs(spectrograms)


def words(root: Path, split: str) -> tuple[list[np.ndarray], np.ndarray]:
    data = speech_commands_files(root, split)
    return [fit(read_sound(path), NUM_SAMPLES) for path in data.paths], data.labels


def with_threshold(engine: Engine, root: Path) -> Engine:
    """The same network with a threshold from the validation words, if its file has none."""
    artifact = engine.artifact
    if artifact.reject_below is not None:
        return engine
    logits = outputs_of(engine, iter(words(root, "val")[0])) * artifact.output_scale / artifact.time_steps
    above = np.sort(logits.max(1) - logits.mean(1))
    return Engine(artifact.rejecting(float(above[int(SHARE * len(above))])))


def measure(engine: Engine, root: Path) -> dict[str, Any]:
    """Accuracy and rejections of one network."""
    engine = with_threshold(engine, root)
    waves, labels = words(root, "test")
    clean = outputs_of(engine, iter(waves))
    accuracy = float((clean.argmax(1) == labels).mean())
    rows = {"as recorded": {"accuracy": accuracy, "rejected": float(engine.rejects(clean).mean())}}
    for name, change in CONDITIONS.items():
        found = []
        for draw in range(DRAWS):
            rng = np.random.default_rng([draw, len(rows)])
            outputs = outputs_of(engine, (change(wave, rng) for wave in waves))
            found.append(((outputs.argmax(1) == labels).mean(), engine.rejects(outputs).mean()))
        accuracies, rejected = np.array(found).T
        rows[name] = {
            "accuracy": float(accuracies.mean()),
            "accuracies": accuracies.tolist(),
            "points_lost": float(100 * (accuracy - accuracies.mean())),
            "rejected": float(rejected.mean()),
        }
    rejected = {}
    for name, clips in noises(np.random.default_rng(1000)).items():
        rejected[name] = float(engine.rejects(outputs_of(engine, clips)).mean())
    return {
        "test_words": rows,
        "words_kept": 1 - rows["as recorded"]["rejected"],
        "rejected": rejected,
        "threshold": engine.artifact.prominence,
    }


def cost(config: Any, root: str) -> dict[str, float]:
    """Processor seconds of an epoch, and of reading its samples, so that other processes do not count."""
    trainer = Trainer(config, *load_data(config, root))
    trainer.train_epoch()
    trainer.epoch, trainer.batch = 1, 0
    started = time.process_time()
    trainer.train_epoch()
    whole = time.process_time() - started
    started = time.process_time()
    for _ in trainer.train_loader.epoch(1):
        pass
    reading = time.process_time() - started
    return {"epoch_seconds": whole, "reading_seconds": reading, "share": reading / whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/room"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("with", "without"), help="train one of the two, and measure nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = dataclasses.replace(recipe(RECIPE), seed=options.seed)
    configs = {"with": config, "without": without_room(config)}
    rows: dict[str, Any] = {}
    for name, one in configs.items():
        if options.only not in (None, name):
            continue
        run = options.out / f"{name}-s{options.seed}"
        done = train(one, run, data=options.data, resume=True)
        model = run / "model.bsnn"
        if not model.exists():
            export_run(run, model)
        print(f"{name}: {done['test_accuracy']:.4f}", flush=True)
        if options.only is None:
            rows[name] = measure(bsnn.load(model), options.data)
            rows[name]["minutes"] = done["train_seconds"] / 60
    if options.only is not None:
        return
    result = {
        "command": "python benchmarks/room.py --data DIR",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "recipe": RECIPE,
        "seed": options.seed,
        "samples": {split: len(words(options.data, split)[1]) for split in ("train", "val", "test")},
        "draws": DRAWS,
        "noise_clips": CLIPS,
        "epoch": {name: cost(one, str(options.data)) for name, one in configs.items()},
        "augmentation": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
