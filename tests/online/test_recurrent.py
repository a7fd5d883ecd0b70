"""Recurrent and retraced layers: their gradients against autograd in float64, and how they fit in with the rest."""

import copy
import itertools
from typing import Any

import pytest
import torch
from reference import lif_network_loss, soft_spike
from torch import Tensor, nn
from torch.nn import functional as F

import bsnn
from bsnn.nn.trace import RuleName

T, LEAK = 6, 0.6
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def squared(outputs: Tensor) -> Tensor:
    return (outputs**2).sum()


def gradients(net: bsnn.Sequential, frames: Tensor, rule: str) -> dict[str, Tensor]:
    """Summed over the sequence on fixed weights."""
    state, total = None, torch.zeros((), dtype=torch.float64)
    for x in frames:
        outputs, state = net(x, state)
        total = total + squared(outputs)
        if rule != "bptt":
            squared(outputs).backward()
    if rule == "bptt":
        total.backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def recurrent(rule: Any) -> bsnn.Sequential:
    torch.manual_seed(1)
    layers = {
        "entry": bsnn.TracedLinear(3, 8, weights="real"),
        "loop": bsnn.Recurrent(bsnn.BinaryLinear(8, 8), bsnn.LIF(LEAK, gradient=rule)),
        "head": nn.Linear(8, 2),
    }
    return bsnn.Sequential(layers).double()


def recurrent_oracle(net: bsnn.Sequential, frames: Tensor, *, carry: bool, returning: bool) -> dict[str, Tensor]:
    """Autograd over the loop; `carry` keeps the path through the membrane, `returning` that through past spikes."""
    entry, back = net.entry.weight.detach().clone(), bsnn.signs(net.loop.synapse.weight)
    entry.requires_grad_()
    back.requires_grad_()
    total, membrane, spikes = torch.zeros((), dtype=torch.float64), 0.0, torch.zeros(5, 8, dtype=torch.float64)
    for x in frames:
        past = spikes if returning else spikes.detach()
        potential = LEAK * membrane + F.linear(x, entry) + F.linear(past, back)
        spikes = soft_spike(potential - 1.0)
        membrane = potential - spikes.detach()
        if not carry:
            membrane = membrane.detach()
        total = total + squared(F.linear(spikes, net.head.weight.detach(), net.head.bias.detach()))
    total.backward()
    assert entry.grad is not None
    assert back.grad is not None
    return {"entry.weight": entry.grad, "loop.synapse.weight": back.grad}


def flat_frames() -> Tensor:
    return 2 * torch.randn(T, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_recurrent_bptt_equals_autograd() -> None:
    net = recurrent("bptt")
    actual, expected = (
        gradients(net, flat_frames(), "bptt"),
        recurrent_oracle(net, flat_frames(), carry=True, returning=True),
    )
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)


def test_online_the_recurrent_weight_drops_the_path_through_past_spikes_and_nothing_else() -> None:
    net = recurrent("ottt")
    actual = gradients(net, flat_frames(), "ottt")["loop.synapse.weight"]
    expected = recurrent_oracle(net, flat_frames(), carry=True, returning=False)["loop.synapse.weight"]
    torch.testing.assert_close(actual, expected, **EXACT)
    full = recurrent_oracle(net, flat_frames(), carry=True, returning=True)["loop.synapse.weight"]
    assert relative_error(actual, full) > 1e-3


def test_sltt_drops_the_carry_of_the_membrane_as_well() -> None:
    net = recurrent("sltt")
    actual, expected = (
        gradients(net, flat_frames(), "sltt"),
        recurrent_oracle(net, flat_frames(), carry=False, returning=False),
    )
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)


def test_pinned_recurrent_trajectory() -> None:
    # λ = 0.5, V = 1, R = [[+1, −1], [+1, +1]], by hand. t = 1: u = (2, 0), s = (1, 0), m = (1, 0).
    # t = 2: R s = (1, 1), u = (1.5, 1), s = (1, 1), m = (0.5, 0). t = 3: R s = (0, 2), u = (0.25, 2), s = (0, 1).
    layer = bsnn.Recurrent(bsnn.BinaryLinear(2, 2), bsnn.LIF())
    layer.synapse.weight.bits.copy_(bsnn.nn.bits.pack(torch.tensor([[True, False], [True, True]])))
    fired, state = [], None
    for current in ([2.0, 0.0], [0.0, 0.0], [0.0, 0.0]):
        activity, state = layer(torch.tensor([current]), state)
        fired.append(activity.spikes.tolist()[0])
    assert fired == [[1, 0], [1, 1], [0, 1]]
    assert state.neuron.membrane.tolist() == [[0.25, 1.0]]
    assert state.neuron.trace.tolist() == [[0.75, 1.5]]


def layered(rule: str, layer: nn.Module, wrap: bool) -> bsnn.Sequential:
    torch.manual_seed(1)
    neuron = bsnn.LIF(LEAK, gradient=rule)
    first: dict[str, nn.Module] = {"lif1": neuron, "layer": layer}
    if wrap:
        first = {"lif1": bsnn.Retraced(neuron, layer)}
    net = bsnn.Sequential(
        {"conv1": bsnn.TracedConv2d(2, 4, 3, padding=1, weights="real")},
        first,
        {"conv2": bsnn.BinaryConv2d(4, 5, 3, padding=1), "lif2": bsnn.LIF(LEAK, gradient=rule)},
        {"flatten": nn.Flatten(), "head": nn.LazyLinear(3)},
    ).double()
    with torch.no_grad():
        net.conv1.weight.mul_(2)
        net(torch.zeros(1, 2, 4, 4, dtype=torch.float64), None)
    return net


def layered_oracle(net: bsnn.Sequential, frames: Tensor, between: Any, carried: tuple[float, float]) -> Tensor:
    weight = bsnn.signs(net.conv2.weight).requires_grad_()
    torch.manual_seed(7)
    lif_network_loss(
        frames,
        layers=[
            lambda x: F.conv2d(x, net.conv1.weight.detach(), padding=1),
            lambda x: F.conv2d(between(x), weight, padding=1),
        ],
        leaks=(LEAK, LEAK),
        readout=lambda x: F.linear(x.flatten(1), net.head.weight.detach(), net.head.bias.detach()),
        step_loss=squared,
        carried=carried,
    ).backward()
    assert weight.grad is not None
    return weight.grad


LAYERS: dict[str, tuple[nn.Module, Any]] = {
    "max pooling": (nn.MaxPool2d(2), lambda x: F.max_pool2d(x, 2)),
    "dropout": (nn.Dropout(0.3), lambda x: F.dropout(x, 0.3)),
    "a curve": (nn.Softplus(), F.softplus),
}


@pytest.mark.parametrize("name", LAYERS)
def test_ottt_with_a_trace_of_what_enters_the_synapse_equals_bptt(name: str) -> None:
    layer, between = LAYERS[name]
    net, frames = layered("ottt", layer, wrap=True), torch.randn(T, 3, 2, 4, 4, dtype=torch.float64)
    torch.manual_seed(7)  # dropout draws one mask per time step, here and in the oracle
    actual = gradients(net, frames, "ottt")["conv2.weight"]
    torch.testing.assert_close(actual, layered_oracle(net, frames, between, (LEAK, LEAK)), **EXACT)


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize(("rule", "carried"), [("sltt", (0.0, 0.0)), ("bptt", (LEAK, LEAK))])
@pytest.mark.parametrize("name", LAYERS)
def test_without_a_trace_any_layer_may_stand_there(
    name: str, rule: RuleName, carried: tuple[float, float], wrap: bool
) -> None:
    layer, between = LAYERS[name]
    net, frames = layered(rule, layer, wrap), torch.randn(T, 3, 2, 4, 4, dtype=torch.float64)
    torch.manual_seed(7)
    with bsnn.backend("reference"):  # the fused step changes the memory order, in which dropout draws its mask
        actual = gradients(net, frames, rule)["conv2.weight"]
    torch.testing.assert_close(actual, layered_oracle(net, frames, between, carried), **EXACT)


def test_a_linear_layer_has_the_same_trace_either_way() -> None:
    frames, found = torch.randn(T, 3, 2, 4, 4, dtype=torch.float64), []
    for wrap in (False, True):
        net = layered("ottt", nn.AvgPool2d(2), wrap)
        found.append(gradients(net, frames, "ottt")["conv2.weight"])
    torch.testing.assert_close(*found, **EXACT)


NEURONS = [bsnn.LIF, bsnn.IF, bsnn.ParametricLIF, bsnn.HardResetLIF, bsnn.AdaptiveLIF]


@pytest.mark.parametrize("kind", NEURONS)
def test_recurrent_and_retraced_layers_train_stream_evaluate_copy_and_save(kind: type[bsnn.Neuron]) -> None:
    def build() -> bsnn.Sequential:
        torch.manual_seed(0)
        return bsnn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            bsnn.Retraced(kind(), nn.MaxPool2d(2)),
            bsnn.BinaryConv2d(6, 6, 3, padding=1),
            bsnn.BatchNorm2d(6),
            bsnn.Recurrent(bsnn.BinaryConv2d(6, 6, 3, padding=1), kind()),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 3),
        )

    net, x, y = build(), torch.randn(6, 1, 8, 8), torch.arange(6) % 3
    start = net.initial_state(x)
    assert start[0].trace.shape == (6, 6, 4, 4)
    assert not any(tensor.any() for tensor in leaves(start))
    binary, real = bsnn.split_parameters(net)
    optimizers = [bsnn.optim.BSO(binary, gamma=1e-4, beta=0.9), torch.optim.SGD(real, lr=0.1)]
    bits = [p.bits.clone() for p in binary]
    stream = (bsnn.Moment(x, y, cut=k % 4 == 0) for k in itertools.count())
    for step in itertools.islice(bsnn.stream_update(net, stream, F.cross_entropy, optimizers), 12):
        assert step.loss.isfinite()
        assert not any(tensor.requires_grad for tensor in leaves(step.state))
    assert all(not torch.equal(old, p.bits) for old, p in zip(bits, binary, strict=True))
    bsnn.assert_memory_constant(build(), [1, 4, 16], x)
    predicted = bsnn.predict_memory(net, x, batch=6)
    assert predicted["membrane"] > 0 < predicted["trace"]
    rates = bsnn.evaluate(net, [(x, y)], 3).firing_rates
    assert rates.keys() == {"1.neuron", "4.neuron"}
    other = build()
    other.load_state_dict(net.state_dict())
    for twin in (copy.deepcopy(net), other):
        assert torch.equal(bsnn.predict(twin.eval(), x, 3), bsnn.predict(net.eval(), x, 3))


def leaves(state: Any) -> list[Tensor]:
    found: list[Tensor] = []
    bsnn.map_state(found.append, state)
    return found


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bsnn.Recurrent(nn.Linear(2, 2), bsnn.LIF()), "received Linear as synapse.*TracedLinear"),
        (lambda: bsnn.Recurrent(bsnn.BinaryLinear(2, 2), nn.ReLU()), "as neuron; expected a bsnn.Neuron"),
        (
            lambda: bsnn.Recurrent(bsnn.BinaryLinear(2, 3), bsnn.LIF())(torch.zeros(1, 2), None),
            r"makes currents of shape \(1, 3\) from spikes of shape \(1, 2\)",
        ),
        (
            lambda: bsnn.Recurrent(bsnn.BinaryLinear(2, 2), bsnn.LIF())(
                torch.zeros(1, 2), bsnn.Recurrent(bsnn.BinaryLinear(2, 2), bsnn.LIF()).initial_state(torch.zeros(3, 2))
            ),
            r"spikes of shape \(3, 2\); expected \(1, 2\)",
        ),
        (lambda: bsnn.Retraced(nn.ReLU(), nn.ReLU()), "as neuron; expected a bsnn.Neuron"),
        (lambda: bsnn.Retraced(bsnn.LIF(), bsnn.LIF()), "with neither state nor synapses"),
        (lambda: bsnn.Retraced(bsnn.LIF(), nn.Sequential(bsnn.BinaryLinear(2, 2))), "with neither state nor synapses"),
        (
            lambda: bsnn.Retraced(bsnn.LIF(gradient="ndot"), nn.MaxPool2d(2))(torch.zeros(1, 1, 2, 2), None),
            "the trace of NDOT depends on the membrane, and what leaves MaxPool2d has none",
        ),
        (
            lambda: bsnn.Retraced(bsnn.LIF(), nn.MaxPool2d(2))(
                torch.zeros(1, 1, 4, 4),
                bsnn.Retraced(bsnn.LIF(), nn.MaxPool2d(4)).initial_state(torch.zeros(1, 1, 4, 4)),
            ),
            r"a trace of shape \(1, 1, 1, 1\) for MaxPool2d; expected shape \(1, 1, 2, 2\)",
        ),
    ],
)
def test_misuse_teaches(call, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        call()
