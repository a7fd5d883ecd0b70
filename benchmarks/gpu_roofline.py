"""What a training time step of VGG-11 should take on two GPUs, from counted bytes and operations. A prediction.

    TRITON_INTERPRET=1 python benchmarks/gpu_roofline.py --peers PYTHON [--batch 128]

Networks run on tensors without storage, as in gpu_launches.py. Of every operator the bytes of inputs and outputs are
added up, each read or written once, and the operations of convolutions and matrix products. An operator then takes the
longer of what its bytes need at the GPU's bandwidth and what its operations need at the GPU's peak; a step takes the
longer of their sum and the time in which the host launches them. No GPU reaches its peaks, so these are bounds, and no
GPU was there to try them. PYTHON is that of an environment with SpikingJelly, whose OTTT is counted likewise, from its
own layers. Writes results/gpu_roofline.json.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from gpu_counting import OneLaunch, Watching
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu_roofline.json"
PLAN = (64, 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512)
# From NVIDIA's data sheets: bytes per second, and dense operations per second by precision (sums in single precision).
GPUS: dict[str, dict[str, float]] = {
    "A100 (40 GB, SXM)": {"bandwidth": 1.555e12, "fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
    "RTX 4090": {"bandwidth": 1.008e12, "fp32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12},
}
# Seconds in which the host launches one kernel from PyTorch; 4 to 10 microseconds are usual.
LAUNCH = 6e-6
# Precision of forward and backward convolutions. TF32 is what PyTorch allows in convolutions by default; the forward
# convolution of a binary layer is exact in it.
WAYS = {
    "ours": ("tbso", "tf32", "fp32"),
    "ours, momentum in 8 bits": ("tbso-8", "tf32", "fp32"),
    "ours, TF32": ("tbso", "tf32", "tf32"),
    "ours, without Triton": ("tbso without Triton", "tf32", "fp32"),
    "SpikingJelly's OTTT": ("spikingjelly-ottt", "fp32", "fp32"),
    "SpikingJelly's OTTT, TF32": ("spikingjelly-ottt", "tf32", "tf32"),
}
# Of what our kernels write to, what they read before.
READ_TOO = {
    "fire": {"membrane", "trace"}, "through_norm": {"gradient"}, "fold": {"momentum"}, "fold_8": {"codes", "scales"},
    "flip": {"bits"}, "moments": {"running_mean", "running_var"},
}  # fmt: skip
Operation = tuple[str, int, int]
"""An operator's name, its bytes and its floating-point operations."""


def size(tensor: Tensor) -> int:
    """The bytes of a tensor; an expanded one has fewer than elements."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


class Traffic(Watching):
    """Counts what operators move and compute."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Operation] = Counter()

    def saw(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> None:
        """See `Watching`."""
        name = func.overloadpacket.__name__
        self.found[name, moved(func, args, kwargs, made), operations(func, args, kwargs, made)] += 1


def moved(func: Any, args: Any, kwargs: Any, made: Any) -> int:
    """Bytes of inputs and outputs."""
    name, total = func.overloadpacket.__name__, 0
    inputs = [*zip(func._schema.arguments, args, strict=False)]
    inputs += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
    for argument, value in inputs:
        written = argument.alias_info is not None and argument.alias_info.is_write
        passes = 1
        if written and func.namespace == "bsnn":
            passes += argument.name in READ_TOO.get(name, ())
        elif written and argument.is_out:
            passes = 0  # it is also what the operator returns
        elif written and not tree_leaves(made):
            passes = 2  # such as `_foreach_add_`, which returns nothing
        total += sum(passes * size(leaf) for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    if name == "convolution_backward":  # the weights, or what entered, if they are not used for what is wanted
        unused = args[1] if not args[10][1] else args[2] if not args[10][0] else None
        total -= 0 if unused is None else size(unused)
    return total + sum(size(leaf) for leaf in tree_leaves(made) if isinstance(leaf, Tensor))


def operations(func: Any, args: Any, kwargs: Any, made: Any) -> int:
    """Multiplications and additions of convolutions and matrix products."""
    count = flop_registry.get(func.overloadpacket)
    return 0 if count is None else count(*args, **kwargs, out_val=made)


def counted(method: str, batch: int) -> list[list[Any]]:
    """The operations of one time step, each with how often it occurs."""
    spec = importlib.util.spec_from_file_location("child", HERE.parent / "src" / "bsnn" / "bench" / "child.py")
    assert spec is not None
    assert spec.loader is not None
    child = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(child)
    torch.optim.SGD = OneLaunch
    name, _, plain = method.partition(" without ")
    settings = {"method": name, "plan": PLAN, "width": 1.0, "size": 32, "batch": batch, "device": "meta"}
    if name != "spikingjelly-ottt":
        import bsnn

        bsnn.backend("fused" if plain else "triton")
    make = child._spikingjelly if name == "spikingjelly-ottt" else child._ours
    update = make({**settings, "time_steps": 4})
    x = torch.empty(batch, 3, 32, 32, device="meta")
    y = torch.empty(batch, dtype=torch.long, device="meta")
    found = []
    update(x, y, 1)
    for steps in (2, 3):
        with Traffic() as traffic:
            update(x, y, steps)
        found.append(traffic.found)
    return [[*operation, number] for operation, number in (found[1] - found[0]).items()]


def in_a_process(python: str, method: str, batch: int) -> list[list[Any]]:
    command = [python, str(Path(__file__).resolve()), "--count", method, "--batch", str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        sys.exit(f"{method}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def predicted(step: list[list[Any]], gpu: dict[str, float], forward: str, backward: str) -> dict[str, float]:
    """Seconds of a step."""
    by_bytes = by_operations = total = 0.0
    for name, num_bytes, num_operations, number in step:
        peak = gpu[backward if name.endswith("backward") else forward]
        moving, computing = number * num_bytes / gpu["bandwidth"], number * num_operations / peak
        by_bytes, by_operations, total = by_bytes + moving, by_operations + computing, total + max(moving, computing)
    launching = LAUNCH * sum(number for *_, number in step)
    found = {"bytes": by_bytes, "operations": by_operations, "launches": launching, "step": max(total, launching)}
    return {f"{name}_seconds": seconds for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--peers", metavar="PYTHON", help="python of an environment that has SpikingJelly")
    parser.add_argument("--count", metavar="METHOD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        print(json.dumps(counted(options.count, options.batch)))
        return
    methods = dict.fromkeys(method for method, _, _ in WAYS.values())
    steps = {}
    for method in methods:
        peer = method == "spikingjelly-ottt"
        if not peer or options.peers:
            steps[method] = in_a_process(options.peers if peer else sys.executable, method, options.batch)
    points = []
    for way, (method, forward, backward) in WAYS.items():
        if method not in steps:
            continue
        step = steps[method]
        point: dict[str, Any] = {"way": way, "forward": forward, "backward": backward}
        point["launches"] = sum(number for *_, number in step)
        point["bytes"] = sum(number * num_bytes for _, num_bytes, _, number in step)
        point["operations"] = sum(number * num_operations for _, _, num_operations, number in step)
        for gpu, numbers in GPUS.items():
            point[gpu] = predicted(step, numbers, forward, backward)
        points.append(point)
        times = ", ".join(f"{gpu} {1e3 * point[gpu]['step_seconds']:.2f} ms" for gpu in GPUS)
        print(f"{way}: {point['launches']} launches, {point['bytes'] / 1e9:.2f} GB, {times}")
    record = {
        "what": "a prediction from counts; nothing was run on a GPU",
        "network": "VGG-11", "batch": options.batch, "seconds_per_launch": LAUNCH, "gpus": GPUS, "points": points,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }  # fmt: skip
    from bsnn.atomic import write_file  # not at the top: the environment of the peers has no bsnn

    write_file(RESULTS, json.dumps(record, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
