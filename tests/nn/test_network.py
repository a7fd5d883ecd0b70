import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bsnn
from bsnn.models import residual, resnet18, vgg, vgg11


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


def test_every_pool_of_a_plan_is_there() -> None:
    net = vgg((4, "pool", "pool", "pool", 8, "pool"), in_channels=1)
    pools = [name for name, layer in net.named_children() if isinstance(layer, nn.AvgPool2d)]
    assert pools == ["pool1", "pool1_2", "pool1_3", "pool2"]
    with pytest.raises(bsnn.UserError, match="16"):
        net(torch.zeros(1, 1, 8, 8), None)
    assert net(torch.zeros(1, 1, 16, 16), None)[0].shape == (1, 10)


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
        (lambda: residual((8, "down", 16, 16, "down", 48), num_classes=5, in_channels=2), (2, 2, 9, 15)),
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
        (lambda: vgg(("pool", 8)), "received pool,8; expected .* a convolution first"),
        (lambda: vgg((8, "max")), "channel numbers, 'pool' and 'down'"),
        (lambda: vgg((8, "down", "pool", 8)), "channels behind each 'down'"),
        (lambda: vgg((8, "down", 8), convolution=nn.Conv2d), "no 'down' behind the first convolution"),
    ],
)
def test_misuse_of_models_teaches(call, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        call()


@pytest.mark.parametrize(
    ("plan", "size", "shapes"),
    [
        ((4, "down", 8, "pool", 8), 3, {"conv1": 3, "conv2": 2, "conv3": 1}),
        (("down", 4, "down", 8, "pool", 8), 5, {"conv1": 3, "conv2": 2, "conv3": 1}),
        (("down", 4, "pool", 8), 8, {"conv1": 4, "conv2": 2}),
    ],
)
def test_down_in_a_plan_is_a_convolution_of_stride_2(plan, size: int, shapes: dict[str, int]) -> None:
    net, found = vgg(plan, in_channels=1).eval(), {}
    for name in shapes:
        net.get_submodule(name).register_forward_hook(lambda _, inputs, y, name=name: found.update({name: y.shape[-1]}))
    assert net(torch.zeros(1, 1, size, size), None)[0].shape == (1, 10)
    assert found == shapes
    smallest = net.minimum_size
    net(torch.zeros(1, 1, smallest, smallest), None)
    with pytest.raises(bsnn.UserError, match=f"at least {smallest} pixels"):
        net(torch.zeros(1, 1, smallest - 1, smallest - 1), None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: vgg11(width=0.125),
        lambda: resnet18(width=0.125, stem=32),
        lambda: residual((8, "down", 16, 16, "down", 48)),
    ],
)
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


def run(*layers: nn.Module | dict[str, nn.Module]) -> Any:
    return bsnn.Sequential(*layers)(torch.ones(2, 4), None)[0]


def test_a_synapse_refuses_an_input_whose_trace_was_lost_and_names_the_layer() -> None:
    synapse = bsnn.BinaryLinear(4, 4)
    cut = r"\) stands between a neuron and this BinaryLinear \(4, 4\)"
    for layers, where in (
        ((bsnn.LIF(), nn.Dropout(), synapse), r"layer 1 \(Dropout"),
        ((bsnn.LIF(), nn.Dropout().eval(), synapse), r"layer 1 \(Dropout"),
        ((bsnn.LIF(), nn.Linear(4, 4), nn.BatchNorm1d(4), synapse), r"layer 1 \(Linear"),
        ((bsnn.LIF(), nn.ReLU(), nn.Identity(), nn.ReLU(), synapse), r"layer 1 \(ReLU"),
        ((bsnn.Sequential(synapse, bsnn.LIF()), nn.Dropout(), synapse), r"layer 1 \(Dropout"),
        ((bsnn.LIF(), bsnn.Sequential(nn.Dropout(), synapse)), r"layer 0 \(Dropout"),
        ((bsnn.Sequential(bsnn.LIF(), nn.Dropout()), synapse), r"layer 0\.1 \(Dropout"),
        (
            (bsnn.Sequential(bsnn.Sequential(bsnn.LIF(), nn.Dropout())), nn.Identity(), synapse),
            r"layer 0\.0\.1 \(Dropout",
        ),
        ((bsnn.LIF(), nn.Dropout(), bsnn.Sequential(nn.Identity(), synapse)), r"layer 1 \(Dropout"),
        ((bsnn.Residual(bsnn.Sequential(bsnn.LIF(), nn.ReLU())), synapse), r"layer 0\.body\.1 \(ReLU"),
        (({"lif": bsnn.LIF(), "pool": nn.MaxPool1d(1), "fc": synapse},), r"layer pool \(MaxPool1d"),
        ((bsnn.Recurrent(bsnn.BinaryLinear(4, 4), bsnn.LIF()), nn.ReLU(), synapse), r"layer 1 \(ReLU"),
    ):
        with pytest.raises(bsnn.UserError, match=where + cut):
            run(*layers)


class OwnIdentity(nn.Identity):
    def forward(self, input: Tensor) -> Tensor:
        return input**2


def test_layers_exchanged_after_construction_do_not_escape() -> None:
    net = bsnn.Sequential({"lif": bsnn.LIF(), "pool": nn.Identity(), "fc": bsnn.BinaryLinear(4, 4)})
    net(torch.ones(2, 4), None)
    for replacement in (nn.Dropout(), OwnIdentity()):
        net.pool = replacement
        with pytest.raises(bsnn.UserError, match=r"layer pool \(\w+\) stands between a neuron"):
            net(torch.ones(2, 4), None)
    net.pool = nn.Identity()
    net(torch.ones(2, 4), None)
    net.pool.forward = lambda x: x**2
    with pytest.raises(bsnn.UserError, match=r"layer pool \(Identity\) stands between a neuron"):
        net(torch.ones(2, 4), None)
    net.pool = nn.Sequential(nn.Identity(), bsnn.BinaryLinear(4, 4))
    with pytest.raises(bsnn.UserError, match="layer pool is a Sequential with a synapse inside"):
        net(torch.ones(2, 4), None)
    net.lif.gradient = "sltt"  # no trace, nothing to lose
    for replacement in (nn.Dropout(), nn.ReLU(), nn.Sequential(nn.ReLU(), bsnn.BinaryLinear(4, 4))):
        net.pool = replacement
        assert net(torch.ones(2, 4), None)[0].shape == (2, 4)


def test_a_module_with_a_synapse_inside_is_refused_behind_a_neuron() -> None:
    synapse = bsnn.BinaryLinear(4, 4)
    with pytest.raises(bsnn.UserError, match="layer 1 is a Sequential with a synapse inside"):
        run(bsnn.LIF(), nn.Sequential(nn.Identity(), synapse))
    with pytest.raises(bsnn.UserError, match="layer 2 is a Sequential with a synapse inside"):
        run(bsnn.LIF(), nn.Dropout(), nn.Sequential(nn.ReLU(), synapse))
    assert run(nn.Sequential(nn.Identity(), synapse)).shape == (2, 4)


@pytest.mark.parametrize("gradient", ["ottt", "ndot", "sltt", "bptt"])
def test_where_no_synapse_follows_any_layer_may_stand_behind_a_neuron(gradient: str) -> None:
    lif = bsnn.LIF(gradient=gradient)
    assert run(lif, nn.Dropout(), nn.Linear(4, 3)).shape == (2, 3)
    assert run(lif, nn.Linear(4, 4), nn.BatchNorm1d(4), lif, bsnn.BinaryLinear(4, 3)).shape == (2, 3)
    assert isinstance(run(lif, nn.ReLU()), Tensor)


def test_a_tensor_that_a_layer_hands_on_is_not_blamed_for_what_another_branch_lost() -> None:
    dropout = nn.Dropout().eval()  # returns its input
    net = bsnn.Sequential(bsnn.LIF(), bsnn.Concat(bsnn.Sequential(dropout, nn.Linear(4, 4)), bsnn.BinaryLinear(4, 4)))
    assert net(torch.ones(2, 4), None)[0].shape == (2, 8)


def test_misuse_of_compositions_teaches() -> None:
    with pytest.raises(bsnn.UserError, match=r"as layer 0; expected an nn\.Module"):
        bsnn.Sequential(bsnn.LIF)
    with pytest.raises(bsnn.UserError, match="some branches yield spikes and others currents"):
        bsnn.Concat(bsnn.LIF(), nn.Identity())(torch.zeros(1, 2), None)
    with pytest.raises(bsnn.UserError, match=r"the body yields \(1, 3\) and the shortcut \(1, 2\)"):
        bsnn.Residual(nn.Linear(2, 3))(torch.zeros(1, 2), None)


def test_a_hook_that_changes_what_computes_is_told_of_once_per_network() -> None:
    def hooked() -> bsnn.ImageNetwork:
        net = resnet18(num_classes=3, width=0.05, stem=32)
        for module in net.modules():
            if isinstance(module, bsnn.LIF):
                module.register_forward_hook(lambda *_: None)
        return net

    x = torch.randn(2, 3, 8, 8)
    for _ in range(2):
        net = hooked()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            _, state = net(x, net.initial_state(x))
            net(x, state)
        assert [warning.category for warning in found] == [bsnn.BackendWarning]
        assert "layer lif (LIF) has a hook" in str(found[0].message)
    net = bsnn.Sequential(nn.Linear(4, 4), bsnn.LIF())
    net[1].register_full_backward_hook(lambda *_: None)
    with pytest.warns(bsnn.BackendWarning, match=r"layer 1 \(LIF\)"):
        net(torch.ones(2, 4, requires_grad=True), None)
    net = bsnn.Sequential(nn.Conv2d(3, 4, 3), bsnn.LIF(), nn.AvgPool2d(2))
    net[2].register_forward_hook(lambda *_: None)
    with pytest.warns(bsnn.BackendWarning, match=r"layer 2 \(AvgPool2d\)"):
        net(x, None)


def test_the_librarys_own_hooks_and_a_chosen_backend_say_nothing() -> None:
    net, x = vgg((4, "pool", 4)), torch.randn(2, 3, 8, 8)
    with bsnn.counting_spikes(net):
        net(x, None)
    bsnn.predict_memory(net, x, batch=2)
    net.lif1.register_forward_hook(lambda *_: None)
    with bsnn.backend("reference"):
        net(x, None)
    net.conv2.register_forward_hook(lambda *_: None)
    net.norm2.register_forward_hook(lambda *_: None)
    with bsnn.backend("reference"):
        net(x, None)


def test_a_state_of_another_neuron_is_refused() -> None:
    _, state = bsnn.LIF()(torch.zeros(1, 2), None)
    with pytest.raises(bsnn.UserError, match="received a LIFState; expected a ParametricState, as ParametricLIF"):
        bsnn.ParametricLIF()(torch.zeros(1, 2), state)
    _, state = bsnn.ParametricLIF(gradient="sltt")(torch.zeros(1, 2), None)
    with pytest.raises(bsnn.UserError, match="received one without a trace"):
        bsnn.ParametricLIF()(torch.zeros(1, 2), state)
