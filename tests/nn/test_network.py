import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bsnn
from bsnn.models import resnet18, vgg, vgg11


def megabytes(number: int) -> float:
    return round(number / 1e6, 2)


def test_sizes_of_table_2_counted_from_what_is_stored() -> None:
    for classes, real, stored in ((10, 36.91, 1.20), (100, 37.10, 1.39)):
        size = bsnn.model_size(vgg11(num_classes=classes))
        assert size.binary_weights == 9_216_000
        assert (megabytes(size.real_bytes), megabytes(size.stored_bytes)) == (real, stored)
    size = bsnn.model_size(resnet18())
    assert size.binary_weights == 10_985_472
    assert megabytes(size.stored_bytes) == pytest.approx(4.2, abs=0.03)
    real = bsnn.model_size(vgg11(weights="real"))
    assert real.stored_bytes == real.real_bytes == bsnn.model_size(vgg11()).real_bytes


def test_the_plan_of_vgg11_is_the_papers() -> None:
    net = vgg11()
    convolutions = [m for m in net.children() if isinstance(m, nn.Conv2d | bsnn.TracedConv2d)]
    assert [c.weight.shape[0] for c in convolutions] == [64, 128, 256, 256, 512, 512, 512, 512]
    assert isinstance(convolutions[0], nn.Conv2d)
    assert all(isinstance(c.weight, bsnn.BinaryParameter) for c in convolutions[1:])
    order = [name for name, _ in net.named_children() if name.startswith(("conv", "pool", "flatten", "class"))]
    assert " ".join(order) == (
        "conv1 conv2 pool2 conv3 conv4 pool4 conv5 conv6 pool6 conv7 conv8 pool flatten classifier"
    )


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: vgg11(num_classes=7, in_channels=2, width=0.125), (2, 2, 48, 48)),
        (lambda: vgg11(width=0.1), (2, 3, 8, 11)),
        (lambda: vgg11(in_channels=1, width=0.125), (2, 1, 28, 28)),
        (lambda: resnet18(num_classes=5, width=0.125), (2, 3, 64, 64)),
        (lambda: resnet18(num_classes=5, width=0.125), (2, 3, 37, 50)),
        (lambda: resnet18(in_channels=2, width=0.125, stem=32), (2, 2, 32, 32)),
        (lambda: resnet18(width=0.125, stem=32), (2, 3, 9, 15)),
    ],
)
def test_models_run_forward_and_backward_at_any_size_that_fits(make: Callable[[], bsnn.ImageNetwork], shape) -> None:
    net = make()
    state = net.initial_state(torch.randn(shape))
    for _ in range(2):
        logits, state = net(torch.randn(shape), state)
        logits.sum().backward()
    assert logits.shape == (2, net.classifier.out_features)
    assert all(p.grad is not None for p in net.parameters())


def test_resnet_blocks_are_bi_real() -> None:
    net = resnet18(width=0.125, stem=32)
    blocks = [m for m in net.children() if isinstance(m, bsnn.Residual)]
    assert len(blocks) == 16
    assert sum(not isinstance(block.shortcut, nn.Identity) for block in blocks) == 3
    for block in blocks:
        assert [name for name, _ in block.body.named_children()] == ["lif", "conv", "norm"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vgg11(width=0.1)(torch.zeros(1, 1, 32, 32), None), r"received shape \(1, 1, 32, 32\).*\[batch, 3,"),
        (lambda: vgg11(width=0.1)(torch.zeros(1, 3, 4, 4), None), "at least 8 pixels"),
        (lambda: vgg11(width=0.1)(torch.zeros(4, 1, 3, 8, 8), None), "one time step"),
        (lambda: vgg11(width=0), "width: received 0"),
        (lambda: resnet18(stem=64), "stem: received 64"),
        (lambda: vgg(("pool", 8)), "a number first"),
        (lambda: vgg((8, "max")), "channel numbers and 'pool'"),
    ],
)
def test_misuse_of_models_teaches(call, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        call()


@pytest.mark.parametrize("make", [lambda: vgg11(width=0.125), lambda: resnet18(width=0.125, stem=32)])
def test_whole_networks_copy_save_and_convert_without_becoming_dense(make) -> None:
    net = make().eval()
    x = torch.randn(2, 3, 32, 32)
    expected = bsnn.predict(net, x, time_steps=2)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    assert buffer.tell() < 2 * bsnn.model_size(net).stored_bytes + 120_000
    buffer.seek(0)
    other = make().eval()
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(bsnn.predict(other, x, time_steps=2), expected)
    assert torch.equal(bsnn.predict(copy.deepcopy(net), x, time_steps=2), expected)
    double = copy.deepcopy(net).double()
    assert bsnn.predict(double, x.double(), time_steps=2).dtype == torch.float64
    for parameter in double.parameters():
        if isinstance(parameter, bsnn.BinaryParameter):
            assert parameter.untyped_storage().nbytes() == 8


def test_residual_and_concatenating_networks_in_a_few_lines() -> None:
    net = bsnn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        bsnn.Concat(
            bsnn.Sequential(bsnn.LIF(), bsnn.BinaryConv2d(8, 4, 3, padding=1), bsnn.BatchNorm2d(4), bsnn.LIF()),
            bsnn.LIF(),
        ),
        bsnn.BinaryConv2d(12, 6, 3, padding=1),
        bsnn.BatchNorm2d(6),
        bsnn.Residual(bsnn.Sequential(bsnn.LIF(), bsnn.BinaryConv2d(6, 6, 3, padding=1), bsnn.BatchNorm2d(6))),
        bsnn.LIF(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 2),
    )
    x = torch.randn(3, 1, 8, 8)
    state = net.initial_state(x)
    for _ in range(3):
        logits, state = net(x, state)
    logits.sum().backward()
    assert logits.shape == (3, 2)
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(
    ("block", "spikes", "trace"),
    [
        (bsnn.Concat(bsnn.LIF(), bsnn.LIF()), [[1, 0, 1, 0]], [[1.5, 0.5, 1.5, 0.5]]),
        (bsnn.Residual(bsnn.Sequential(bsnn.LIF()), bsnn.LIF()), [[2, 0]], [[3, 1]]),
    ],
)
def test_joined_spikes_bring_their_traces(block: bsnn.Stateful, spikes, trace) -> None:
    _, state = block(torch.full((1, 2), 1.0), None)
    activity, _ = block(torch.tensor([[1.0, 0.0]]), state)
    assert activity.spikes.tolist() == spikes
    assert activity.trace.tolist() == trace


def test_a_layer_may_be_used_twice() -> None:
    pool, lif = nn.AvgPool2d(2), bsnn.LIF()
    net = bsnn.Sequential(lif, pool, lif, pool)
    activity, state = net(torch.full((1, 1, 8, 8), 5.0), None)
    assert activity.spikes.shape == (1, 1, 2, 2)
    assert [tuple(s.membrane.shape) for s in state] == [(1, 1, 8, 8), (1, 1, 4, 4)]
    assert len(net) == 4
    assert net[1] is net[3] is pool
    assert bsnn.Concat(lif, lif)(torch.ones(1, 4), None)[0].spikes.shape == (1, 8)


def test_the_neuron_of_a_model_is_copied_into_every_layer() -> None:
    neuron = bsnn.LIF(leak=0.9, threshold=0.7, surrogate=bsnn.nn.surrogate.Arctan(), gradient="ndot")
    for net in (vgg11(width=0.1, neuron=neuron), resnet18(width=0.1, neuron=neuron)):
        copies = [m for m in net.modules() if isinstance(m, bsnn.LIF)]
        assert len({id(m) for m in copies}) == len(copies) >= 8
        for lif in copies:
            assert (lif.leak, lif.threshold, lif.surrogate) == (0.9, 0.7, bsnn.nn.surrogate.Arctan())
            assert isinstance(lif.gradient, bsnn.NDOT)
            assert lif.gradient is not neuron.gradient


def test_the_stems_and_shortcuts_of_resnet() -> None:
    state = resnet18(width=0.125).initial_state(torch.zeros(1, 3, 64, 64))
    sizes = [block[0][0].membrane.shape[-1] for block in state[:-1]]
    assert sizes == [16] * 5 + [8] * 4 + [4] * 4 + [2] * 3
    blocks = [b for b in resnet18(width=0.125) if isinstance(b, bsnn.Residual)]
    shortcuts = [b.shortcut for b in blocks if isinstance(b.shortcut, nn.Sequential)]
    assert [[type(layer) for layer in s] for s in shortcuts] == [[nn.AvgPool2d, nn.Conv2d, bsnn.BatchNorm2d]] * 3
    assert [s[1].stride for s in shortcuts] == [(1, 1)] * 3


def test_an_explicit_network_threads_its_own_state() -> None:
    class Own(bsnn.Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.lif1 = nn.Conv2d(1, 4, 3), bsnn.LIF()
            self.conv, self.lif2 = bsnn.BinaryConv2d(4, 4, 3), bsnn.LIF()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor, state: dict | None) -> tuple[Tensor, dict]:
            past = state or {"first": None, "second": None}
            activity, first = self.lif1(self.stem(x), past["first"])
            activity, second = self.lif2(self.conv(activity.map(nn.AvgPool2d(2))), past["second"])
            return self.head(activity.spikes.mean((2, 3))), {"first": first, "second": second}

    net = Own()
    x = torch.randn(5, 1, 12, 12)
    state = net.initial_state(x)
    assert state["second"].membrane.shape == (5, 4, 3, 3)
    logits, _ = net(x, state)
    assert logits.shape == (5, 2)


def test_what_would_cut_the_trace_is_refused() -> None:
    synapse = bsnn.BinaryLinear(4, 4)
    with pytest.raises(bsnn.UserError, match=r"layer 1 \(Dropout\) stands between a neuron and the synapse 2"):
        bsnn.Sequential(bsnn.LIF(), nn.Dropout(), synapse)
    with pytest.raises(bsnn.UserError, match=r"layer 1 \(Dropout\) stands between .* synapse 2"):
        bsnn.Sequential(bsnn.Sequential(synapse, bsnn.LIF()), nn.Dropout(), synapse)
    with pytest.raises(bsnn.UserError, match=r"layer 1.0 \(Dropout\) stands between .* synapse 1.1"):
        bsnn.Sequential(bsnn.LIF(), bsnn.Sequential(nn.Dropout(), synapse))
    with pytest.raises(bsnn.UserError, match="layer 1 is a Sequential with a synapse inside"):
        bsnn.Sequential(bsnn.LIF(), nn.Sequential(nn.Identity(), synapse))
    with pytest.raises(bsnn.UserError, match=r"layer 0.1 \(Dropout\) stands between"):
        bsnn.Sequential(bsnn.Sequential(bsnn.LIF(), nn.Dropout()), synapse)
    with pytest.raises(bsnn.UserError, match=r"as layer 0; expected an nn\.Module"):
        bsnn.Sequential(bsnn.LIF)
    with pytest.raises(bsnn.UserError, match="some branches yield spikes and others currents"):
        bsnn.Concat(bsnn.LIF(), nn.Identity())(torch.zeros(1, 2), None)
    with pytest.raises(bsnn.UserError, match=r"the body yields \(1, 3\) and the shortcut \(1, 2\)"):
        bsnn.Residual(nn.Linear(2, 3))(torch.zeros(1, 2), None)
