"""The forward pass on the engine's kernel gives the bits of torch's convolution."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bsnn
from bsnn.deploy.engine.native import libraries
from bsnn.kernels import cpu as kernels
from bsnn.nn.bits import pack

pytestmark = pytest.mark.skipif(not libraries(), reason="the C kernel was not built")

GEOMETRIES: dict[str, dict[str, Any]] = {
    "usual": dict(ins=64, outs=64, kernel=(3, 3), padding=(1, 1)),
    "wide": dict(ins=70, outs=600, kernel=(3, 3), padding=(1, 1)),
    "odd": dict(ins=5, outs=67, kernel=(2, 3), padding=(0, 2), stride=(1, 2), dilation=(2, 1)),
    "groups": dict(ins=12, outs=130, kernel=(3, 1), padding=(1, 0), groups=2),
    "pointwise": dict(ins=130, outs=70, kernel=(1, 1)),
}


def case(name: str, *, pooled: bool) -> tuple[Tensor, Tensor, torch.Size, kernels.Geometry]:
    torch.manual_seed(0)
    settings = dict(GEOMETRIES[name])
    ins, outs, kernel = (settings.pop(key) for key in ("ins", "outs", "kernel"))
    geometry = kernels.Geometry(**settings)
    x = (torch.rand(3, ins, 14, 10) < 0.3).float()
    x = F.avg_pool2d(x, 2) if pooled else x
    x[1] = 0
    x[2] = 1  # every count at its largest
    weight = torch.randn(outs, ins // geometry.groups, *kernel)
    return x, pack(weight.flatten() >= 0), weight.shape, geometry


def expected(x: Tensor, bits: Tensor, shape: torch.Size, geometry: kernels.Geometry) -> Tensor:
    return F.conv2d(x, bsnn.nn.bits.unpack(bits, shape.numel()).view(shape), None, *geometry)


@pytest.mark.parametrize("library", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("pooled", [False, True])
def test_counts_are_convolutions(library: str, name: str, pooled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = libraries()
    if library not in found:
        pytest.skip(f"this processor or compiler has no {library}")
    monkeypatch.setattr(kernels, "libraries", lambda: {library: found[library]})
    x, bits, shape, geometry = case(name, pooled=pooled)
    made = kernels.convolve(x, bits, shape, geometry)
    assert made is not None
    assert torch.equal(made, expected(x, bits, shape, geometry))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("openmp", [True, False])
def test_threads_share_the_work(threads: int, openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp:
        monkeypatch.setattr(kernels, "_openmp", lambda: None)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for pooled in (False, True):
            arguments = case("usual", pooled=pooled)
            made = kernels.convolve(*arguments)
            assert made is not None
            assert torch.equal(made, expected(*arguments))
        for ours, exact in gradients(7, 70, 80, (9, 13), (1, 1)):
            assert (ours - exact).norm() <= 2e-6 * exact.norm()
        x = torch.randn(7, 16, 4, 6, generator=torch.Generator().manual_seed(0))
        several = neuron_step(x, bsnn.nn.surrogate.Sigmoid(), pooled=True)
        torch.set_num_threads(1)
        for one, other in zip(neuron_step(x, bsnn.nn.surrogate.Sigmoid(), pooled=True), several, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [0.5, -1.0, 2.0, 0.3, torch.nan, torch.inf])
@pytest.mark.parametrize("pooled", [False, True])
def test_other_numbers_are_left_to_torch(value: float, pooled: bool) -> None:
    x, bits, shape, geometry = case("odd", pooled=pooled)
    x[-1, -1, -1, -1] = value
    served = kernels.convolve(x, bits, shape, geometry)
    assert (served is None) == (value != 0.5)  # a mean of four spikes may be a half


def test_what_the_kernel_does_not_serve() -> None:
    x, bits, shape, geometry = case("usual", pooled=False)
    assert kernels.convolve(x.double(), bits, shape, geometry) is None
    assert kernels.convolve(x[:0], bits, shape, geometry) is None
    few = torch.Size((8, *shape[1:]))
    assert kernels.convolve(x, bits[: few.numel() // 8], few, geometry) is None


@pytest.mark.parametrize(
    ("layer", "size"), [(bsnn.BinaryConv2d(8, 64, 3, padding=1), (8, 2, 2)), (bsnn.BinaryLinear(30, 64), (30,))]
)
def test_layers_count_and_their_gradients_stay(
    layer: bsnn.nn.synapse.TracedLayer, size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, found = (torch.rand(3, *size) < 0.5).float().requires_grad_(), []
    for built in (libraries(), {}):
        monkeypatch.setattr(kernels, "libraries", lambda built=built: built)
        x.grad = layer.weight.grad = None
        currents = layer(x)
        currents.square().sum().backward()
        found.append([currents, x.grad, layer.weight.grad])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def gradients(
    batch: int, ins: int, outs: int, size: tuple[int, int], padding: tuple[int, int]
) -> list[tuple[Tensor, Tensor]]:
    """Those of what enters a convolution and of its weights, in tiles and from autograd in double precision."""
    torch.manual_seed(0)
    x = torch.randn(batch, ins, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(outs, ins, 3, 3, dtype=torch.float64).sign().requires_grad_()
    made = F.conv2d(x, weight, padding=padding)
    grad = torch.randn(made.shape, dtype=torch.float64).float()
    made.backward(grad.double())
    bits, geometry = pack(weight.detach().flatten() >= 0), kernels.Geometry(padding=padding)
    of_input = kernels.input_gradient(grad, bits, weight.shape, size, geometry)
    x_trace = x.detach().float()
    of_weight = kernels.weight_gradient(grad, x_trace, weight.shape, geometry)
    found = []
    for ours, exact in ((of_input, x.grad), (of_weight, weight.grad)):
        assert ours is not None
        assert exact is not None
        assert ours.dtype == torch.float32
        assert ours.shape == exact.shape
        found.append((ours, exact))
    assert of_weight is not None
    assert of_weight.is_contiguous()
    return found


@pytest.mark.parametrize("library", ["avx2", "avx512", "baseline"])
@pytest.mark.parametrize("padding", [(1, 1), (0, 0), (2, 1), (0, 2)])
@pytest.mark.parametrize(
    ("batch", "ins", "outs", "size"),
    [(1, 48, 64, (20, 20)), (7, 33, 70, (11, 7)), (70, 32, 35, (7, 12)), (2, 130, 32, (4, 8)), (3, 40, 41, (16, 3))],
)
def test_gradients_in_tiles(
    library: str, padding: tuple[int, int], batch: int, ins: int, outs: int, size: tuple[int, int], monkeypatch
) -> None:
    found = libraries()
    if library not in found:
        pytest.skip(f"this processor or compiler has no {library}")
    monkeypatch.setattr(kernels, "libraries", lambda: {library: found[library]})
    monkeypatch.setattr(kernels, "_MIN_TILE_PIXELS", 1)
    monkeypatch.setattr(kernels, "_MIN_TILE_CHANNELS", 1)
    for ours, exact in gradients(batch, ins, outs, size, padding):
        assert (ours - exact).norm() <= 2e-6 * exact.norm()
        assert (ours - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_gradients_of_some_images_and_channels_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients(5, 64, 80, (8, 12), (1, 1))
    monkeypatch.setattr(kernels, "_POINTS", 1)
    monkeypatch.setattr(kernels, "_SUMS", 36 * 64 * 30)  # blocks of 27, 27 and 26 channels
    for (ours, _), (other, exact) in zip(whole, gradients(5, 64, 80, (8, 12), (1, 1)), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


def test_gradients_of_nothing_are_nothing() -> None:
    x, grad, shape = torch.randn(2, 64, 8, 8), torch.randn(2, 64, 8, 8), torch.Size((64, 64, 3, 3))
    x[:, 5] = 0
    grad[:, 7] = 0
    made = kernels.weight_gradient(grad, x, shape, kernels.Geometry(padding=(1, 1)))
    assert made is not None
    assert not made[7].any()
    assert not made[:, 5].any()
    assert made.count_nonzero() > 0.9 * made.numel()


def test_a_network_on_the_kernel_has_the_gradients_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = bsnn.models.vgg((64, "pool", 64, 80, "pool", 96), in_channels=2)
    x, y, found = torch.randn(9, 2, 20, 24), torch.arange(9), []
    for built in (libraries(), {}):
        monkeypatch.setattr(kernels, "libraries", lambda built=built: built)
        state, steps = None, []
        for _ in range(3):
            net.zero_grad()
            logits, state = net(x, state)
            F.cross_entropy(logits, y).backward()
            steps.append([logits.detach()] + [p.grad.clone() for p in net.parameters() if p.grad is not None])
        found.append(steps)
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours[0], theirs[0])  # the same spikes
        for gradient, exact in zip(ours[1:], theirs[1:], strict=True):
            assert (gradient - exact).norm() <= 1e-5 * exact.norm()


def test_a_watched_current_is_not_written_over() -> None:
    net = bsnn.models.vgg((32, 64), in_channels=2)
    x, seen = torch.randn(3, 2, 8, 8), []
    synapse = next(module for module in net.modules() if isinstance(module, bsnn.nn.synapse.TracedConv2d))
    logits, _ = net(x, None)
    with synapse.register_forward_hook(lambda _module, inputs, output: seen.append((inputs[0].spikes, output))):
        watched, _ = net(x, None)
    (spikes, current) = seen[0]
    weight = bsnn.signs(synapse.weight)
    assert torch.equal(current, F.conv2d(spikes, weight, padding=1))
    assert torch.equal(logits, watched)


class Keeping(bsnn.BinaryConv2d):
    def forward(self, x: Tensor | bsnn.Activity) -> Tensor:
        self.kept = super().forward(x)
        return self.kept


def test_a_current_that_somebody_keeps_is_not_written_over() -> None:
    spikes, seen = (torch.rand(3, 64, 8, 8) < 0.3).float(), []
    layer = Keeping(64, 64, 3, padding=1)
    expected_currents = layer(spikes).detach()
    net = bsnn.Sequential(layer, bsnn.BatchNorm2d(64), bsnn.LIF())
    net(spikes, None)
    assert torch.equal(layer.kept, expected_currents)
    usual = bsnn.BinaryConv2d(64, 64, 3, padding=1)
    usual.weight = layer.weight
    net = bsnn.Sequential(usual, bsnn.BatchNorm2d(64), bsnn.LIF())
    with torch.nn.modules.module.register_module_forward_hook(lambda _m, _i, output: seen.append(output)):
        net(spikes, None)
    assert torch.equal(seen[0], expected_currents)


def test_neurons_behind_a_matrix_and_batchnorm() -> None:
    net = bsnn.Sequential(bsnn.LIF(), bsnn.BinaryLinear(64, 64), bsnn.BatchNorm1d(64), bsnn.LIF())
    out, _ = net(torch.rand(6, 64) * 2, None)
    out.spikes.sum().backward()
    assert net[1].weight.grad is not None  # pyright: ignore


def test_shapes_that_do_not_fit_are_refused() -> None:
    layer, spikes = bsnn.BinaryConv2d(64, 64, 3, padding=1), torch.zeros(2, 64, 8, 8)
    for trace in (torch.zeros(4, 64, 8, 8), torch.zeros(2, 96, 8, 8), torch.zeros(2, 64, 8, 9)):
        with pytest.raises(bsnn.UserError, match=r"trace of shape \(.*expected the same"):
            layer(bsnn.Activity(spikes, trace))
        grad, bits, usual = torch.zeros(2, 64, 8, 8), torch.zeros(8 * 64 * 9, dtype=torch.uint8), (1, 1)
        geometry = kernels.Geometry(padding=usual)
        assert kernels.weight_gradient(grad, trace, layer.weight.shape, geometry) is None
        assert kernels.input_gradient(trace[:, :63], bits, layer.weight.shape, (8, 8), geometry) is None
    net = bsnn.Sequential(bsnn.BinaryConv2d(64, 64, 3, padding=1), bsnn.BatchNorm2d(32), bsnn.LIF())
    with pytest.raises(RuntimeError, match="running_mean"):
        net(torch.zeros(4, 64, 8, 8), None)


def test_the_room_of_tiles_lives_as_long_as_a_backward_pass() -> None:
    layer, x = bsnn.BinaryConv2d(64, 64, 3, padding=1), (torch.rand(2, 64, 8, 8) < 0.3).float().requires_grad_()
    alive = []
    x.register_hook(lambda _: alive.append(kernels._rooms.own._floats.numel()))
    layer(x).sum().backward()
    assert alive[0] > 0
    counted = bsnn.kernels.memory.peak_bytes(lambda: layer(x).sum().backward())
    assert counted > 4 * alive[0]
    assert kernels._rooms.own._floats.numel() == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_is_seen(value: float) -> None:
    x, grad, shape = torch.randn(2, 64, 8, 8), torch.randn(2, 64, 8, 8), torch.Size((64, 64, 3, 3))
    grad[1, 3, 4, 5] = value
    geometry = kernels.Geometry(padding=(1, 1))
    of_weight = kernels.weight_gradient(grad, x, shape, geometry)
    of_input = kernels.input_gradient(grad, torch.zeros(8 * 64 * 9, dtype=torch.uint8), shape, (8, 8), geometry)
    for made in (of_weight, of_input):
        assert made is not None
        assert not made.isfinite().all()


def test_gradients_that_are_left_to_torch() -> None:
    x, grad, shape = torch.zeros(2, 64, 8, 8), torch.zeros(2, 64, 8, 8), torch.Size((64, 64, 3, 3))
    bits, usual = torch.zeros(8 * 64 * 9, dtype=torch.uint8), kernels.Geometry(padding=(1, 1))

    def served(grad: Tensor, x: Tensor, shape: torch.Size, geometry: kernels.Geometry) -> list[bool]:
        of_weight = kernels.weight_gradient(grad, x, shape, geometry)
        of_input = kernels.input_gradient(grad, bits, shape, (x.shape[2], x.shape[3]), geometry)
        return [made is not None for made in (of_weight, of_input)]

    assert served(grad, x, shape, usual) == [True, True]
    assert served(grad.double(), x.double(), shape, usual) == [False, False]
    assert served(grad[..., :2, :2], x[..., :2, :2], shape, usual) == [False, False]
    for other in (torch.Size((32, 64, 3, 3)), torch.Size((64, 32, 3, 3)), torch.Size((64, 64, 3, 1))):
        assert served(grad, x, other, usual) == [False, False]
    others: list[dict[str, Any]] = [{"stride": (2, 2)}, {"dilation": (2, 1)}, {"groups": 2}, {"padding": (3, 1)}]
    for changed in others:
        assert served(grad, x, shape, usual._replace(**changed)) == [False, False]


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


@pytest.mark.parametrize("library", ["baseline", "avx2", "avx512"])
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
    library: str, surrogate: bsnn.nn.surrogate.Surrogate, size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = libraries()
    if library not in found:
        pytest.skip(f"this processor or compiler has no {library}")
    x = 2 * torch.randn(size, generator=torch.Generator().manual_seed(0))
    for pooled in (False, True) if len(size) == 4 else (False,):
        monkeypatch.setattr(kernels, "libraries", lambda: {library: found[library]})
        ours = neuron_step(x, surrogate, pooled=pooled)
        monkeypatch.setattr(kernels, "libraries", dict)
        theirs = neuron_step(x, surrogate, pooled=pooled)
        for mine, other in zip(ours[:4], theirs[:4], strict=True):  # spikes, traces, membranes
            torch.testing.assert_close(mine, other, rtol=1e-7, atol=0)
        for mine, other in zip(ours[4:], theirs[4:], strict=True):
            assert (mine - other).norm() <= 1e-6 * other.norm()


@pytest.mark.parametrize(("current", "kept"), [(-4608.25, torch.int16), (0.3, torch.float32), (1e6, torch.float32)])
def test_currents_are_kept_as_quarters_where_they_are(current: float, kept: torch.dtype) -> None:
    x = torch.full((3, 5), 0.75)
    x[-1, -1] = current
    layer = kernels.neurons(x, False, bsnn.nn.trace.OTTT(), bsnn.nn.surrogate.Sigmoid(), 0.5, 1.0)
    assert layer is not None
    quarters = layer.keep(x)
    assert quarters.dtype == kept
    assert torch.equal(quarters / 4 if kept == torch.int16 else quarters, x)


def test_gradients_from_quarters_are_those_from_currents(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randint(-9, 9, (5, 16, 4, 6), generator=torch.Generator().manual_seed(0)) / 4
    found = []
    for keep in (kernels.Neurons.keep, lambda _self, current: current):
        monkeypatch.setattr(kernels.Neurons, "keep", keep)
        found.append(neuron_step(x, bsnn.nn.surrogate.Sigmoid(), pooled=True))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("number", [1, 8, 77])
def test_signs_are_those_of_the_bits(number: int) -> None:
    bits = pack(torch.rand(number) < 0.5)
    assert torch.equal(kernels.signs(bits, number, torch.float32), bsnn.nn.bits.unpack(bits, number))


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


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (bsnn.BinaryLinear(4096, 64), (2, 64)),
        (bsnn.BinaryLinear(64, 64), (2, 128)),
        (bsnn.BinaryConv2d(64, 64, 3), (2, 96, 5, 5)),
        (bsnn.BinaryConv2d(8, 64, 3), (1, 8, 2, 2)),
        (bsnn.BinaryLinear(64, 64).double(), (2, 64)),
    ],
)
def test_what_torch_refuses_is_refused(layer: bsnn.nn.synapse.TracedLayer, size: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError):
        layer(torch.ones(size))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_of_torch_changes_nothing(dtype: torch.dtype) -> None:
    net, x = bsnn.BinaryConv2d(64, 64, 3, padding=1), (torch.rand(3, 64, 4, 4) < 0.3).float()
    expected_currents = net(x)
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(net(x), expected_currents)
        for ours, exact in gradients(2, 64, 64, (8, 8), (1, 1)):
            assert (ours - exact).norm() <= 2e-6 * exact.norm()
        x = torch.ones(5, 16, 2, 3, dtype=torch.float32)[..., :2].contiguous(memory_format=torch.channels_last)
        layer = kernels.neurons(x, True, bsnn.nn.trace.OTTT(), bsnn.nn.surrogate.Sigmoid(), 0.5, 1.0)
        assert layer is not None
        sent, _, _ = layer.fire(x, torch.zeros_like(x), torch.zeros_like(x))
        assert torch.equal(sent, torch.ones_like(sent))
    finally:
        torch.set_default_dtype(torch.float32)


def test_placeholders_without_memory_are_left_to_torch() -> None:
    layer = bsnn.BinaryLinear(64, 64).to("meta")
    for device in ("meta", "cpu"):
        assert layer(torch.ones(2, 64, device=device)).shape == (2, 64)


def test_saved_tensors_may_come_back_in_another_order() -> None:
    x, surrogate = torch.randn(5, 16, 4, 6), bsnn.nn.surrogate.Sigmoid()
    expected_step = neuron_step(x, surrogate, pooled=True)
    rows = partial(torch.clone, memory_format=torch.contiguous_format)
    with torch.autograd.graph.saved_tensors_hooks(rows, lambda tensor: tensor):
        for ours, theirs in zip(neuron_step(x, surrogate, pooled=True), expected_step, strict=True):
            assert torch.equal(ours, theirs)


def test_one_value_a_channel_is_refused_as_by_the_modules() -> None:
    net = bsnn.Sequential(bsnn.BatchNorm1d(4), bsnn.LIF())
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        net(torch.randn(1, 4), None)
    assert bsnn.Sequential(bsnn.LIF())(torch.randn(0, 4), None)[0].spikes.shape == (0, 4)
