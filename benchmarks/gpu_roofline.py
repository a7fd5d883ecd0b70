"""Predicts the time of a training time step of VGG-11 on two GPUs from counted bytes and operations, without a GPU.

    TRITON_INTERPRET=1 python benchmarks/gpu_roofline.py --peers PYTHON [--batch 128]

Networks run on tensors without storage, as in gpu_launches.py. Of every launch the bytes of its inputs and outputs are
counted, each read or written once, and the operations of convolutions and matrix products. A launch takes the longest
of what its bytes need at the GPU's bandwidth, its operations at the GPU's peak, and the host to launch it; a step is
their sum. PYTHON is that of an environment with SpikingJelly, whose OTTT is counted likewise, from its own layers and
in its own process. Writes results/gpu_roofline.json.
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
from gpu_counting import OneLaunch, Watching, tensors_in
from torch import Tensor
from torch.utils.flop_counter import flop_registry

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "gpu_roofline.json"
PLAN = (64, 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512)
TIME_STEPS = 4
# Bytes per second; dense operations per second by precision of the factors, added in single precision. From NVIDIA's
# "A100 Tensor Core GPU" data sheet (40 GB) and the appendix of its "Ada GPU Architecture" white paper.
GPUS: dict[str, dict[str, float]] = {
    "A100": {"bandwidth": 1.555e12, "fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
    "RTX 4090": {"bandwidth": 1.008e12, "fp32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12},
}
# Assumed seconds between two launches by the host: PyTorch's own operators, and a host that is busy in Python.
LAUNCH, SLOW_LAUNCH = 5e-6, 20e-6
PEER = "spikingjelly-ottt"
# A method of bsnn.bench.child, a backend, and the precision of the gradients of synapses.
WAYS = {
    "bsnn, Triton": ("tbso", "triton", "fp32"),
    "bsnn, Triton, --precision tf32": ("tbso", "triton", "tf32"),
    "bsnn, Triton, --precision bf16": ("tbso", "triton", "bf16"),
    "bsnn, Triton, --precision tf32, momentum in 8 bits": ("tbso-8", "triton", "tf32"),
    "bsnn, torch path": ("tbso", "fused", "fp32"),
    "bsnn, torch path, --precision tf32": ("tbso", "fused", "tf32"),
    "SpikingJelly's OTTT, TF32": (PEER, None, "tf32"),
    "SpikingJelly's OTTT, single precision": (PEER, None, "fp32"),
}
LEAVES_OUT = [
    "achieved shares of the peaks, which are below 1 for every kernel and lowest for small layers",
    "caches: what one kernel writes may still be in the L2 cache (40 MB and 72 MB) when the next one reads it",
    "algorithms of cuDNN: Winograd's takes fewer operations, a change of memory order more bytes",
    "second reads: PyTorch's BatchNorm and norms are counted as reading their input once, kernels of ours as they read",
    "Python: the host is assumed to keep up with the GPU; seconds_with_slow_host has one that is four times slower",
]
# Of what our operators write to, what they read before.
READ_TOO = {
    "fire": {"membrane", "trace"}, "through_norm": {"gradient"}, "fold": {"momentum"}, "fold_8": {"codes", "scales"},
    "flip": {"bits"}, "moments": {"running_mean", "running_var"},
}  # fmt: skip
Launch = tuple[str, str, int, int]
"""An operator's name, its precision class (see `predicted`), its bytes and its floating-point operations."""


class Traffic(Watching):
    """Counts what launches move and compute."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Launch] = Counter()

    def saw(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> None:
        """See `Watching`; of a convolution's backward pass, each gradient is a launch."""
        name = func.overloadpacket.__name__
        count = flop_registry.get(func.overloadpacket)
        operations = 0 if count is None else count(*args, **kwargs, out_val=made)
        if name == "convolution_backward":
            gradient, entered, weight, wanted = *args[:3], args[10]
            assert not wanted[2]
            for read, written in ((weight, made[0]), (entered, made[1])):
                if written is not None:
                    moved = size(gradient) + size(read) + size(written)
                    self.found[name, "backward", moved, operations // sum(wanted)] += 1
            return
        kind = "other"
        if name == "convolution":
            kind = "first" if args[0].shape[1] == 3 else "forward"
        self.found[name, kind, moved_bytes(func, args, kwargs, made), operations] += 1


def size(tensor: Tensor) -> int:
    """The bytes of a tensor; an expanded one has fewer than its elements."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def moved_bytes(func: Any, args: Any, kwargs: Any, made: Any) -> int:
    """Bytes of inputs and outputs."""
    name = func.overloadpacket.__name__
    given = [*zip(func._schema.arguments, args, strict=False)]
    given += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
    total = sum(size(tensor) for tensor in tensors_in(made))
    for argument, value in given:
        written = argument.alias_info is not None and argument.alias_info.is_write
        passes = 1
        if written and func.namespace == "bsnn":
            passes += argument.name in READ_TOO.get(name, ())
        elif written:
            # What is returned counts already. An operator such as `_foreach_add_` returns nothing.
            passes = (not tensors_in(made)) + (not argument.is_out and "copy_" not in name)
        total += sum(passes * size(tensor) for tensor in tensors_in(value))
    return total


def counted(method: str, backend: str | None, precision: str, batch: int) -> list[list[Any]]:
    """The launches of one time step, each with how often it occurs."""
    spec = importlib.util.spec_from_file_location("child", HERE.parent / "src" / "bsnn" / "bench" / "child.py")
    assert spec is not None
    assert spec.loader is not None
    child = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(child)
    torch.optim.SGD = OneLaunch
    if backend is not None:
        import bsnn

        bsnn.backend(backend)
        bsnn.precision(precision)
    make = child._spikingjelly if method == PEER else child._ours
    settings = {"method": method, "plan": PLAN, "width": 1.0, "size": 32, "batch": batch, "time_steps": TIME_STEPS}
    update = make({**settings, "device": "meta"})
    x = torch.empty(batch, 3, 32, 32, device="meta")
    y = torch.empty(batch, dtype=torch.long, device="meta")
    found = []
    update(x, y, 1)
    for steps in (2, 3):
        with Traffic() as traffic:
            update(x, y, steps)
        found.append(traffic.found)
    assert not found[0] - found[1]
    return [[*launch, number] for launch, number in (found[1] - found[0]).items()]


def in_a_process(python: str, *way: Any) -> list[list[Any]]:
    command = [python, str(HERE / "gpu_roofline.py"), "--count", json.dumps(way)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        sys.exit(f"{way}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def predicted(step: list[list[Any]], gpu: dict[str, float], precision: str, ours: bool) -> dict[str, Any]:
    """Seconds of a step, and what they are made of.

    Of ours, the forward products of binary weights are exact in TF32 and use it whatever is set. PyTorch computes
    matrix products in single precision unless told otherwise.
    """
    peaks = {"backward": precision, "other": "fp32", "first": "tf32" if precision == "bf16" else precision}
    peaks["forward"] = "tf32" if ours else precision
    seconds, slow = 0.0, 0.0
    bound: Counter[str] = Counter()
    for _, kind, num_bytes, operations, number in step:
        needed = {
            "bytes": num_bytes / gpu["bandwidth"],
            "operations": operations / gpu[peaks[kind]],
            "launches": LAUNCH,
        }
        by, longest = max(needed.items(), key=lambda item: item[1])
        bound[by] += number * longest
        seconds += number * longest
        slow += number * max(longest, SLOW_LAUNCH)
    return {"seconds": seconds, "seconds_bound_by": dict(bound), "seconds_with_slow_host": slow}


def narrower(batch: int) -> dict[str, Any]:
    """In which layers currents and traces would be exact in 16 bits, and what that would save in a step.

    A current is a sum of ±1 times whole numbers of 1/L (L = 4 after pooling), so the largest is, in units of 1/L, L
    times the number of products. Half precision holds 2¹¹ of them, an integer of 16 bits 2¹⁵ − 1.
    """
    layers, entering, side, levels = [], 3, 32, 0
    for index, item in enumerate(PLAN):
        if item == "pool":
            side, levels = side // 2, 4
            continue
        products, pooled = 9 * entering, PLAN[index + 1 : index + 2] == ("pool",)
        layer = {"channels": item, "side": side, "neurons": batch * item * side**2, "pooled": pooled}
        if levels:  # the first layer's weights are real
            largest = levels * products
            layer |= {"largest": largest, "in_fp16": largest <= 2**11, "in_int16": largest < 2**15}
        layers.append(layer)
        entering, levels = item, 1
    half = sum(layer["neurons"] for layer in layers if layer.get("in_fp16"))
    integers = sum(layer["neurons"] for layer in layers if layer.get("in_int16"))
    pooled = sum(layer["neurons"] for layer in layers if layer["pooled"])
    return {
        "layers": layers,
        # Written by the convolution, read by moments, fire, through and through_norm: two bytes less, five times.
        "saved_by_fp16_currents": 10 * half,
        # The convolution writes single precision. If moments writes two bytes, three kernels read two bytes less.
        "saved_by_int16_currents": 4 * integers,
        "memory_saved_by_int16_currents": 2 * integers,  # they are kept for the backward pass
        # fire reads and writes it; where there is no pooling, the weight gradient needs it in single precision as well.
        "saved_by_fp16_traces": 4 * pooled,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--peers", metavar="PYTHON", help="python of an environment that has SpikingJelly")
    parser.add_argument("--count", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        print(json.dumps(counted(*json.loads(options.count))))
        return
    ways = {name: way for name, way in WAYS.items() if way[0] != PEER or options.peers}
    steps: dict[Any, list[list[Any]]] = {}
    points = []
    for name, (method, backend, precision) in ways.items():
        counts_as = method, backend, "bf16" if precision == "bf16" else "fp32"  # TF32 changes no count
        if counts_as not in steps:
            python = options.peers if method == PEER else sys.executable
            steps[counts_as] = in_a_process(python, *counts_as, options.batch)
        step = steps[counts_as]
        point: dict[str, Any] = {"way": name, "precision": precision, "launches": sum(row[-1] for row in step)}
        point |= {"bytes": sum(row[2] * row[-1] for row in step), "operations": sum(row[3] * row[-1] for row in step)}
        point["gpus"] = {gpu: predicted(step, peaks, precision, method != PEER) for gpu, peaks in GPUS.items()}
        points.append(point)
        times = ", ".join(f"{gpu} {1e3 * found['seconds']:.2f} ms" for gpu, found in point["gpus"].items())
        print(f"{name}: {point['launches']} launches, {point['bytes'] / 1e9:.2f} GB, {times}")
    record = {
        "what": "a prediction from counted bytes and operations; nothing was measured on a GPU",
        "network": "VGG-11, one training time step", "batch": options.batch, "time_steps": TIME_STEPS, "gpus": GPUS,
        "launch_seconds": LAUNCH, "slow_launch_seconds": SLOW_LAUNCH, "leaves_out": LEAVES_OUT,
        "points": points, "narrower": narrower(options.batch),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }  # fmt: skip
    if options.peers:
        ask = [options.peers, "-c", "from importlib.metadata import version; print(version('spikingjelly'))"]
        found = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
        record["versions"]["spikingjelly"] = found
    from bsnn.atomic import write_file  # not at the top: the environment of the peers has no bsnn

    write_file(RESULTS, json.dumps(record, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
