"""Digests of what training and export compute, to show that a change of the code's structure changed no value.

`bsnn demo` with two seeds, 30 updates of VGG-11 and ResNet-18 at a quarter of the width with every flip rule, gradient
rule and storage, and the model file of a network trained so. Digests are of final bits, real-valued parameters and
metrics, on one thread. They depend on the processor: record them before a change and compare on the same machine.

    python benchmarks/behavior.py --out before.json
    python benchmarks/behavior.py --against before.json
"""

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import bsnn
from bsnn.paper.recipes import recipe
from bsnn.train.build import load_data
from bsnn.train.trainer import Trainer

UPDATES, BATCH, TIME_STEPS = 30, 8, 3
UNTIMED = ("seconds", "processor_seconds", "peak_bytes", "training_bytes")
NETWORKS = {
    "vgg11": functools.partial(bsnn.models.vgg11, num_classes=10, width=0.25),
    "resnet18": functools.partial(bsnn.models.resnet18, num_classes=10, width=0.25, stem=32),
}


def _tbso(binary: list, **settings: Any) -> Any:
    return bsnn.optim.TBSO(binary, time_steps=settings.pop("time_steps", TIME_STEPS), **settings)


# Name: gradient rule, flip optimizer, whether updates are accumulated.
METHODS: dict[str, tuple[str, Callable[..., Any], bool]] = {
    "tbso": ("ottt", _tbso, False),
    "tbso-bias-corrected": ("ottt", functools.partial(_tbso, gamma=0.01, bias_correction=True), False),
    "bso": ("ottt", bsnn.optim.BSO, False),
    "sigma": ("ottt", bsnn.optim.SigmaBSO, False),
    "ndot": ("ndot", _tbso, False),
    "sltt": ("sltt", _tbso, False),
    "bptt": ("bptt", functools.partial(_tbso, time_steps=1), False),
    "eight-bits": ("ottt", functools.partial(_tbso, momentum_bits=8), False),
    "accumulated": ("ottt", _tbso, True),
}


def _digest(parts: Any) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part if isinstance(part, bytes) else repr(part).encode())
    return sha.hexdigest()[:16]


def _digests(net: torch.nn.Module, metrics: Any) -> dict[str, str]:
    bits, real = [], []
    for parameter in net.parameters():
        binary = isinstance(parameter, bsnn.BinaryParameter)
        (bits if binary else real).append((parameter.bits if binary else parameter).detach().numpy().tobytes())
    real += [buffer.numpy().tobytes() for buffer in net.buffers()]
    return {"bits": _digest(bits), "real": _digest(real), "metrics": _digest([json.dumps(metrics, sort_keys=True)])}


def _updates(build: Callable[..., Any], method: str) -> tuple[torch.nn.Module, list[Any]]:
    """A network after some updates on seeded noise, and what each update reported."""
    gradient, make, accumulate = METHODS[method]
    torch.manual_seed(0)
    net = build(neuron=bsnn.LIF(gradient=gradient))
    binary, real = bsnn.split_parameters(net)
    flip = make(binary)
    optimizers = [flip, torch.optim.SGD(real, lr=0.05, momentum=0.9)]
    data = torch.Generator().manual_seed(1)
    metrics = []
    for _ in range(UPDATES):
        x = torch.randn(BATCH, 3, 32, 32, generator=data)
        y = torch.randint(10, (BATCH,), generator=data)
        frames = itertools.repeat(x, TIME_STEPS)
        loss = functools.partial(bsnn.step_loss, labels=y, time_steps=TIME_STEPS)
        if gradient == "bptt":
            outcome = bsnn.bptt_update(net, frames, loss, optimizers)
        else:
            outcome = bsnn.online_update(net, frames, loss, optimizers, accumulate=accumulate)
        metrics.append((float(outcome.loss), flip.flip_counts))
    return net, metrics


def _demo(seed: int) -> dict[str, str]:
    """The training of `bsnn demo`, its metrics, and the model file."""
    config = dataclasses.replace(recipe("digits"), seed=seed)
    trainer = Trainer(config, *load_data(config, None))
    for _ in range(config.epochs):
        trainer.train_epoch()
        trainer.finish_epoch()
    history = [{key: value for key, value in line.items() if key not in UNTIMED} for line in trainer.history]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        bsnn.export(trainer.net, path, data=trainer.held_out_loader.dataset, time_steps=config.time_steps, samples=359)
        return _digests(trainer.net, history) | {"model": _model_digest(path)}


def _model_digest(path: Path) -> str:
    """Of a model file without its magic and checksum."""
    content = path.read_bytes()
    return _digest([content[8:24], content[56:]])


def _exported(name: str) -> dict[str, str]:
    net, _ = _updates(NETWORKS[name], "tbso")
    net.eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        bsnn.export(net, path, input_shape=(3, 32, 32), time_steps=TIME_STEPS)
        engine = bsnn.load(path)
        x = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(2)).numpy()
        return {"model": _model_digest(path), "outputs": _digest([engine.outputs(x).tobytes()])}


def measure() -> dict[str, dict[str, str]]:
    torch.set_num_threads(1)
    found = {}
    for seed in (0, 1):
        found[f"demo seed {seed}"] = _demo(seed)
        print(f"demo seed {seed}", found[f"demo seed {seed}"], file=sys.stderr)
    for name, build in NETWORKS.items():
        for method in METHODS:
            found[f"{name} {method}"] = _digests(*_updates(build, method))
            print(f"{name} {method}", found[f"{name} {method}"], file=sys.stderr)
        found[f"{name} exported"] = _exported(name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FILE", help="write the digests")
    parser.add_argument("--against", metavar="FILE", help="compare with digests that were written before")
    options = parser.parse_args()
    result = {
        "machine": {"processor": platform.machine(), "torch": torch.__version__, "python": platform.python_version()},
        "updates": UPDATES,
        "digests": measure(),
    }
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    if options.against:
        before = json.loads(Path(options.against).read_text())["digests"]
        names = sorted(before.keys() | result["digests"].keys())
        different = [name for name in names if before.get(name) != result["digests"].get(name)]
        for name in different:
            print(f"{name}: {before.get(name)} before, {result['digests'].get(name)} now")
        print(f"{len(names) - len(different)} of {len(names)} cases are the same")
        return 1 if different else 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
