"""Memory and time of one online update, on a CPU or a GPU, compared with plain modules, BPTT and SpikingJelly's OTTT.

Each configuration is measured in a process of its own, several times, in turns with the others. The median counts.
"""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bsnn.errors import UserError
from bsnn.kernels import backend
from bsnn.models import vgg11
from bsnn.models.vgg import VGG11
from bsnn.nn.bits import split_parameters
from bsnn.online.ledger import predict_memory
from bsnn.optim import TBSO
from bsnn.train.distributed import device_named
from bsnn.train.fit import free_bytes

_PEERS = ("spikingjelly-ottt",)
METHODS = ("tbso", "tbso-8", "plain", "latent-ottt", "bptt", "backward-floor", *_PEERS)
"""Ours with momentum in 32 and in 8 bits, and with its modules run one by one; latent weights, trained online and by
BPTT; the two backward convolutions alone; SpikingJelly's OTTTSequential."""
NO_ROOM = {"peak_bytes": None, "program_bytes": None, "step_seconds": None}
# Small, so that a thousand time steps do not take long and BPTT has room for many.
_LONG_BATCH = 2
# In single precision: weight, momentum and gradient; and the same with latent weights behind the binary ones.
_USUAL_STATE = {"usual": 12.0, "latent with momentum": 16.0}


def bench(
    methods: Sequence[str],
    batches: Sequence[int],
    time_steps: Sequence[int],
    *,
    lengths: Sequence[int] = (),
    width: float = 1.0,
    size: int = 32,
    threads: int = 2,
    repetitions: int = 5,
    sequences: int = 1,
    peers: str | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Measures every method at every batch size and number of time steps.

    Args:
        methods: Some of `METHODS`.
        batches: Batch sizes.
        time_steps: Lengths of the sequences.
        lengths: Also measure T-BSO and BPTT, if among the methods, at these lengths and a batch size of two. Each
            trains for the same number of time steps in total.
        width: Factor on the channels of VGG-11.
        size: Height and width of the images.
        threads: Threads of torch.
        repetitions: Processes per configuration.
        sequences: Sequences that are timed in each process, after a first one; with 0, the first one is timed.
        peers: The python of an environment that has SpikingJelly; without it, peers are left out.
        device: `cpu`, or `cuda` for the first GPU.
    """
    if device not in ("cpu", "cuda"):
        raise UserError(f"device: received {device!r}; expected cpu or cuda.")
    device_named(device)  # refuses cuda if there is no GPU
    unknown = set(methods) - set(METHODS)
    if unknown:
        raise UserError(f"methods: received {', '.join(sorted(unknown))}; expected some of {', '.join(METHODS)}.")
    counts = {"batch": batches, "time steps": [*time_steps, *lengths], "threads": [threads]}
    for name, values in {**counts, "repetitions": [repetitions]}.items():
        for value in values:
            if value < 1:
                raise UserError(f"{name}: received {value}; expected a whole number, 1 or more.")
    if not 0 < width < math.inf:
        raise UserError(f"width: received {width}; expected a factor above 0, such as 0.25.")
    left_out = [method for method in methods if method in _PEERS and peers is None]
    if left_out:
        print(f"bsnn: left out, because --peers is not given: {', '.join(left_out)}", file=sys.stderr)
    grid = [(m, b, t) for m in methods if m not in left_out for b in batches for t in sorted(time_steps)]
    # All lengths train for the same number of time steps: the heap grows a little with the number of updates.
    long = {
        (m, _LONG_BATCH, t): max(lengths) // t - 1 for m in ("tbso", "bptt") if m in methods for t in sorted(lengths)
    }
    shared = {"width": width, "size": size, "plan": VGG11, "threads": threads, "device": device}
    specs = [
        {"method": m, "batch": b, "time_steps": t, "sequences": long.get((m, b, t), sequences), **shared}
        for m, b, t in dict.fromkeys([*grid, *long])
    ]
    measured: list[list[dict[str, Any]]] = [[] for _ in specs]
    with tqdm(total=repetitions * len(specs), unit="process", disable=None) as bar:
        for _ in range(repetitions):
            full: set[tuple[str, int]] = set()
            for spec, results in zip(specs, measured, strict=True):
                case = spec["method"], spec["batch"]
                # What did not fit once will not fit again, nor at a greater length.
                if case in full or (results and results[-1] == NO_ROOM):
                    results.append(NO_ROOM)
                else:
                    results.append(in_a_process(spec, peers))
                if results[-1] == NO_ROOM:
                    full.add(case)
                bar.update()
    return {
        "network": "VGG-11",
        "width": width,
        "threads": threads,
        "repetitions": repetitions,
        "points": [_point(spec, results) for spec, results in zip(specs, measured, strict=True)],
        "ratios": _ratios(specs, measured),
        "state_bytes_per_weight": _state_per_weight(width),
        "left_out": left_out,
        "device": device,
        "backend": backend(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def in_a_process(spec: dict[str, Any], peers: str | None = None) -> dict[str, Any]:
    """One measurement by `child.py`, which may use three quarters of the free memory; `NO_ROOM` if it needs more."""
    python = peers if spec["method"] in _PEERS and peers else sys.executable
    environment = {**os.environ, "OMP_NUM_THREADS": str(spec["threads"])}
    free = free_bytes()
    limited = {**spec, "limit_bytes": None if free is None or spec["device"] != "cpu" else free * 3 // 4}
    command = [python, str(Path(__file__).with_name("child.py")), json.dumps(limited)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise UserError(f"--peers: {python} cannot be started ({error.strerror}); expected a python.") from error
    if done.returncode == -9:
        return NO_ROOM
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"bench: {spec['method']} failed under {python} ({reason}); try it with --methods without it.")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _point(spec: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    point = {key: spec[key] for key in ("method", "batch", "time_steps")}
    for key in NO_ROOM:
        values = [result[key] for result in results if result[key] is not None]
        point[key] = statistics.median(values) if len(values) == len(results) else None
        point[f"{key}_spread"] = [min(values), max(values)] if values else None
    # What only a GPU tells: its name, PyTorch's version there, and launches, which are the same each time.
    point |= {key: value for key, value in results[0].items() if key not in NO_ROOM}
    if spec["method"] in ("tbso", "tbso-8") and spec["device"] == "cpu":
        net = vgg11(width=spec["width"])
        sample = torch.zeros(1, 3, spec["size"], spec["size"])
        bits = 8 if spec["method"] == "tbso-8" else 32
        point["predicted"] = predict_memory(net, sample, spec["batch"], momentum_bits=bits)
    return point


def _ratios(specs: list[dict[str, Any]], measured: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Ours against the peer and the floor, and every length against T = 1; median and spread over repetitions."""
    results = {(s["method"], s["batch"], s["time_steps"]): r for s, r in zip(specs, measured, strict=True)}
    found = []
    for method, batch, length in results:
        against = [("step_seconds", ("backward-floor", batch, length))] if method.startswith("tbso") else []
        for key in ("peak_bytes", "step_seconds"):
            against += [(key, (peer, batch, length)) for peer in _PEERS if method not in (*_PEERS, "backward-floor")]
        if length != 1:
            against.append(("peak_bytes", (method, batch, 1)))
        for key, other in against:
            pairs = zip(results[method, batch, length], results.get(other, []), strict=False)
            values = [ours[key] / theirs[key] for ours, theirs in pairs if ours[key] and theirs[key]]
            if values:
                found.append(
                    {
                        "of": key,
                        "method": method,
                        "batch": batch,
                        "time_steps": length,
                        "against": other[0] if other[0] != method else "T = 1",
                        "ratio": statistics.median(values),
                        "ratio_spread": [min(values), max(values)],
                    }
                )
    return found


def _state_per_weight(width: float) -> dict[str, float]:
    """Bytes per binary weight that are kept from update to update: ours, counted, and what is usual."""
    net = vgg11(width=width)
    binary, _ = split_parameters(net)
    weights = sum(parameter.numel() for parameter in binary)
    bits = sum(parameter.bits.nbytes for parameter in binary)
    counted = {}
    for method, momentum_bits in (("tbso", 32), ("tbso-8", 8)):
        states = TBSO(binary, time_steps=4, momentum_bits=momentum_bits).state
        counted[method] = (bits + sum(value.nbytes for state in states.values() for value in state.values())) / weights
    return {**counted, **_USUAL_STATE}


def describe(result: dict[str, Any]) -> str:
    """Words the points, the ratios and the bytes per weight."""
    columns = f"{'method':18} {'batch':>5} {'T':>5} {'peak MB':>8} {'(spread)':>13} {'predicted':>9} {'ms/step':>10}"
    on_gpu = result["device"] == "cuda"
    lines = [columns + " launches/step" * on_gpu]
    for point in result["points"]:
        peak, spread, predicted, seconds = "no room", "", "", ""
        if point["peak_bytes"] is not None:
            low, high = point["peak_bytes_spread"]
            peak, spread = f"{point['peak_bytes'] / 1e6:.0f}", f"({low / 1e6:.0f} to {high / 1e6:.0f})"
            seconds = f"{1e3 * point['step_seconds']:.{2 if on_gpu else 0}f}"
            if "predicted" in point:
                predicted = f"{(point['predicted']['total'] + point['program_bytes']) / 1e6:.0f}"
        lines.append(
            f"{point['method']:18} {point['batch']:5} {point['time_steps']:5} {peak:>8} {spread:>13} {predicted:>9} "
            f"{seconds:>10}" + (f" {point['step_launches']:13.0f}" if "step_launches" in point else "")
        )
    for ratio in result["ratios"]:
        what = "peak memory" if ratio["of"] == "peak_bytes" else "time of a step"
        low, high = ratio["ratio_spread"]
        lines.append(
            f"{what}, {ratio['method']}, batch {ratio['batch']}, T = {ratio['time_steps']}: {ratio['ratio']:.3g} times "
            f"that of {ratio['against']} ({low:.3g} to {high:.3g})"
        )
    state = ", ".join(f"{name} {number:.3g}" for name, number in result["state_bytes_per_weight"].items())
    return "\n".join([*lines, f"bytes that stay for each binary weight: {state}"])
