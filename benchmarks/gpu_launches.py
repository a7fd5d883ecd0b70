"""What one time step launches on a GPU, counted without one.

    TRITON_INTERPRET=1 python benchmarks/gpu_launches.py [--batch 128] [--operations]

Network and data are on torch's `meta` device: tensors without storage take the way that tensors on a GPU take, every
operator is counted, and whoever asks for a number, as a host that waits would, gets an error. Views and allocations are
not counted; a convolution counts as one, and keeps the memory order of its input, as cuDNN's do and those of tensors
without storage do not. Writes results/gpu_launches.json.
"""

import argparse
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_counting import OneLaunch, Watching

import bsnn
from bsnn.atomic import write_file

RESULTS = Path(__file__).parent / "results" / "gpu_launches.json"
NETWORKS: dict[str, tuple[Callable[[], bsnn.ImageNetwork], int]] = {
    "vgg11": (functools.partial(bsnn.models.vgg11, num_classes=10), 32),
    "resnet18": (functools.partial(bsnn.models.resnet18, num_classes=1000), 224),
}
GOALS = {"vgg11": 120, "resnet18": 300}


class Counting(Watching):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def saw(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> None:
        """See `Watching`."""
        self.found[func.overloadpacket.__name__] += 1


def count(work: Callable[[], object]) -> Counter[str]:
    with Counting() as counting:
        work()
    return counting.found


def launches(network: str, backend: str, batch: int) -> dict[str, Counter[str]]:
    """The operators of one time step, training and evaluating, by name."""
    build, size = NETWORKS[network]
    with torch.device("meta"):
        net = build()
    binary, real = bsnn.split_parameters(net)
    flip = bsnn.optim.TBSO(binary, time_steps=4)
    optimizers = [flip, OneLaunch(real, lr=0.1, momentum=0.9)]
    images = torch.empty(batch, 3, size, size, device="meta")
    labels = torch.empty(batch, dtype=torch.int64, device="meta")
    loss = functools.partial(bsnn.step_loss, labels=labels, time_steps=4)

    def train(steps: int) -> None:
        bsnn.online_update(net, itertools.repeat(images, steps), loss, optimizers)

    def evaluate(steps: int) -> None:
        bsnn.predict(net, images, steps)

    found = {}
    with bsnn.backend(backend):
        for name, work in (("training", train), ("evaluation", evaluate)):
            net.train(name == "training")
            work(1)
            found[name] = count(functools.partial(work, 3)) - count(functools.partial(work, 2))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--operations", action="store_true", help="print every operator")
    options = parser.parse_args()
    points = []
    for network, goal in GOALS.items():
        for backend in ("triton", "fused"):
            for mode, found in launches(network, backend, options.batch).items():
                goal_here = goal if backend == "triton" else 2 * goal
                point = dict(network=network, backend=backend, mode=mode, launches=found.total(), goal=goal_here)
                points.append({**point, "host_waits": 0, "operators": dict(found.most_common())})
                print(*(f"{key} {value}" for key, value in point.items()), sep=", ")
                if options.operations:
                    print(dict(found.most_common()))
    record = {"batch": options.batch, "torch": torch.__version__, "points": points}
    write_file(RESULTS, json.dumps(record, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
