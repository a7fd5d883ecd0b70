"""One measurement of one way to train, in a process of its own: peak memory above idle, and seconds per time step.

On a GPU, memory is what PyTorch has allocated there, and launched kernels are counted too. A script, `python child.py
'{"method": ..., ...}'`, that prints one line of JSON. The python of another environment can run it too, without bsnn;
the same VGG is then built from that environment's layers.
"""

import functools
import itertools
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Update = Callable[[Tensor, Tensor, int], object]


def _ours(spec: dict[str, Any]) -> Update:
    import bsnn

    method = spec["method"]
    backpropagated, latent = method == "bptt", method in ("bptt", "latent-ottt")
    neuron = bsnn.LIF(gradient="bptt" if backpropagated else "ottt")
    net = bsnn.models.vgg(spec["plan"], width=spec["width"], weights="latent" if latent else "binary", neuron=neuron)
    net.to(spec["device"])
    fused = True if spec["device"] == "cuda" else None
    if method == "plain":
        bsnn.backend("reference")
    if latent:
        optimizers: list[Any] = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=fused)]
    else:
        binary, real = bsnn.split_parameters(net)
        bits = 8 if method == "tbso-8" else 32
        flip = bsnn.optim.TBSO(binary, time_steps=spec["time_steps"], momentum_bits=bits)
        optimizers = [flip, torch.optim.SGD(real, lr=0.1, fused=fused)]
    update = bsnn.bptt_update if backpropagated else bsnn.online_update

    def run(x: Tensor, y: Tensor, time_steps: int) -> object:
        loss = functools.partial(bsnn.step_loss, labels=y, time_steps=time_steps)
        return update(net, itertools.repeat(x, time_steps), loss, optimizers)

    return run


def _spikingjelly(spec: dict[str, Any]) -> Update:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate  # pyright: ignore

    layers: list[nn.Module] = []
    entering = 3
    for item in spec["plan"]:
        if item == "pool":
            layers.append(layer.AvgPool2d(2))
            continue
        leaving = max(1, round(item * spec["width"]))
        node = neuron.OTTTLIFNode(
            tau=2.0, decay_input=False, v_threshold=1.0, v_reset=None, surrogate_function=surrogate.Sigmoid(alpha=4.0)
        )
        layers += [layer.Conv2d(entering, leaving, 3, padding=1, bias=False), layer.BatchNorm2d(leaving), node]
        entering = leaving
    layers += [layer.AdaptiveAvgPool2d(1), layer.Flatten(), layer.Linear(entering, 10)]
    net = layer.OTTTSequential(*layers).to(spec["device"])
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, fused=True if spec["device"] == "cuda" else None)

    def run(x: Tensor, y: Tensor, time_steps: int) -> None:
        # As in its own example: one update per time step.
        for _ in range(time_steps):
            output = net(x)
            logits = output[0] if isinstance(output, list) else output
            sgd.zero_grad()
            (F.cross_entropy(logits, y) / time_steps).backward()
            sgd.step()
        functional.reset_net(net)

    return run


def _backward_floor(spec: dict[str, Any]) -> Update:
    """Only the two backward convolutions of every binary layer, in single precision."""
    shapes, entering, size = [], 3, spec["size"]
    for item in spec["plan"]:
        if item == "pool":
            size //= 2
            continue
        leaving = max(1, round(item * spec["width"]))
        shapes.append((entering, leaving, size))
        entering = leaving
    order, device = torch.channels_last, spec["device"]
    work = [
        (
            torch.randn(spec["batch"], leaving, size, size).to(device, memory_format=order),
            torch.rand(spec["batch"], entering, size, size).to(device, memory_format=order),
            torch.randn(leaving, entering, 3, 3).to(device, memory_format=order),
        )
        for entering, leaving, size in shapes[1:]
    ]

    def run(x: Tensor, y: Tensor, time_steps: int) -> None:
        pair = (1, 1)
        for _ in range(time_steps):
            for grad, entering, weight in work:
                torch.ops.aten.convolution_backward(
                    grad, entering, weight, None, pair, pair, pair, False, (0, 0), 1, (True, True, False)
                )

    return run


def _status(name: str) -> int:
    """One of the sizes of this process that Linux reports, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Trains on a few sequences and says what they took."""
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    make = {"spikingjelly-ottt": _spikingjelly, "backward-floor": _backward_floor}.get(spec["method"], _ours)
    if make is _spikingjelly:
        import spikingjelly.activation_based.neuron  # noqa: F401  # pyright: ignore
    if spec["device"] == "cuda":
        return _measure_on_gpu(make, spec)
    F.conv2d(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3))
    idle = _status("VmRSS")
    # A tiny network first: the memory that it adds is code, not training.
    _train(make, {**spec, "batch": 2, "time_steps": 1, "sequences": 0, "width": 0.02, "size": 8})
    program = _status("VmRSS") - idle
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of starting up
    limit = spec["limit_bytes"]
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + limit, resource.RLIM_INFINITY))
    try:
        seconds = _train(make, spec)
    except (MemoryError, RuntimeError) as error:
        # torch says "can't allocate memory", the libraries below it say bad_alloc.
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        return {"peak_bytes": None, "program_bytes": None, "step_seconds": None}
    peak = _status("VmHWM") - idle
    return {"peak_bytes": peak, "program_bytes": program, "step_seconds": statistics.median(seconds[1:] or seconds)}


def _measure_on_gpu(make: Callable[[dict[str, Any]], Update], spec: dict[str, Any]) -> dict[str, Any]:
    try:
        # The first sequence compiles kernels, and the next ones are timed.
        seconds = _train(make, {**spec, "sequences": max(1, spec["sequences"])})
        peak = torch.cuda.max_memory_allocated()
        launches = _count_launches(make, spec)
    except torch.cuda.OutOfMemoryError:
        return {"peak_bytes": None, "program_bytes": None, "step_seconds": None}
    found = {"peak_bytes": peak, "program_bytes": 0, "step_seconds": statistics.median(seconds[1:])}
    return {**found, "step_launches": launches, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


def _count_launches(make: Callable[[dict[str, Any]], Update], spec: dict[str, Any]) -> float:
    """Kernels that a time step launches, as the profiler sees them, in a sequence that is not the first."""
    update, (x, y) = make(spec), _batch(spec)
    update(x, y, spec["time_steps"])
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiled:
        update(x, y, spec["time_steps"])
        torch.cuda.synchronize()
    return launches_in((event.key, event.count) for event in profiled.key_averages()) / spec["time_steps"]


def launches_in(events: Iterable[tuple[str, int]]) -> int:
    """How many of the profiler's events launch a kernel: by CUDA's runtime, or by its driver, as Triton does."""
    return sum(count for name, count in events if name.startswith(("cudaLaunchKernel", "cuLaunchKernel")))


def _batch(spec: dict[str, Any]) -> tuple[Tensor, Tensor]:
    x, y = torch.randn(spec["batch"], 3, spec["size"], spec["size"]), torch.zeros(spec["batch"], dtype=torch.long)
    return x.to(spec["device"]), y.to(spec["device"])


def _train(make: Callable[[dict[str, Any]], Update], spec: dict[str, Any]) -> list[float]:
    """Trains; gives the seconds per time step of each sequence."""
    update, (x, y) = make(spec), _batch(spec)
    seconds = []
    for _ in range(1 + spec["sequences"]):
        started = time.perf_counter()
        update(x, y, spec["time_steps"])
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - started) / spec["time_steps"])
    return seconds


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
