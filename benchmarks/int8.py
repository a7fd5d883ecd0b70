"""Speech Commands at equal RAM: convolutional networks in int8 beside the network that `--ram 16k` picks.

    python benchmarks/int8.py --data speech_commands --peers PYTHON [--out RUNS] [--seeds 0 1 2]

The networks have ReLU instead of spiking neurons and real-valued weights. They are trained by torch on the batches that
ours is trained on: the same speakers, augmentation, order and number of epochs; by SGD with usual settings, which were
not tuned. Then onnxruntime quantizes them (weights in 8 bits with a scale per channel, activations in 8 bits with a
scale per layer), calibrated on training words; PYTHON is the interpreter of an environment that has onnx and
onnxruntime. A seed that was measured before is not trained again.

Bytes of RAM are those of the activations of two adjacent layers, input included, at one byte each. That is the least
that a runtime needs which computes layer by layer, and less than it takes in fact. Bytes of flash are those of weights,
biases and scales, without code. The front end would be the same. What is ours comes from results/budgets.json. Writes
results/int8.json.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import bsnn
from bsnn.data.loader import Loader
from bsnn.paper.recipes import recipe
from bsnn.train.build import build_augmentation, load_data
from bsnn.train.config import Config

RESULTS = Path(__file__).parent / "results"
DEVICE = "speech-commands-device"
SIZE, CALIBRATION_WORDS = 32, 256

# Behind "down" a convolution has stride 2; "separable" makes it a depthwise and a pointwise one.
PLANS: dict[str, tuple[int | str, ...]] = {
    "the same layers": ("down", 32, "pool", 64, "pool", 96, 192),
    "equal RAM": ("down", 27, "pool", 64, "pool", 96, 192),
    "equal RAM and flash": ("down", 24, "pool", 32, "pool", 48, 40),
    "equal RAM and flash, separable": (
        "down", 24, "pool", "separable", 64, "separable", 64, "separable", 64, "pool",
        "separable", 112, "separable", 112,
    ),
}  # fmt: skip
SGD: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}


class Cost(NamedTuple):
    """What a network takes in int8."""

    ram_bytes: int
    flash_bytes: int
    multiplications: int


def ours() -> dict[str, Any]:
    """What was measured of our network for 16 KB of RAM."""
    return json.loads((RESULTS / "budgets.json").read_text())["sound"]["budgets"]["16k"]


def build(plan: tuple[int | str, ...], num_classes: int) -> nn.Sequential:
    """A chain of convolutions with BatchNorm and ReLU, then the mean over all pixels and a classifier."""
    layers: list[nn.Module] = []
    channels = 1
    for before, item in itertools.pairwise((None, *plan)):
        if item == "pool":
            layers.append(nn.AvgPool2d(2))
        if not isinstance(item, int):
            continue
        if before == "separable":
            layers += _normed(nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False))
            layers += _normed(nn.Conv2d(channels, item, 1, bias=False))
        else:
            layers += _normed(nn.Conv2d(channels, item, 3, 2 if before == "down" else 1, padding=1, bias=False))
        channels = item
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def _normed(convolution: nn.Conv2d) -> list[nn.Module]:
    return [convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU()]


def folded(net: nn.Sequential) -> Iterator[dict[str, Any]]:
    """The layers as they are deployed: BatchNorm becomes part of its convolution."""
    layers = list(net)
    for layer, after in zip(layers, [*layers[1:], None], strict=True):
        if isinstance(layer, nn.Conv2d) and isinstance(after, nn.BatchNorm2d):
            assert after.running_mean is not None
            assert after.running_var is not None
            gain = after.weight / (after.running_var + after.eps).sqrt()
            fields = {"stride": layer.stride[0], "padding": layer.padding[0], "groups": layer.groups}  # pyright: ignore
            weight = layer.weight * gain[:, None, None, None]
            yield {"op": "conv", "weight": weight, "bias": after.bias - gain * after.running_mean, **fields}
        elif isinstance(layer, nn.AvgPool2d):
            yield {"op": "pool"}
        elif isinstance(layer, nn.Linear):
            yield {"op": "linear", "weight": layer.weight, "bias": layer.bias}


def cost(plan: tuple[int | str, ...], num_classes: int) -> Cost:
    """Bytes and operations of a network in int8 for an input of 32 × 32."""
    side, channels = SIZE, 1
    taken, peak, flash, multiplications = SIZE * SIZE, 0, 0, 0
    for layer in folded(build(plan, num_classes)):
        if layer["op"] == "linear":
            side, taken = 1, channels  # the mean over all pixels
        side //= 2 if layer["op"] == "pool" else layer.get("stride", 1)
        if "weight" in layer:
            channels, weights = len(layer["bias"]), layer["weight"].numel()
            flash += weights + 8 * channels  # a bias and a scale of 32 bits each
            multiplications += weights * side * side
        made = channels * side * side
        peak, taken = max(peak, taken + made), made
    return Cost(peak, flash, multiplications)


def trained(config: Config, folder: str) -> dict[str, nn.Sequential]:
    """All networks, trained side by side on the same batches."""
    train, _ = load_data(config, folder)
    loader = Loader(train, config.batch_size, augment=build_augmentation(config), seed=config.seed)
    torch.manual_seed(config.seed)
    nets = {name: build(plan, len(train.classes)) for name, plan in PLANS.items()}
    optimizers = {name: torch.optim.SGD(net.parameters(), **SGD) for name, net in nets.items()}
    length = config.epochs * len(loader)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, length) for each in optimizers.values()]
    for epoch in range(config.epochs):
        losses = dict.fromkeys(nets, 0.0)
        for inputs, labels in loader.epoch(epoch):
            for name, net in nets.items():
                loss = functional.cross_entropy(net(inputs), labels)
                optimizers[name].zero_grad()
                loss.backward()
                optimizers[name].step()
                losses[name] += loss.item() / len(loader)
            for schedule in schedules:
                schedule.step()
        print(epoch + 1, *(f"{loss:.3f}" for loss in losses.values()), flush=True)
    return {name: net.eval() for name, net in nets.items()}


def normalized(folder: str, split: str) -> tuple[Tensor, Tensor]:
    """All words of a split, as a network takes them."""
    inputs, labels = zip(*Loader(bsnn.data.speech_commands(folder, split), 64).ordered(), strict=True)
    return torch.cat(inputs), torch.cat(labels)


def measured(config: Config, folder: str, out: Path, peers: str) -> dict[str, Any]:
    """Accuracies of all networks with one seed, before and after quantization; what was measured before is read."""
    place = out / f"int8-e{config.epochs}-s{config.seed}.json"
    if place.exists():
        return json.loads(place.read_text())
    splits = {split: normalized(folder, split) for split in ("train", "val", "test")}
    calibration = splits["train"][0][:: max(1, len(splits["train"][0]) // CALIBRATION_WORDS)]
    found: dict[str, Any] = {}
    versions = {}
    for name, net in trained(config, folder).items():
        with torch.no_grad():
            real = {split: _accuracy(net(inputs).argmax(1), labels) for split, (inputs, labels) in splits.items()}
            layers = [*folded(net)]
        plain = [{key: value for key, value in layer.items() if not isinstance(value, Tensor)} for layer in layers]
        weights = {
            f"{key}{i}": layer[key].detach()
            for i, layer in enumerate(layers)
            for key in layer.keys() & {"weight", "bias"}
        }
        arrays = {f"inputs_{split}": splits[split][0] for split in ("val", "test")} | {"calibration": calibration}
        np.savez(out / "int8.npz", layers=json.dumps(plain), **weights, **arrays)  # pyright: ignore
        command = [peers, str(Path(__file__).with_name("int8_onnx.py")), str(out / "int8.npz")]
        outputs = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        versions = outputs["versions"]
        quantized = {split: _accuracy(torch.tensor(outputs[split]), splits[split][1]) for split in ("val", "test")}
        found[name] = {"real": real, "int8": quantized}
        print(config.seed, name, found[name], flush=True)
    content = {"networks": found, "versions": versions}
    place.write_text(json.dumps(content))
    return content


def _accuracy(labels: Tensor, right: Tensor) -> float:
    return float((labels == right).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of Speech Commands, or of some of its words")
    parser.add_argument(
        "--peers", metavar="PYTHON", required=True, help="python of an environment that has onnx and onnxruntime"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/int8"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = replace(recipe(DEVICE), epochs=ours()["epochs"])
    options.out.mkdir(parents=True, exist_ok=True)
    runs = [measured(replace(config, seed=seed), options.data, options.out, options.peers) for seed in options.seeds]
    result = {
        "command": "python benchmarks/int8.py --data speech_commands --peers PYTHON",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
        "versions": {"bsnn": bsnn.__version__, "python": platform.python_version(), "torch": torch.__version__}
        | runs[0]["versions"],
        "seeds": options.seeds,
        "epochs": config.epochs,
        "sgd": SGD,
        "networks": {name: row(name, [run["networks"][name] for run in runs]) for name in PLANS},
    }
    (RESULTS / "int8.json").write_text(json.dumps(result, indent=1) + "\n")


def row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """A network over seeds."""
    accuracies = {
        f"{kind}_{long}_accuracy": [run[kind][split] for run in runs]
        for kind, (split, long) in itertools.product(("real", "int8"), (("val", "validation"), ("test", "test")))
    }
    means = {f"mean_{key}": statistics.mean(values) for key, values in accuracies.items()}
    return {"plan": ",".join(map(str, PLANS[name])), **cost(PLANS[name], 8)._asdict(), **means, **accuracies}


if __name__ == "__main__":
    main()
