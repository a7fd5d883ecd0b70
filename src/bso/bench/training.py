"""Memory and time of one online update, against its own plain composition, BPTT, and SpikingJelly's OTTT.

Each configuration is measured in a process of its own, all in turns, several times over; what counts is the median.
"""

import json
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

from bso.errors import UserError
from bso.ledger import predict_memory
from bso.models import vgg

_VGG11 = (64, 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512)
_PEERS = ("spikingjelly-ottt",)
METHODS = ("tbso", "tbso-8", "plain", "latent-ottt", "bptt", "backward-floor", *_PEERS)
"""Ours with momentum in 32 and 8 bits, its modules one by one, latent weights online and by BPTT; the two backward
convolutions alone; SpikingJelly's OTTTSequential."""


def bench(
    methods: Sequence[str],
    batches: Sequence[int],
    time_steps: Sequence[int],
    *,
    width: float = 1.0,
    size: int = 32,
    threads: int = 2,
    repetitions: int = 5,
    sequences: int = 1,
    peers: str | None = None,
) -> dict[str, Any]:
    """Measures every method at every batch size and number of time steps.

    Args:
        methods: Some of `METHODS`.
        batches: Batch sizes.
        time_steps: Lengths of the sequences.
        width: Factor on the channels of VGG-11.
        size: Height and width of the images.
        threads: Threads of torch.
        repetitions: Processes of each configuration.
        sequences: Sequences that are timed in each process, after a first one; 0 times the first.
        peers: The python of an environment that has SpikingJelly; without it, peers are left out.
    """
    unknown = set(methods) - set(METHODS)
    if unknown:
        raise UserError(f"methods: received {', '.join(sorted(unknown))}; expected some of {', '.join(METHODS)}.")
    left_out = [method for method in methods if method in _PEERS and peers is None]
    if left_out:
        print(f"bso: left out, because --peers is not given: {', '.join(left_out)}", file=sys.stderr)
    specs = [
        {"method": m, "batch": b, "time_steps": t, "width": width, "size": size, "plan": _VGG11, "threads": threads,
         "sequences": sequences}
        for m in methods if m not in left_out for b in batches for t in time_steps
    ]  # fmt: skip
    measured: list[list[dict[str, Any]]] = [[] for _ in specs]
    with tqdm(total=repetitions * len(specs), unit="process", disable=None) as bar:
        for _ in range(repetitions):
            for spec, results in zip(specs, measured, strict=True):
                results.append(_in_a_process(spec, peers))
                bar.update()
    return {
        "network": "VGG-11",
        "width": width,
        "threads": threads,
        "repetitions": repetitions,
        "points": [_point(spec, results) for spec, results in zip(specs, measured, strict=True)],
        "left_out": left_out,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _in_a_process(spec: dict[str, Any], peers: str | None) -> dict[str, Any]:
    python = peers if spec["method"] in _PEERS and peers else sys.executable
    environment = {**os.environ, "OMP_NUM_THREADS": str(spec["threads"]), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [python, str(Path(__file__).with_name("child.py")), json.dumps(spec)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise UserError(f"--peers: {python} cannot be started ({error.strerror}); expected a python.") from error
    if done.returncode == -9:
        return {"peak_bytes": None, "step_seconds": None}  # out of memory
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"bench: {spec['method']} failed under {python} ({reason}); try it with --methods without it.")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _point(spec: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    point = {key: spec[key] for key in ("method", "batch", "time_steps")}
    for key in ("peak_bytes", "step_seconds"):
        values = [result[key] for result in results if result[key] is not None]
        point[key] = statistics.median(values) if len(values) == len(results) else None
        point[f"{key}_spread"] = [min(values), max(values)] if values else None
    if spec["method"] in ("tbso", "tbso-8"):
        net = vgg(_VGG11, width=spec["width"])
        sample = torch.zeros(1, 3, spec["size"], spec["size"])
        bits = 8 if spec["method"] == "tbso-8" else 32
        point["predicted"] = predict_memory(net, sample, spec["batch"], momentum_bits=bits)
    return point


def describe(result: dict[str, Any]) -> str:
    """The points as a table for a person."""
    lines = [f"{'method':20} {'batch':>5} {'T':>5} {'peak MB':>9} {'predicted':>9} {'ms a step':>10}"]
    for point in result["points"]:
        peak = "no room" if point["peak_bytes"] is None else f"{point['peak_bytes'] / 1e6:.0f}"
        predicted = f"{point['predicted']['total'] / 1e6:.0f}" if "predicted" in point else ""
        seconds = "" if point["step_seconds"] is None else f"{1e3 * point['step_seconds']:.0f}"
        lines.append(
            f"{point['method']:20} {point['batch']:5} {point['time_steps']:5} {peak:>9} {predicted:>9} {seconds:>10}"
        )
    return "\n".join(lines)
