"""Reads and runs 100,000 mutated and truncated model files; the C kernel is built with the address sanitizer.

    python benchmarks/mutations.py [--count 100000] [--seed 0]

Sources are the digits model that ships with the package and three networks of all kinds of layers. A mutation changes
bytes anywhere, cuts the file short, or changes numbers, words and lists of the header; half of the files get a right
checksum again. Each file must be refused with a clear error (BadModel) or run; every twentieth that runs is compared
with the NumPy path. Peak memory of reading and of running is traced, file by file, where the checksum is right. The
tests run 600 of them without the sanitizer. Writes results/mutations.json.
"""

import argparse
import ctypes
import hashlib
import json
import os
import platform
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import bsnn
from bsnn.deploy.codec import decode
from bsnn.deploy.engine import native
from bsnn.deploy.engine.native import Native
from bsnn.deploy.engine.plain import Plain
from bsnn.deploy.schema import BadModel

RESULTS = Path(__file__).parent / "results" / "mutations.json"
ENGINE = Path(native.__file__).with_name("csrc") / "engine.c"
SHARED = Path(native.__file__).parents[2] / "csrc"
FLAGS = ("-O1", "-g", "-std=c99", "-fPIC", "-shared", "-march=native", "-DBSNN_THREADS")
SANITIZER = ("-fsanitize=address,undefined", "-fno-sanitize-recover")
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    64,
    255,
    256,
    4095,
    32767,
    65535,
    65536,
    2**30,
    2**31,
    2**53,
    1.5,
    1e308,
)
ODD = (None, True, "", "bits", "int16", "input", [], {}, [[]], "\u0000", "x" * 2000)
LARGEST_RUN = 2**27


def sources(folder: Path) -> list[bytes]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    mixed = bsnn.Sequential(
        bsnn.BinaryConv2d(2, 8, 3, padding=1), bsnn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1), bsnn.LIF(leak=0.8),
        bsnn.Concat(
            bsnn.Sequential(bsnn.BinaryConv2d(8, 6, 3, 1, 1, 1, 2), bsnn.BatchNorm2d(6), bsnn.LIF()),
            bsnn.Sequential(bsnn.BinaryConv2d(8, 4, 3, padding=2, dilation=2), bsnn.LIF()),
        ),
        nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), bsnn.BinaryLinear(10 * 9, 24), bsnn.LIF(), nn.Linear(24, 5),
    )  # fmt: skip
    found = [bsnn.zoo.path("digits").read_bytes()]
    for number, (net, shape) in enumerate(
        [
            (mixed, (2, 10, 10)),
            (bsnn.models.resnet18(num_classes=4, width=0.0625), (3, 37, 37)),
            (bsnn.Sequential(nn.Linear(9, 20), bsnn.LIF(), bsnn.BinaryLinear(20, 12), bsnn.LIF()), (9,)),
        ]
    ):
        with bsnn.estimating_statistics(net):
            bsnn.predict(net, torch.randn(8, *shape), 2)
        path = folder / f"{number}.bsnn"
        bsnn.export(net, path, input_shape=shape, time_steps=3)
        found.append(path.read_bytes())
    return found


def sealed(content: bytes) -> bytes:
    """The same with right length and checksum."""
    start = content[:16] + struct.pack("<Q", len(content))
    return start + hashlib.sha256(start + content[56:]).digest() + content[56:]


def places(tree: object, path: tuple = ()) -> list[tuple]:
    """Paths to everything in a tree of dicts and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


def changed_header(content: bytes, rng: random.Random) -> bytes:
    (length,) = struct.unpack_from("<I", content, 12)
    header = json.loads(content[56 : 56 + length])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *parents, key = rng.choice([place for place in places(header) if place])
        place = header
        for step in parents:
            place = place[step]
        value, kind = place[key], rng.random()
        if kind < 0.35 and isinstance(value, int | float) and not isinstance(value, bool):
            place[key] = value + rng.choice((-1, 1, 1, 2, 8))
        elif kind < 0.75:
            place[key] = rng.choice(NUMBERS)
        elif kind < 0.85:
            place[key] = rng.choice(ODD)
        elif kind < 0.92 and isinstance(value, list) and value:
            place[key] = value * rng.choice((2, 3)) if rng.random() < 0.5 else value[:-1]
        else:
            del place[key]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return content[:12] + struct.pack("<I", len(text)) + content[16:56] + text + content[56 + length :]


def mutated(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind = rng.random()
    if kind < 0.15:
        return "cut short", content[: rng.randrange(len(content))]
    if kind < 0.5:
        changed = bytearray(content)
        (header,) = struct.unpack_from("<I", content, 12)
        reach = rng.choice((56, 56 + header, len(content)))
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            changed[rng.randrange(reach)] = rng.randrange(256)
        return "bytes changed", bytes(changed)
    return "header changed", changed_header(content, rng)


def reason(message: str) -> str:
    """A refusal without what differs from file to file."""
    shortened = re.sub(r"^layer [^ :]+", "layer", re.split("[;(]", message)[0])
    return re.sub(r"-?[0-9.]+(e[+-]?[0-9]+)?", "N", re.sub(r"(?<=` is ).*", "wrong", shortened)).strip()


def check(contents: list[bytes], count: int, seed: int) -> dict[str, Any]:
    """Reads and runs `count` mutations of some files, and tallies what became of them."""
    rng, counts, reasons = random.Random(seed), Counter(), Counter()
    ran, reading, running = 0, 0.0, 0.0
    largest_reading = largest_running = 0
    for number in range(count):
        kind, content = mutated(rng.choice(contents), rng)
        if number % 2 and len(content) >= 56:
            kind, content = kind + ", checksum right", sealed(content)
            tracemalloc.start()
        try:
            made = decode(content)
        except BadModel as error:
            counts[f"{kind}: refused"] += 1
            reasons[reason(str(error))] += 1
            continue
        finally:
            if tracemalloc.is_tracing():
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                largest_reading, reading = max(largest_reading, peak), max(reading, peak / max(1, len(content)))
        if sum(made.additions) > LARGEST_RUN:
            counts[f"{kind}: read, too long to run here"] += 1
            continue
        frames = np.random.default_rng(number).integers(
            -32768, 32768, (1, 2, *made.input.shape[1:], made.input.shape[0])
        )
        membranes, others = made.membranes(2), made.membranes(2)
        steps = min(3, made.time_steps)
        tracemalloc.start()
        outputs = Native(made, 1, "baseline").run(frames.astype(np.int16), steps, membranes)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        allowed = 2**22 + 64 * len(content)
        largest_running, running = max(largest_running, peak), max(running, peak / allowed)
        counts[f"{kind}: run"] += 1
        ran += 1
        if ran % 20 == 1:
            counts["compared"] += 1
            assert np.array_equal(Plain(made).run(frames.astype(np.int16), steps, others), outputs), number
            assert all(np.array_equal(a, b) for a, b in zip(membranes, others, strict=True)), number
    return {
        "counts": dict(sorted(counts.items())),
        "most_frequent_reasons": dict(reasons.most_common(30)),
        "largest_peak_bytes_reading": largest_reading,
        "largest_peak_bytes_reading_by_file_byte": round(reading, 1),
        "largest_peak_bytes_running": largest_running,
        "largest_peak_bytes_running_by_element_allowed": round(running, 2),
    }


def work(count: int, seed: int, library: str, folder: str) -> None:
    """The part that runs under the sanitizer; prints its tally."""
    loaded = ctypes.CDLL(library)
    native.libraries = lambda: {"baseline": loaded}  # pyright: ignore
    contents = [path.read_bytes() for path in sorted(Path(folder).glob("source*"))]
    print(json.dumps(check(contents, count, seed)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.count, options.seed, *options.work)
        return
    started = time.perf_counter()
    compiler = os.environ.get("CC", "gcc")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/kernel.so"
        subprocess.run([compiler, *FLAGS, *SANITIZER, f"-I{SHARED}", str(ENGINE), "-o", library], check=True)
        runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        for number, content in enumerate(sources(Path(folder))):
            Path(folder, f"source{number}").write_bytes(content)
        # Python itself leaks by design; NumPy's arrays come from the malloc that the sanitizer watches.
        environment = {"LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
        command = [sys.executable, __file__, "--count", str(options.count), "--seed", str(options.seed)]
        done = subprocess.run(
            [*command, "--work", library, folder],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"the worker ended with {done.returncode}:\n{done.stderr[-4000:]}")
    result = {
        "files": options.count,
        "seed": options.seed,
        "crashes": 0,
        **json.loads(done.stdout),
        "minutes": round((time.perf_counter() - started) / 60, 1),
        "kernel_flags": [*FLAGS, *SANITIZER],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
