"""Networks of SpikingJelly and snnTorch: what is converted is equal, and what is not is refused by name."""

from typing import Any

import pytest
import torch
from foreign import layer, neuron, snntorch
from torch import Tensor, nn

import bsnn


def jelly(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    kind = neuron.LIFNode if "tau" in options else neuron.IFNode
    options = {"detach_reset": True, "v_reset": None, **options}
    net = nn.Sequential(
        layer.Conv2d(2, 6, 3, padding=1), layer.BatchNorm2d(6), kind(**options), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(96, 5), kind(**options),
    )  # fmt: skip
    net[5].weight.data *= 4  # so that the last layer fires
    return net


def torch_like(beta: float = 1.0, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    options = {"threshold": 0.5, "init_hidden": True, **options}
    parts = nn.Flatten(), nn.Linear(128, 24), snntorch.Leaky(beta, **options), nn.Linear(24, 5)
    return nn.Sequential(*parts, snntorch.Leaky(beta, **options))


def theirs(net: nn.Module, x: Tensor) -> Tensor:
    for part in net:  # pyright: ignore
        x = part(x)
        x = (x[0] if isinstance(x, tuple) else x).double()
    return x


def both(net: nn.Module, ours: nn.Module) -> tuple[Tensor, Tensor]:
    """Spikes of both over a sequence, with a graph."""
    net.double().eval()
    ours.double().eval()
    frames = 6 * torch.randn(6, 3, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    made, state = [], None
    for frame in frames:
        activity, state = ours(frame, state)
        made.append(activity.spikes)
    return torch.stack([theirs(net, frame) for frame in frames]), torch.stack(made)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("reset", [None, 0.0, -0.3])
@pytest.mark.parametrize("constants", [{}, {"tau": 1.7, "decay_input": True}, {"tau": 3.0, "decay_input": False}])
def test_spikes_and_gradients_are_those_of_spikingjelly(
    constants: dict[str, Any], reset: float | None, detach: bool
) -> None:
    net = jelly(v_threshold=0.7, v_reset=reset, detach_reset=detach, **constants)
    ours = bsnn.from_spikingjelly(net)
    assert ours.state_dict().keys() == {key for key in net.state_dict() if not key.startswith("_")}
    expected, found = both(net, ours)
    assert torch.equal(expected, found)
    assert 0.01 < float(found.detach().mean()) < 0.9
    weight = torch.randn(expected.shape, dtype=torch.float64)
    for spikes in (expected, found):
        (spikes * weight).sum().backward()
    for a, b in zip(net.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 1.0},
        {"beta": 1.0, "init_hidden": False},
        {"beta": 0.8, "reset_mechanism": "zero"},
        {"beta": 0.8, "reset_mechanism": "zero", "reset_delay": False},
        {"beta": 1.7, "reset_mechanism": "zero", "output": True},
    ],
)
def test_spikes_and_gradients_are_those_of_snntorch(options: dict[str, Any]) -> None:
    net = torch_like(**options)
    ours = bsnn.from_snntorch(net)
    if not options.get("init_hidden", True):
        return  # such a Sequential does not run by itself; the conversion has compared its layers
    expected, found = both(net, ours)
    assert torch.equal(expected, found)
    assert 0.01 < float(found.detach().mean()) < 0.9
    weight = torch.randn(expected.shape, dtype=torch.float64)
    for spikes in (expected, found):
        (spikes * weight).sum().backward()
    for a, b in zip(net.parameters(), ours.parameters(), strict=True):
        # The threshold is the next number above in single precision.
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_a_membrane_on_the_threshold_fires_in_one_package_and_not_in_the_other() -> None:
    x, expected = torch.tensor([[[1.0]], [[0.5]], [[0.5]], [[1.0]]]), {"jelly": [1, 0, 1, 1], "torch": [0, 1, 0, 1]}
    nets = {
        "jelly": bsnn.from_spikingjelly(
            nn.Sequential(neuron.IFNode(v_reset=None, detach_reset=True)), input_shape=(1,)
        ),
        "torch": bsnn.from_snntorch(nn.Sequential(snntorch.Leaky(1.0, init_hidden=True)), input_shape=(1,)),
    }
    for name, net in nets.items():
        spikes, state = [], None
        for frame in x:
            activity, state = net(frame, state)
            spikes.append(int(activity.spikes))
        assert spikes == expected[name]


def test_the_step_mode_and_the_state_of_the_network_do_not_matter() -> None:
    net = nn.Sequential(
        layer.SeqToANNContainer(nn.Conv2d(2, 4, 3), nn.AvgPool2d(2)),
        neuron.LIFNode(tau=2.0, v_reset=None, detach_reset=True, step_mode="m"),
    )
    x = torch.randn(4, 2, 2, 8, 8)
    expected = net(x)  # leaves a state with a graph
    converted = bsnn.from_spikingjelly(net)
    state, made = None, []
    for frame in x:
        activity, state = converted(frame, state)
        made.append(activity.spikes)
    assert torch.equal(torch.stack(made), expected)
    assert not isinstance(net[1].v, float)  # what the network carried is still there
    assert net[1].step_mode == "m"


def test_what_is_converted_can_be_exported(tmp_path: Any) -> None:
    net = nn.Sequential(*jelly(tau=2.0, decay_input=True), nn.Linear(5, 3)).eval()
    exported = bsnn.export(bsnn.from_spikingjelly(net), tmp_path / "m.bsnn", input_shape=(2, 8, 8))
    assert len(exported.module.artifact.lifs) == 2


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class Doubled(neuron.LIFNode):
    """A user's subclass."""


def patched() -> nn.Module:
    net = jelly(tau=2.0)
    plain = net[2].surrogate_function.forward  # pyright: ignore
    net[2].surrogate_function.forward = lambda x: plain(x - 0.2)  # pyright: ignore
    return net


@pytest.mark.parametrize(
    ("convert", "net", "message"),
    [
        (bsnn.from_spikingjelly, Own(), r"the network is of class Own, .* own forward; .*net\.features"),
        (bsnn.from_spikingjelly, nn.Sequential(Doubled()), "layer 0 is of class Doubled, a subclass of LIFNode"),
        (bsnn.from_spikingjelly, nn.Sequential(neuron.ParametricLIFNode()), "layer 0 .* learns its leak"),
        (bsnn.from_spikingjelly, nn.Sequential(layer.Dropout(0.5)), "layer 0 .* one mask for the whole sequence"),
        (bsnn.from_spikingjelly, nn.Sequential(nn.RNN(3, 3)), "layer 0 is of class RNN"),
        (bsnn.from_spikingjelly, nn.Sequential(snntorch.Leaky(0.5)), "layer 0 is of class Leaky, which is not known"),
        (bsnn.from_spikingjelly, nn.Sequential(nn.ReLU()), "expected input_shape="),
        (bsnn.from_spikingjelly, patched(), "layer 2, a LIFNode, differs from its conversion in"),
        (bsnn.from_snntorch, torch_like(0.9), "layer 2, a Leaky, has reset_mechanism='subtract' and beta=0.9"),
        (bsnn.from_snntorch, torch_like(reset_delay=False), "'subtract' and reset_delay=False and beta=1"),
        (bsnn.from_snntorch, torch_like(reset_mechanism="none"), "reset_mechanism='none'"),
        (bsnn.from_snntorch, torch_like(learn_beta=True), "learns its beta, now 1"),
        (bsnn.from_snntorch, torch_like(learn_threshold=True), r"learns its threshold, now 0\.5"),
        (bsnn.from_snntorch, torch_like(graded_spikes_factor=2.0), "graded_spikes_factor"),
        (bsnn.from_snntorch, torch_like(state_quant=lambda x: x), "state_quant"),
        (bsnn.from_snntorch, nn.Sequential(snntorch.Leaky(torch.rand(8))), r"beta of shape \(8,\)"),
        (bsnn.from_snntorch, nn.Sequential(snntorch.Synaptic(0.9, 0.8)), "layer 0 is of class Synaptic, which filters"),
    ],
)  # fmt: skip
def test_what_is_not_equal_is_refused_by_name(convert: Any, net: nn.Module, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        convert(net)
