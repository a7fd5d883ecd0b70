"""Damages the newest checkpoint of a run in random ways; each time, resuming must name it and use the one before.

    python benchmarks/corruption.py [--count 1000] [--seed 0]

Half of the damages change random bytes, half cut the file short. Every time the checkpoint that is found is compared
with the one before, bit by bit, and put into a trainer; every fiftieth time the run is also resumed to its end and
compared with the undamaged one. Writes results/corruption.json.
"""

import argparse
import dataclasses
import json
import os
import platform
import random
import tempfile
from collections import Counter
from pathlib import Path

import torch
from survival import differences, end_of

from bsnn.paper.recipes import recipe
from bsnn.train.loop import train
from bsnn.train.run import RunDirectory
from bsnn.train.trainer import Trainer, load_data

RESULTS = Path(__file__).parent / "results" / "corruption.json"
CONFIG = dataclasses.replace(recipe("digits"), plan=(8, 16, "pool", 16), train_samples=200, epochs=3)


def damaged(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    if rng.random() < 0.5:
        return "cut short", content[: rng.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 10, 1000))):
        changed[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    return "bytes changed", bytes(changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        train(CONFIG, run.path)
        whole = end_of(run.path)
        newest, before = run.checkpoints.newest_first()[:2]
        content, files = newest.read_bytes(), {path: path.read_bytes() for path in newest.parent.iterdir()}
        newest.unlink()
        expected, _ = run.checkpoints.load_newest()
        trainer = Trainer(CONFIG, *load_data(CONFIG, None))
        for number in range(options.count):
            kind, bad = damaged(content, rng)
            if bad == content:
                continue
            newest.write_bytes(bad)
            counts[kind] += 1
            try:
                state, notes = run.checkpoints.load_newest()
                named = len(notes) == 1 and str(newest) in notes[0]
                counts["refused by name, the one before used"] += named and not differences(state, expected)
                trainer.load_state(state)
                if number % 50 == 0:
                    train(CONFIG, run.path, resume=True)
                    counts["resumed to the end"] += 1
                    counts["resumed to the end with the same bits"] += not differences(end_of(run.path), whole)
                    for path, original in files.items():
                        path.write_bytes(original)
            except Exception as error:
                counts[f"crash: {error!r}"] += 1
        result = {
            "command": f"python benchmarks/corruption.py --count {options.count} --seed {options.seed}",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "checkpoint_bytes": len(content),
            "checkpoint": newest.name,
            "the_one_before": before.name,
            "counts": counts,
        }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
