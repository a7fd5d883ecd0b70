"""An export takes nothing for something else: every argument of every layer counts, and what is unknown is refused."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.schema import Lif

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


class HardReset(bsnn.LIF):
    """The membrane is 0 after a spike."""

    def forward(self, current: torch.Tensor, state: Any) -> Any:
        activity, state = super().forward(current, state)
        return activity, state._replace(membrane=state.membrane * (1 - activity.spikes))


class Louder(bsnn.Sequential):
    def forward(self, x: Any, state: Any) -> Any:
        return super().forward(2 * x, state)


class Difference(bsnn.Residual):
    def _merge(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return parts[0] - parts[1]


class Noisy(nn.Dropout):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(input, self.p, training=True)


class PerBatch(bsnn.BatchNorm1d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return (input - input.mean(0)) / (input.std(0) + 1)


class Squared(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) ** 2


class Timed(bsnn.LIF):
    leak = property(lambda self: self.__dict__.get("now", 0.5), lambda self, value: None)  # pyright: ignore


def small(*middle: nn.Module, neuron: nn.Module | None = None) -> bsnn.Sequential:
    torch.manual_seed(0)
    named = {"first": nn.Linear(6, 16), "lif": neuron or bsnn.LIF(), "hidden": bsnn.BinaryLinear(16, 16)}
    named |= {f"own{i}": layer for i, layer in enumerate(middle)}
    return bsnn.Sequential({**named, "out": nn.Linear(16, 4)})


def hooked(change: bool) -> nn.Module:
    net = small()
    net.lif.register_forward_hook(  # pyright: ignore
        lambda _m, _i, output: (bsnn.Activity(1 - output[0].spikes, None), output[1]) if change else None
    )
    return net


def pre_hooked() -> nn.Module:
    net = small()
    net.out.register_forward_pre_hook(lambda _m, inputs: (inputs[0] * 3,))  # pyright: ignore
    return net


def writing_hook() -> nn.Module:
    net = small()

    def double(_module: nn.Module, _inputs: Any, output: Any) -> None:
        output[0].mul_(2)

    net.register_forward_hook(double)
    return net


def patched() -> nn.Module:
    net = small()
    other = HardReset()
    net.lif.forward = other.forward  # pyright: ignore
    return net


def parametrized() -> nn.Module:
    net = small()
    parametrizations.orthogonal(net.out)  # pyright: ignore
    return net


def pruned() -> nn.Module:
    net = small()
    prune.l1_unstructured(net.out, "weight", 0.5)  # pyright: ignore
    return net


def per_channel() -> nn.Module:
    net = small()
    net.lif.threshold = torch.linspace(0.5, 1.5, 16)  # pyright: ignore
    return net


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small(neuron=HardReset()), "layer lif is a HardReset that overrides forward.* lowered_as"),
        (lambda: small(neuron=Timed()), "layer lif is a Timed that overrides leak"),
        (patched, "layer lif is a LIF whose own forward was replaced"),
        (lambda: hooked(change=True), "a hook of layer lif changes what it computes"),
        (pre_hooked, "a hook of layer out changes"),
        (writing_hook, "a hook of layer the network changes"),
        (parametrized, "a parameter of layer out is parametrized.*remove_parametrizations"),
        (pruned, "the weight of layer out is computed from other tensors"),
        (per_channel, "layer lif has a threshold of shape"),
        (lambda: small(Louder(nn.Identity())), "layer own0 is a Louder that overrides forward"),
        (lambda: small(Difference(nn.Linear(16, 16))), "layer own0 is a Difference that overrides _merge"),
        (lambda: small(Noisy(0.5)), "layer own0 is a Noisy that overrides forward"),
        (lambda: small(PerBatch(16)), "layer own0 is a PerBatch that overrides forward"),
        (lambda: small(Squared(16, 16)), "layer own0 is a Squared that overrides forward"),
        (lambda: small(nn.Softmax(1)), "layer own0 is a Softmax, which has no deployed form"),
        (lambda: nn.DataParallel(small()), "the network is a DataParallel.* export its .module"),
    ],
)
def test_what_may_compute_something_else_is_refused_by_name(
    build: Callable[[], nn.Module], message: str, tmp_path: Path
) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        bsnn.export(build(), tmp_path / "m.bsnn", input_shape=(6,))
    assert not list(tmp_path.iterdir())


def test_what_only_running_shows_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = small()
    with monkeypatch.context() as patch:
        patch.setattr(bsnn.LIF, "forward", _hard_forward)
        with pytest.raises(bsnn.UserError, match=r"% of the spikes of layer lif differ"):
            bsnn.export(net, tmp_path / "m.bsnn", input_shape=(6,))
    doubling = nn.modules.module.register_module_forward_hook(
        lambda module, _inputs, output: output * 2 if module is net.out else None  # pyright: ignore
    )
    with doubling, pytest.raises(bsnn.UserError, match="outputs differ by up to"):
        bsnn.export(net, tmp_path / "m.bsnn", input_shape=(6,))
    bsnn.export(net, tmp_path / "m.bsnn", input_shape=(6,))


_plain_forward = bsnn.LIF.forward


def _hard_forward(self: bsnn.LIF, current: torch.Tensor, state: Any) -> Any:
    activity, state = _plain_forward(self, current, state)
    return activity, state._replace(membrane=state.membrane * (1 - activity.spikes))


def test_a_network_that_cannot_run_is_refused(tmp_path: Path) -> None:
    net = bsnn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm1d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(bsnn.UserError, match=r"does not run on inputs of shape .*expected 2D or 3D input"):
        bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 8, 8))


def test_hooks_that_watch_may_stay(tmp_path: Path) -> None:
    bsnn.export(hooked(change=False), tmp_path / "m.bsnn", input_shape=(6,))


class Quick(bsnn.LIF):
    """A subclass with its own constructor, a method of its own and its own printing."""

    def __init__(self) -> None:
        super().__init__(leak=0.25, threshold=0.5)

    def half_life(self) -> float:
        return 0.5

    def extra_repr(self) -> str:
        return "quick"


class Net(bsnn.Sequential):
    def __init__(self) -> None:
        super().__init__(*small(neuron=Quick()))


def test_a_subclass_that_overrides_nothing_is_what_its_base_is(tmp_path: Path) -> None:
    made = read(bsnn.export(Net(), tmp_path / "m.bsnn", input_shape=(6,)).path)
    assert [(x.leak, x.threshold) for x in made.layers if isinstance(x, Lif)] == [(2**14, 2**19)]


class IntegrateAndFire(bsnn.Stateful):
    """No leak; written without the library's neuron."""

    def forward(self, current: torch.Tensor, state: Any) -> Any:
        potential = current if state is None else state + current
        spikes = (potential >= 1.0).to(current.dtype)
        return bsnn.Activity(spikes, None), potential - spikes

    def lowered_as(self) -> bsnn.LIF:
        return bsnn.LIF(leak=1.0)


class Learned(bsnn.Stateful):
    """A learned leak and threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(0.7))
        self.log_threshold = nn.Parameter(torch.tensor(-0.3))

    @property
    def leak(self) -> torch.Tensor:
        return self.logit.sigmoid()

    @property
    def threshold(self) -> torch.Tensor:
        return self.log_threshold.exp()

    def forward(self, current: torch.Tensor, state: Any) -> Any:
        potential = current if state is None else self.leak * state + current
        spikes = (potential >= self.threshold).to(current.dtype)
        return bsnn.Activity(spikes, None), potential - self.threshold * spikes

    def lowered_as(self) -> bsnn.LIF:
        return bsnn.LIF(leak=float(self.leak), threshold=float(self.threshold))


class Adaptive(bsnn.LIF):
    """No `lowered_as`: it equals nothing that is known."""

    def forward(self, current: torch.Tensor, state: Any) -> Any:
        return super().forward(current - 0.1, state)


@pytest.mark.parametrize(
    ("neuron", "leak", "threshold"),
    [(IntegrateAndFire(), 65536, 2**20), (Learned(), round(65536 / (1 + np.exp(-0.7))), round(2**20 * np.exp(-0.3)))],
)
def test_a_neuron_says_which_lif_it_equals(neuron: nn.Module, leak: int, threshold: int, tmp_path: Path) -> None:
    net = small(neuron=neuron)
    data = bsnn.data.ArrayDataset(
        "own", "image", ("a", "b", "c", "d"), np.arange(32) % 4,
        np.random.default_rng(0).random((32, 6, 1, 1)).astype(np.float32), (0.0,) * 6, (1.0,) * 6, 1.0,
    )  # fmt: skip
    exported = bsnn.export(bsnn.Sequential({"flat": nn.Flatten(), "net": net}), tmp_path / "m.bsnn", data=data)
    (lif,) = (layer for layer in exported.module.artifact.layers if isinstance(layer, Lif))
    assert (lif.name, lif.leak) == ("net.lif", leak)
    assert lif.threshold == pytest.approx(threshold, abs=1)
    assert exported.changes is not None
    assert exported.changes.spikes["net.lif"] < 0.001
    assert exported.changes.firing_rates["net.lif"] > 0.01


class Own(bsnn.Stateful):
    """A network with its own forward, which says which layers it equals."""

    def __init__(self, *, wrong: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.lif = nn.Linear(6, 16), nn.Linear(16, 4), bsnn.LIF()
        self.wrong = wrong

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        activity, state = self.lif(self.first(x), state)
        return self.last(activity.spikes), state

    def lowered_as(self) -> nn.Module:
        return bsnn.Sequential(
            {"first": self.first, "lif": bsnn.LIF(0.9) if self.wrong else self.lif, "out": self.last}
        )


def test_a_network_says_which_layers_it_equals(tmp_path: Path) -> None:
    net = bsnn.Sequential({"own": Own()})
    exported = bsnn.export(net, tmp_path / "m.bsnn", input_shape=(6,), time_steps=3)
    x = torch.randn(8, 6)
    engine, record = bsnn.load(exported.path), {}
    found = engine.outputs(x.numpy(), record) * engine.artifact.output_scale
    assert list(record) == ["own.lif"]
    np.testing.assert_allclose(found, bsnn.predict(net, x, 3).numpy(), atol=1e-3)


class Returning(bsnn.LIF):
    def __init__(self, what: Any) -> None:
        super().__init__()
        vars(self)["what"] = what

    def forward(self, current: torch.Tensor, state: Any) -> Any:
        return super().forward(current, state)

    def lowered_as(self) -> Any:
        return self if vars(self)["what"] == "itself" else vars(self)["what"]


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (bsnn.Sequential({"own": Own(wrong=True)}), r"layer own, a Own, differs from .* in \d+\.\d\d% of the values"),
        (small(neuron=Returning(bsnn.LIF(leak=0.4))), "layer lif, a Returning, differs"),
        (small(neuron=Returning(bsnn.LIF(threshold=1.01))), "layer lif, a Returning, differs"),
        (small(neuron=Returning(nn.Linear(3, 3))), "layer lif, a Returning, or what its lowered_as returns does not"),
        (small(neuron=Returning("itself")), "layer lif is lowered as a Returning, which is where it began"),
        (small(neuron=Returning(1)), "lowered_as of layer lif, a Returning, returned 1"),
        (small(neuron=Returning(nn.Tanh())), "layer lif is a Tanh, which has no deployed form"),
        (small(neuron=Adaptive()), "layer lif is a Adaptive that overrides forward"),
    ],
)
def test_a_wrong_lowering_is_refused(net: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        bsnn.export(net, tmp_path / "m.bsnn", input_shape=(6,))
    assert not list(tmp_path.iterdir())
