"""Trains on two processes and on one with the same global batches, and counts flips that differ.

    python benchmarks/two_processes.py [--updates 100]

Digits, T-BSO, T = 4, statistics of BatchNorm shared between the processes, in double and in single precision. An
update is a batch, which flips four times. Writes results/two_processes.json.
"""

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bsnn.nn.bits import BinaryParameter
from bsnn.paper.recipes import recipe
from bsnn.train.distributed import joined_world
from bsnn.train.trainer import Trainer, load_data

RESULTS = Path(__file__).parent / "results" / "two_processes.json"
BATCHES = 20


class Cast:
    """A loader whose inputs have another precision."""

    def __init__(self, loader: Any, dtype: torch.dtype) -> None:
        self.loader, self.dtype = loader, dtype

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, *place: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches of an epoch."""
        return ((inputs.to(self.dtype), labels) for inputs, labels in self.loader.epoch(*place))


def work(updates: int, dtype: torch.dtype, out: Path) -> None:
    """Trains, and keeps the bits after every flip."""
    torch.set_num_threads(1)
    epochs = -(-updates // BATCHES)
    config = dataclasses.replace(
        recipe("digits"), train_samples=64 * BATCHES, batch_size=64, epochs=epochs, sync_batchnorm=True
    )
    with joined_world() as world:
        run = Trainer(config, *load_data(config, None), world)
        run.net.to(dtype)
        run.train_loader = Cast(run.train_loader, dtype)  # pyright: ignore[reportAttributeAccessIssue]
        binary = [p for p in run.net.parameters() if isinstance(p, BinaryParameter)]
        bits = [torch.cat([p.bits for p in binary])]
        assert run.flip is not None
        run.flip.register_step_post_hook(lambda *_: bits.append(torch.cat([p.bits for p in binary])))
        for epoch in range(epochs):
            run.epoch, run.batch = epoch, 0
            run.train_epoch()
        run.state()  # an error if the processes differ in any bit
        if world.is_first:
            torch.save(torch.stack(bits), out)


def count(bits: Tensor) -> int:
    return sum(int(((bits >> place) & 1).sum()) for place in range(8))


def compare(updates: int, dtype: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        bits = []
        for processes in (1, 2):
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if processes == 2 else []
            out = Path(folder) / f"{processes}.pt"
            command = [sys.executable, *launch, __file__, "--updates", str(updates), "--work", dtype, str(out)]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            bits.append(torch.load(out, weights_only=True))
    one, two = bits
    flips_one, flips_two = one[1:] ^ one[:-1], two[1:] ^ two[:-1]
    unequal = (one != two).any(dim=1).nonzero()
    return {
        "dtype": dtype,
        "updates": updates,
        "flip_steps": len(one) - 1,
        "flips_of_one_process": count(flips_one),
        "flips_that_differ": count(flips_one ^ flips_two),
        "first_flip_step_that_differs": int(unequal[0]) if len(unequal) else None,
        "share_of_weights_that_differ_at_the_end": count(one[-1] ^ two[-1]) / (8 * one.shape[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--work", nargs=2, metavar=("DTYPE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.updates, getattr(torch, options.work[0]), Path(options.work[1]))
        return
    results = [compare(options.updates, dtype) for dtype in ("float64", "float32")]
    RESULTS.write_text(
        json.dumps(
            {
                "command": f"python benchmarks/two_processes.py --updates {options.updates}",
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "versions": {"python": platform.python_version(), "torch": torch.__version__},
                "results": results,
            },
            indent=1,
        )
        + "\n"
    )
    for result in results:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
