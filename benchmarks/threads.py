"""How much more training gets done with two threads than with one, and which part of an update gains how much.

    python benchmarks/threads.py [--repetitions 5] [--updates 10]

Updates of the network of cifar10-small on batches of 128 random images, each number of threads in processes of its own
that take turns; two threads are also compared with two processes of one thread each, side by side, and one thread with
one whose memory is in small pages. Precision is the recipe's, and freed memory is kept, as in `bsnn train`. `update` is
`bsnn.online_update`; the parts are those of the plain loop. Seconds are those of the clock, so nothing else may run.
Writes results/threads.json.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "threads.json"
RECIPE, BATCH = "cifar10-small", 128


def work(updates: int) -> None:
    """Trains a few updates and prints the seconds of each part."""
    import torch

    import bsnn
    from bsnn.kernels.memory import keeping_memory
    from bsnn.paper.recipes import recipe
    from bsnn.train.whitening import fix_first_layer

    torch.manual_seed(0)
    config = recipe(RECIPE)
    net = bsnn.models.residual(config.plan, neuron=bsnn.LIF(threshold=config.threshold, gradient=config.gradient))
    fix_first_layer(net)
    binary, real = bsnn.split_parameters(net)
    flip = bsnn.optim.TBSO(binary, time_steps=1)
    optimizers = [flip, torch.optim.SGD(real, lr=0.1, momentum=0.9, nesterov=True)]
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % 10
    seconds: dict[str, list[float]] = defaultdict(list)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return bsnn.step_loss(logits, labels, time_steps=1)

    with keeping_memory(), bsnn.precision(config.precision):
        for _ in range(updates):
            start = time.perf_counter()
            bsnn.online_update(net, [images], loss, optimizers)
            seconds["update"].append(time.perf_counter() - start)
        for _ in range(updates):
            times = [time.perf_counter()]
            logits, _ = net(images, net.initial_state(images))
            times.append(time.perf_counter())
            loss(logits).backward()
            times.append(time.perf_counter())
            flip.step(t=0)
            optimizers[1].step()
            net.zero_grad()
            times.append(time.perf_counter())
            for name, begun, ended in zip(("forward", "backward", "flips and SGD"), times, times[1:], strict=False):
                seconds[name].append(ended - begun)
    # The first update of each kind allocates.
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    print(json.dumps(medians | {"peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


def begin(threads: int, updates: int, huge_pages: bool = True) -> subprocess.Popen[str]:
    pages = {"THP_MEM_ALLOC_ENABLE": str(int(huge_pages))}
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **pages}
    command = [sys.executable, __file__, "--work", "--updates", str(updates)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, float]:
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a process of the measurement ended with {process.returncode}.")
    return json.loads(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.updates)
        return
    ways = ("1 thread", "1 thread, small pages", "2 threads", "2 processes")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(options.repetitions):
        found["1 thread"].append(ended(begin(1, options.updates)))
        found["1 thread, small pages"].append(ended(begin(1, options.updates, huge_pages=False)))
        found["2 threads"].append(ended(begin(2, options.updates)))
        found["2 processes"] += [ended(process) for process in [begin(1, options.updates) for _ in range(2)]]
    medians = {
        way: {part: statistics.median(run[part] for run in runs) for part in runs[0] if part != "peak_bytes"}
        for way, runs in found.items()
    }
    one, small_pages, two, side_by_side = medians.values()
    result: dict[str, Any] = {
        "command": "python benchmarks/threads.py",
        "recipe": RECIPE,
        "batch": BATCH,
        "seconds": medians,
        "updates_seconds": {way: [run["update"] for run in runs] for way, runs in found.items()},
        "gain_of_two_threads": {part: round(one[part] / two[part], 2) for part in one},
        "gain_of_two_processes": round(2 * one["update"] / side_by_side["update"], 2),
        "share_of_time_with_huge_pages": round(one["update"] / small_pages["update"], 2),
        "peak_bytes": {way: max(run["peak_bytes"] for run in found[way]) for way in ways[:2]},
        "repetitions": options.repetitions,
        "load_average": os.getloadavg()[0],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
