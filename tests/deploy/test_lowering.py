"""Every argument of every layer that can be exported: the deployed layer computes what torch does, or it is refused."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bsnn

Equal = None  # the deployed layer computes what the torch layer does

# Class, arguments, and why it is refused if it is. Together they use every argument that changes what a layer computes.
LAYERS: list[tuple[type[nn.Module], dict[str, Any], str | None]] = [
    (nn.Identity, {}, Equal),
    (nn.Dropout, {"p": 0.9, "inplace": True}, Equal),
    (nn.Dropout2d, {"p": 0.9}, Equal),
    (nn.BatchNorm2d, {"num_features": 2, "eps": 0.3}, Equal),
    (nn.BatchNorm2d, {"num_features": 2, "affine": False, "momentum": None}, Equal),
    (nn.BatchNorm2d, {"num_features": 2, "bias": False}, Equal),
    (nn.BatchNorm2d, {"num_features": 2, "track_running_stats": False}, "keeps no running statistics"),
    (bsnn.BatchNorm2d, {"num_features": 2, "eps": 0.3}, Equal),
    (bsnn.BatchNorm2d, {"num_features": 2, "affine": False}, Equal),
    (bsnn.BatchNorm2d, {"num_features": 2, "bias": False}, Equal),
    (bsnn.BatchNorm2d, {"num_features": 2, "track_running_stats": False}, "keeps no running statistics"),
    (nn.Conv2d, {"in_channels": 2, "out_channels": 4, "kernel_size": (3, 2), "stride": (2, 1)}, Equal),
    (nn.Conv2d, {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": (1, 2), "groups": 2}, Equal),
    (nn.Conv2d, {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "dilation": (2, 1), "bias": False}, Equal),
    (nn.Conv2d, {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": "same"}, "such padding"),
    (
        nn.Conv2d,
        {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        "such padding",
    ),
    *(
        (kind, {"in_channels": 2, "out_channels": 4, "kernel_size": (3, 2), **geometry, **weights}, Equal)
        for kind, kinds in ((bsnn.TracedConv2d, ("binary", "latent", "real")), (bsnn.BinaryConv2d, ("",)))
        for weights in ({"weights": name} if name else {} for name in kinds)
        for geometry in ({"stride": (1, 2), "padding": (2, 0)}, {"dilation": (1, 3), "groups": 2})
    ),
    (nn.AvgPool2d, {"kernel_size": (3, 2)}, Equal),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": (1, 2), "padding": 1}, Equal),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}, Equal),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "ceil_mode": True}, Equal),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False}, Equal),
    (nn.AvgPool2d, {"kernel_size": 2, "divisor_override": 3}, "divisor_override"),
    (nn.AvgPool2d, {"kernel_size": 2, "divisor_override": 4}, "divisor_override"),
    (nn.AdaptiveAvgPool2d, {"output_size": (4, 3)}, Equal),
    (nn.AdaptiveAvgPool2d, {"output_size": (None, 1)}, Equal),
    (nn.AdaptiveAvgPool2d, {"output_size": 3}, "no equal windows"),
    (nn.MaxPool2d, {"kernel_size": (3, 2)}, Equal),
    (nn.MaxPool2d, {"kernel_size": 3, "stride": 2, "padding": 1}, Equal),
    (nn.MaxPool2d, {"kernel_size": 3, "stride": 2, "ceil_mode": True}, Equal),
    (nn.MaxPool2d, {"kernel_size": 2, "dilation": 2}, "dilation or indices"),
    (nn.MaxPool2d, {"kernel_size": 2, "return_indices": True}, "dilation or indices"),
    (nn.Flatten, {"start_dim": 1, "end_dim": -1}, Equal),
    (nn.Flatten, {"start_dim": 2}, "some axes only"),
    (nn.Flatten, {"end_dim": 2}, "some axes only"),
    (bsnn.LIF, {"leak": 0.3, "threshold": 0.7}, Equal),
    (bsnn.LIF, {"leak": 0.0, "gradient": "bptt"}, Equal),
    (bsnn.LIF, {"leak": 1.0, "threshold": 2.0, "surrogate": bsnn.surrogate.Triangle()}, Equal),
]
FEATURES: list[tuple[type[nn.Module], dict[str, Any], str | None]] = [
    (nn.Dropout1d, {"p": 0.9}, Equal),
    (nn.Linear, {"in_features": 72, "out_features": 5, "bias": True}, Equal),
    (nn.Linear, {"in_features": 72, "out_features": 5, "bias": False}, Equal),
    *((bsnn.TracedLinear, {"in_features": 72, "out_features": 5, "weights": w}, Equal) for w in ("latent", "real")),
    (bsnn.BinaryLinear, {"in_features": 72, "out_features": 5}, Equal),
]
# They change where and in which type a layer is made, nothing else.
ANYWHERE = {"device", "dtype"}


def build(layer: nn.Module, entering: str) -> nn.Module:
    """A network around a layer that sees currents or spikes."""
    first = [bsnn.LIF()] if entering == "spikes" else []
    if isinstance(layer, nn.Linear | bsnn.TracedLinear):
        return bsnn.Sequential(*first, nn.Flatten(), layer)
    if isinstance(layer, nn.Dropout1d):
        return bsnn.Sequential(*first, nn.Flatten(), layer, nn.Linear(72, 3))
    body = bsnn.Sequential(nn.Conv2d(1, 2, 3, padding=1), *first, layer, nn.Flatten())
    activity, _ = body.eval()(torch.zeros(1, 1, 8, 9), None)
    size = (activity.spikes if isinstance(activity, bsnn.Activity) else activity).shape[1]
    return bsnn.Sequential(*body, nn.Linear(size, 3))


def set_numbers(net: nn.Module) -> None:
    """Weights and statistics for which no membrane comes near its threshold by rounding."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.data = (module.weight.data * 16).round() / 16
            if module.bias is not None:
                module.bias.data = (module.bias.data * 16).round() / 16
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.copy_(torch.tensor([0.25, -0.5]))
            module.running_var.copy_(torch.tensor([0.5, 3.0]))  # pyright: ignore
            if module.affine:
                module.weight.data.copy_(torch.tensor([-1.5, 0.5]))


@pytest.mark.parametrize("entering", ["currents", "spikes"])
@pytest.mark.parametrize(
    ("kind", "arguments", "refusal"), [*LAYERS, *FEATURES], ids=lambda value: getattr(value, "__name__", "")
)
def test_every_argument_is_honored_or_refused(
    kind: type[nn.Module], arguments: dict[str, Any], refusal: str | None, entering: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    layer = kind(**arguments)
    if refusal:
        net = bsnn.Sequential(nn.Conv2d(1, 2, 1), *([bsnn.LIF()] if entering == "spikes" else []), layer)
        with pytest.raises(bsnn.UserError, match=f"layer {len(net) - 1} .*{refusal}"):
            bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 8, 9))
        return
    net = build(layer, entering).eval()
    set_numbers(net)
    exported = bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 8, 9), time_steps=3)
    x = torch.randint(-8, 9, (4, 1, 8, 9)) / 8
    real = bsnn.predict(net, x, 3).numpy()
    engine = bsnn.load(exported.path)
    found = engine.outputs(x.numpy()) * engine.artifact.output_scale
    np.testing.assert_allclose(found, real, atol=0.01 * max(1.0, abs(real).max()))


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in LAYERS + FEATURES}, key=lambda kind: kind.__name__))
def test_no_argument_is_left_out(kind: type[nn.Module]) -> None:
    used = {name for other, arguments, _ in LAYERS + FEATURES if issubclass(kind, other) for name in arguments}
    used |= {name for other, arguments, _ in LAYERS + FEATURES if issubclass(other, kind) for name in arguments}
    used |= {"p", "inplace"} if issubclass(kind, nn.Dropout1d | nn.Dropout2d) else set()
    named = [p for p in inspect.signature(kind).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    assert {p.name for p in named if p.kind is not p.VAR_KEYWORD} <= used | ANYWHERE


def test_features_may_be_normalized_behind_neurons(tmp_path: Path) -> None:
    torch.manual_seed(0)
    neurons = [bsnn.LIF(gradient="sltt") for _ in range(2)]
    net = bsnn.Sequential(nn.Linear(3, 5), neurons[0], bsnn.BatchNorm1d(5), neurons[1], nn.Linear(5, 2))
    x = torch.randn(64, 3)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, x, 4)
    exported = bsnn.export(net, tmp_path / "m.bsnn", input_shape=(3,), time_steps=4)
    engine = bsnn.load(exported.path)
    assert (engine.predict(x.numpy()) == bsnn.predict(net, x, 4).argmax(1).numpy()).mean() > 0.95
