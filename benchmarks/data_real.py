"""Reads whole real data sets and checks what is known about them.

    python benchmarks/data_real.py DIR

DIR holds any of `cifar-10-batches-py`, `cifar-10-batches-bin`, `nmnist`, `speech_commands` and
`tiny_imagenet`; what is missing is skipped. Prints each check and writes them all to
`benchmarks/results/data_real.json`.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import bsnn
from bsnn.data import cifar10, imagenet, load, measure
from bsnn.data.audio import fit, mel_filters, mel_power, read_sound
from bsnn.data.dataset import Dataset
from bsnn.data.speech import speech_commands_files

RESULTS = Path(__file__).parent / "results" / "data_real.json"
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)


def check_cifar10(root: Path, cache: Path) -> dict[str, Any]:
    identical = True
    for split in ("train", "test"):
        python = cifar10(root / "cifar-10-batches-py", split)
        binary = cifar10(root / "cifar-10-batches-bin", split)
        identical &= bool(np.array_equal(python.samples, binary.samples))
        identical &= bool(np.array_equal(python.labels, binary.labels))
    mean, deviation = measure(cifar10(root / "cifar-10-batches-py"))
    passed = identical and all(round(one, 4) == other for one, other in zip(mean, CIFAR10_MEAN, strict=True))
    return {"passed": passed, "layouts_identical": identical, "mean": mean, "deviation": deviation}


def check_all_files_load(name: str) -> Callable[[Path, Path], dict[str, Any]]:
    def check(root: Path, cache: Path) -> dict[str, Any]:
        counts, mean = {}, ()
        splits = ("train", "val") if name == "tiny_imagenet" else ("train", "test")
        for split in (*splits, *(("val",) if name == "speech_commands" else ())):
            data: Dataset = load(root / name, split, cache)
            counts[split] = len(data)
            assert all(data.read(index).shape == data.shape for index in range(len(data)))
            mean = mean or measure(data)[0]
        files = sum(path.suffix.lower() in (".bin", ".wav", ".jpeg") for path in (root / name).rglob("*"))
        return {"passed": sum(counts.values()) == files, "counts": counts, "files": files, "mean": mean}

    return check


def check_stream(root: Path, cache: Path) -> dict[str, Any]:
    data = imagenet(root / "tiny_imagenet", "train", size=64)
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for index in range(len(data)):
        data.read(index, rng)
    seconds = time.perf_counter() - start
    return {"passed": True, "random_crops_per_second_one_process": round(len(data) / seconds)}


def check_mel(root: Path, cache: Path) -> dict[str, Any]:
    """The largest relative difference to librosa's mel power spectrogram over every band, frame and file."""
    # Not a dependency: it is here to compare with.
    librosa: Any = import_module("librosa")
    settings = {"sr": 16_000, "n_fft": 1024, "hop_length": 512, "n_mels": 32, "power": 2.0}
    largest = {"float64": 0.0, "float32": 0.0}
    files = 0
    for split in ("train", "val", "test"):
        for path in speech_commands_files(root / "speech_commands", split).paths:
            sound = fit(read_sound(path), 16_000)
            ours = mel_power(sound)
            files += 1
            for precision in largest:
                theirs = librosa.feature.melspectrogram(y=sound.astype(precision), **settings)
                assert theirs.shape == ours.shape
                # Digital silence is 0 on both sides, and has no relative difference.
                assert not ours[theirs == 0].any()
                heard = theirs > 0
                difference = np.abs(ours - theirs)[heard] / theirs[heard]
                largest[precision] = max(largest[precision], float(difference.max(initial=0)))
    reference = librosa.filters.mel(sr=16_000, n_fft=1024, n_mels=32, dtype=np.float64)
    return {
        "passed": max(largest.values()) < 1e-4,
        "files": files,
        "largest_relative_difference": largest,
        "filters_largest_difference": float(np.abs(mel_filters() - reference).max()),
        "librosa": librosa.__version__,
    }


CHECKS = {
    "cifar10_two_layouts": ("cifar-10-batches-bin", check_cifar10),
    "nmnist_all_files": ("nmnist", check_all_files_load("nmnist")),
    "speech_commands_all_files": ("speech_commands", check_all_files_load("speech_commands")),
    "tiny_imagenet_all_files": ("tiny_imagenet", check_all_files_load("tiny_imagenet")),
    "tiny_imagenet_stream": ("tiny_imagenet", check_stream),
    "mel_power_against_librosa": ("speech_commands", check_mel),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Reads whole real data sets and checks them.")
    parser.add_argument("root", type=Path, metavar="DIR", help="the folder of the data sets")
    root = parser.parse_args().root
    results = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, (needed, check) in CHECKS.items():
            if not (root / needed).exists():
                print(f"{name}: skipped, {root / needed} is missing")
                continue
            start = time.perf_counter()
            results[name] = check(root, Path(cache))
            results[name]["seconds"] = round(time.perf_counter() - start, 2)
            print(f"{name}: {json.dumps(results[name])}", flush=True)
    report = {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "bsnn": bsnn.__version__},
        "repetitions": 1,
        "checks": results,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(result["passed"] for result in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
