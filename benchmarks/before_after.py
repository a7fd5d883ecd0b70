"""Time and memory of a training update before and after a change of the code, as ratios in one run.

    python benchmarks/before_after.py --before ANOTHER_CHECKOUT [--repetitions 7]

Each checkout has its kernels built (`python setup.py build_kernel --inplace`). They take turns, each in a process of
its own on one thread: `online_update` of VGG-11, T = 2, with T-BSO in 32 and 8 bits. Time is of the processor, so that
others on the machine disturb it less; memory is what tensors hold at their peak, counted. Writes
results/before_after.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "before_after.json"
TIME_STEPS, UPDATES, BATCH = 2, 4, 32
METHODS = {"tbso": {}, "tbso-8": {"momentum_bits": 8}}


def work(method: str) -> None:
    """Trains a few updates and prints what each takes."""
    import functools
    import itertools

    import torch

    import bsnn
    from bsnn.kernels.memory import peak_bytes

    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = bsnn.models.vgg11(num_classes=10)
    binary, real = bsnn.split_parameters(net)
    flip = bsnn.optim.TBSO(binary, time_steps=TIME_STEPS, **METHODS[method])
    optimizers = [flip, torch.optim.SGD(real, lr=0.1)]
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % 10
    loss = functools.partial(bsnn.step_loss, labels=labels, time_steps=TIME_STEPS)

    def update() -> None:
        bsnn.online_update(net, itertools.repeat(images, TIME_STEPS), loss, optimizers)

    update()
    seconds = []
    for _ in range(UPDATES):
        start = time.process_time()
        update()
        seconds.append(time.process_time() - start)
    print(json.dumps({"seconds": min(seconds), "bytes": peak_bytes(update)}))


def run(tree: Path, method: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--work", method]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def revision(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def compare(before: Path, method: str, repetitions: int) -> dict[str, Any]:
    pairs = [(run(before, method), run(ROOT, method)) for _ in range(repetitions)]
    ratios = sorted(new["seconds"] / old["seconds"] for old, new in pairs)
    return {
        "method": method,
        "time_ratio": round(statistics.median(ratios), 3),
        "time_ratio_lowest_and_highest": [round(ratios[0], 3), round(ratios[-1], 3)],
        "bytes_ratio": round(pairs[0][1]["bytes"] / pairs[0][0]["bytes"], 4),
        "seconds_after": round(statistics.median(new["seconds"] for _, new in pairs), 4),
    }


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--work", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    if options.before is None:
        parser.error("--before: received none; expected another checkout to compare with")
    found = {
        "command": "python benchmarks/before_after.py --before CHECKOUT",
        "checkouts": {"before": revision(options.before), "after": revision(ROOT)},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "network": f"VGG-11, batch {BATCH}, T = {TIME_STEPS}, the fastest of {UPDATES} updates of each process",
        "repetitions": options.repetitions,
        "points": [compare(options.before, method, options.repetitions) for method in METHODS],
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["points"], indent=1))


if __name__ == "__main__":
    main()
