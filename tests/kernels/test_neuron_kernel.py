"""A time step of neurons in C against the same step in torch."""

from functools import partial
from typing import Any

import pytest
import torch
from kernel_cases import LEVELS, default_dtype, num_threads, only
from torch import Tensor

import bsnn
from bsnn.kernels import _library, _neurons, cpu
from bsnn.kernels.libraries import Level
from bsnn.nn.fused import as_numbers

pytestmark = pytest.mark.skipif(not _library.libraries(), reason="the C library was not built")


def neuron_step(x: Tensor, surrogate: bsnn.nn.surrogate.Surrogate, *, pooled: bool) -> list[Tensor]:
    """Two time steps of BatchNorm, neurons and pooling: what is sent on, the state, and gradients of the second."""
    size = x.shape[1]
    norm = (bsnn.BatchNorm2d if x.dim() == 4 else bsnn.BatchNorm1d)(size)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5, generator=torch.Generator().manual_seed(1))
    lif = bsnn.LIF(leak=0.6, threshold=0.8, surrogate=surrogate)
    layers = [norm, lif, *([torch.nn.AvgPool2d(2)] if pooled else [])]
    net, x = bsnn.Sequential(*layers), x.clone().requires_grad_()
    _, state = net(x.detach().flip(0), None)
    sent, state = net(x, state)
    weights = torch.randn(sent.spikes.shape, generator=torch.Generator().manual_seed(2))
    (sent.spikes * weights).sum().backward()
    assert x.grad is not None
    return [sent.spikes.detach(), sent.trace, *state[0], x.grad, norm.weight.grad, norm.bias.grad]  # pyright: ignore


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "surrogate",
    [
        bsnn.nn.surrogate.Sigmoid(),
        bsnn.nn.surrogate.Rectangle(0.7),
        bsnn.nn.surrogate.Triangle(0.9),
        bsnn.nn.surrogate.Arctan(3.0),
    ],
    ids=lambda surrogate: type(surrogate).__name__,
)
@pytest.mark.parametrize("size", [(5, 16, 4, 6), (3, 7, 4, 2), (6, 37)])
def test_neurons_step_as_torch_does(
    level: Level, surrogate: bsnn.nn.surrogate.Surrogate, size: tuple[int, ...]
) -> None:
    x = 2 * torch.randn(size, generator=torch.Generator().manual_seed(0))
    for pooled in (False, True) if len(size) == 4 else (False,):
        with only(level):
            ours = neuron_step(x, surrogate, pooled=pooled)
        with bsnn.backend("fused"):
            theirs = neuron_step(x, surrogate, pooled=pooled)
        for mine, other in zip(ours[:4], theirs[:4], strict=True):  # spikes, traces, membranes
            torch.testing.assert_close(mine, other, rtol=1e-7, atol=0)
        for mine, other in zip(ours[4:], theirs[4:], strict=True):
            assert (mine - other).norm() <= 1e-6 * other.norm()


@pytest.mark.parametrize(("current", "kept"), [(-4608.25, torch.int16), (0.3, torch.float32), (1e6, torch.float32)])
def test_currents_are_kept_as_quarters_where_they_are(current: float, kept: torch.dtype) -> None:
    x = torch.full((3, 5), 0.75)
    x[-1, -1] = current
    layer = cpu.neurons(x, as_numbers(bsnn.LIF()), pooled=False)
    assert layer is not None
    quarters = layer.keep(x)
    assert quarters.dtype == kept
    assert torch.equal(quarters / 4 if kept == torch.int16 else quarters, x)


def test_gradients_from_quarters_are_those_from_currents(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randint(-9, 9, (5, 16, 4, 6), generator=torch.Generator().manual_seed(0)) / 4
    found = []
    for keep in (_neurons.Neurons.keep, lambda _self, current: current):
        monkeypatch.setattr(_neurons.Neurons, "keep", keep)
        found.append(neuron_step(x, bsnn.nn.surrogate.Sigmoid(), pooled=True))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def test_a_membrane_that_is_not_a_number_stays_one() -> None:
    x = torch.zeros(2, 3)
    x[1, 2] = torch.nan
    net = bsnn.Sequential(bsnn.LIF())
    weight = torch.ones(3, requires_grad=True)
    sent, state = net(x * weight, None)
    sent.spikes.sum().backward()
    assert weight.grad is not None
    assert torch.equal(state[0].membrane.isnan(), x.isnan())
    assert weight.grad.isnan().tolist() == [False, False, True]


def test_neurons_leave_the_current_of_others_alone() -> None:
    x = torch.randn(4, 8)
    before = x.clone()
    bsnn.Sequential(bsnn.LIF(), bsnn.BinaryLinear(8, 2))(x, None)
    assert torch.equal(x, before)


def test_far_from_the_threshold_the_sigmoid_is_flat_not_wrong() -> None:
    distances = torch.tensor([[-1e30, -1000.0, -21.9, -3.0, 0.0, 0.1, 5.0, 50.0, 1e30]])
    expected = bsnn.nn.surrogate.Sigmoid().derivative(distances.double())
    current = (distances + 1).requires_grad_()
    sent, _ = bsnn.Sequential(bsnn.LIF(threshold=1.0, gradient="sltt"))(current, None)
    sent.spikes.sum().backward()
    assert current.grad is not None
    torch.testing.assert_close(current.grad.double(), expected, rtol=1e-5, atol=1e-30)


def test_saved_tensors_may_come_back_in_another_order() -> None:
    x, surrogate = torch.randn(5, 16, 4, 6), bsnn.nn.surrogate.Sigmoid()
    expected_step = neuron_step(x, surrogate, pooled=True)
    rows = partial(torch.clone, memory_format=torch.contiguous_format)
    with torch.autograd.graph.saved_tensors_hooks(rows, lambda tensor: tensor):
        for ours, theirs in zip(neuron_step(x, surrogate, pooled=True), expected_step, strict=True):
            assert torch.equal(ours, theirs)


def test_one_value_per_channel_is_refused_as_by_the_modules() -> None:
    net = bsnn.Sequential(bsnn.BatchNorm1d(4), bsnn.LIF())
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        net(torch.randn(1, 4), None)
    assert bsnn.Sequential(bsnn.LIF())(torch.randn(0, 4), None)[0].spikes.shape == (0, 4)


def test_neurons_behind_a_matrix_and_batchnorm() -> None:
    net = bsnn.Sequential(bsnn.LIF(), bsnn.BinaryLinear(64, 64), bsnn.BatchNorm1d(64), bsnn.LIF())
    out, _ = net(torch.rand(6, 64) * 2, None)
    out.spikes.sum().backward()
    assert net[1].weight.grad is not None  # pyright: ignore


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("openmp", [True, False])
def test_threads_share_the_work(threads: int, openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp:
        monkeypatch.setattr(_library, "_openmp", lambda: None)
    with num_threads(threads):
        x = torch.randn(7, 16, 4, 6, generator=torch.Generator().manual_seed(0))
        several = neuron_step(x, bsnn.nn.surrogate.Sigmoid(), pooled=True)
    with num_threads(1):
        for one, other in zip(neuron_step(x, bsnn.nn.surrogate.Sigmoid(), pooled=True), several, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_of_torch_changes_nothing(dtype: torch.dtype) -> None:
    with default_dtype(dtype):
        x = torch.ones(5, 16, 2, 3, dtype=torch.float32)[..., :2].contiguous(memory_format=torch.channels_last)
        layer = cpu.neurons(x, as_numbers(bsnn.LIF()), pooled=True)
        assert layer is not None
        sent, _, _ = layer.fire(x, torch.zeros_like(x), torch.zeros_like(x))
        assert torch.equal(sent, torch.ones_like(sent))


class Steep(bsnn.nn.surrogate.Sigmoid):
    def derivative(self, x: Tensor) -> Tensor:
        return 2 * super().derivative(x)


class Late(bsnn.OTTT):
    def trace(self, past: Tensor, *others: Any) -> Tensor:
        return past


@pytest.mark.parametrize(
    "neuron", [bsnn.LIF(surrogate=Steep()), bsnn.LIF(gradient=Late()), bsnn.LIF(gradient="ndot")], ids=range(3)
)
def test_what_c_does_not_know_is_left_to_torch(neuron: bsnn.LIF) -> None:
    assert cpu.neurons(torch.ones(2, 3), as_numbers(neuron), pooled=False) is None
