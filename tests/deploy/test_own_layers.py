"""Layers of the user's own at export: what a class may change, how it says what it equals, and what is refused."""

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
    vars(net.lif)["threshold"] = torch.linspace(0.5, 1.5, 16)
    return net


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small(neuron=HardReset()), "layer lif .HardReset. overrides forward.* lowered_as"),
        (lambda: small(neuron=Timed()), "layer lif .Timed. overrides leak"),
        (patched, "layer lif .LIF. has attributes in the place of its methods: forward"),
        (lambda: hooked(change=True), "a hook of layer lif changes what it computes"),
        (pre_hooked, "a hook of layer out changes"),
        (writing_hook, "a hook of layer the network changes"),
        (parametrized, "a parameter of layer out is parametrized.*remove_parametrizations"),
        (pruned, "the weight of layer out is computed from other tensors"),
        (per_channel, "layer lif has a threshold of shape"),
        (lambda: small(Louder(nn.Identity())), "layer own0 .Louder. overrides forward"),
        (lambda: small(Difference(nn.Linear(16, 16))), "layer own0 .Difference. overrides _merge"),
        (lambda: small(Noisy(0.5)), "layer own0 .Noisy. overrides forward"),
        (lambda: small(PerBatch(16)), "layer own0 .PerBatch. overrides forward"),
        (lambda: small(Squared(16, 16)), "layer own0 .Squared. overrides forward"),
        (lambda: small(nn.Softmax(1)), "layer own0 .Softmax. has no deployed form"),
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
        (bsnn.Sequential({"own": Own(wrong=True)}), r"layer own .Own. differs from .* in \d+\.\d\d% of the values"),
        (small(neuron=Returning(bsnn.LIF(leak=0.4))), "layer lif .Returning. differs"),
        (small(neuron=Returning(bsnn.LIF(threshold=1.01))), "layer lif .Returning. differs"),
        (small(neuron=Returning(nn.Linear(3, 3))), "layer lif .Returning. or what its lowered_as returns does not"),
        (small(neuron=Returning("itself")), "layer lif is lowered as a Returning, which is where it began"),
        (small(neuron=Returning(1)), "lowered_as of layer lif .Returning. returned 1"),
        (small(neuron=Returning(nn.Tanh())), "layer lif .Tanh. has no deployed form"),
        (small(neuron=Adaptive()), "layer lif .Adaptive. overrides forward"),
    ],
)
def test_a_wrong_lowering_is_refused(net: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        bsnn.export(net, tmp_path / "m.bsnn", input_shape=(6,))
    assert not list(tmp_path.iterdir())
