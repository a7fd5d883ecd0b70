"""`torch.compile`: the same bits as without, training and evaluating, in both loops; no layer of ours is traced."""

import copy
import functools
import importlib
import itertools
import os
import pkgutil
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional as F

import bsnn
import bsnn.nn
from bsnn.kernels.torch_internals import tensors_in

X, Y = torch.randn(4, 2, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3])
LOSS = functools.partial(bsnn.step_loss, labels=Y, time_steps=3)
# torch's own, from importing its compiler
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

RULES = ("ottt", "ndot", "sltt", "bptt")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Nothing compiled before, and an error where torch would give up and run uncompiled without a word."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield


class Own(bsnn.Stateful):
    """A network whose forward the compiler traces, in pieces between layers of ours."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.conv1, self.norm1 = nn.Conv2d(2, 8, 3, padding=1, bias=False), bsnn.BatchNorm2d(8)
        self.conv2, self.norm2 = bsnn.BinaryConv2d(8, 8, 3, padding=1), bsnn.BatchNorm2d(8)
        self.lif1, self.lif2 = bsnn.LIF(gradient=rule), bsnn.LIF(gradient=rule)
        self.block = bsnn.Sequential(bsnn.BinaryLinear(128, 8), bsnn.BatchNorm1d(8), bsnn.LIF(gradient=rule))
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        first, second, third = (None, None, None) if state is None else state
        activity, first = self.lif1(self.norm1(self.conv1(x * self.scale)), first)
        current = self.norm2(self.conv2(activity.map(F.avg_pool2d, 2)))
        activity, second = self.lif2(current, second)
        activity, third = self.block(activity.map(torch.flatten, 1), third)
        return 0.5 * self.head(activity.spikes), (first, second, third)


def chain(rule: Any) -> nn.Module:
    return bsnn.models.vgg((8, 64, "pool", 64), in_channels=2, neuron=bsnn.LIF(gradient=rule))


def branches(rule: Any) -> nn.Module:
    def lif() -> bsnn.LIF:
        return bsnn.LIF(gradient=rule)

    body = bsnn.Sequential(lif(), bsnn.BinaryConv2d(8, 8, 3, padding=1), bsnn.BatchNorm2d(8))
    joined = bsnn.Concat(lif(), bsnn.Sequential(lif(), bsnn.BinaryConv2d(8, 4, 1), lif()))
    layers = nn.Conv2d(2, 8, 3, padding=1), bsnn.Residual(body), joined, bsnn.BinaryConv2d(12, 4, 3)
    return bsnn.Sequential(*layers, lif(), nn.Flatten(), nn.Linear(144, 10))


def optimizers_of(net: nn.Module) -> list[torch.optim.Optimizer]:
    binary, real = bsnn.split_parameters(net)
    return [bsnn.optim.TBSO(binary, time_steps=3, gamma=1e-4), torch.optim.SGD(real, lr=0.1, momentum=0.9)]


def plain_loop(net: nn.Module) -> list[Any]:
    """Everything that three updates and an evaluation show, by torch's own loop."""
    flip, sgd = optimizers_of(net)
    seen, state = [], None
    for t in range(3):
        logits, state = net(X, state)
        LOSS(logits).backward()
        seen += [logits, bsnn.map_state(torch.clone, state), [p.grad for p in net.parameters()]]
        flip.step(t=t)  # pyright: ignore[reportCallIssue]
        sgd.step()
        seen += [torch.tensor(flip.flip_counts)]  # pyright: ignore[reportAttributeAccessIssue]
        flip.zero_grad()
        sgd.zero_grad()
        state = bsnn.map_state(Tensor.detach, state)
    return [*seen, *ending(net, [flip, sgd])]


def online(net: nn.Module, bptt: bool = False) -> list[Any]:
    """The same by the library's loop."""
    optimizers, seen = optimizers_of(net), []
    for _ in range(3):
        update = bsnn.bptt_update if bptt else bsnn.online_update
        seen += [update(net, itertools.repeat(X, 3), LOSS, optimizers)]  # pyright: ignore[reportArgumentType]
        seen += [torch.tensor(optimizers[0].flip_counts)]  # pyright: ignore[reportAttributeAccessIssue]
    return [*seen, *ending(net, optimizers)]


def ending(net: nn.Module, optimizers: list[torch.optim.Optimizer]) -> list[Any]:
    bsnn.estimate_statistics(net, [X], time_steps=3)
    net.eval()
    smaller = bsnn.predict(net, X[:3], time_steps=3)  # another batch size, as the last batch has
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    return [bsnn.predict(net, X, time_steps=3), smaller, dict(net.state_dict()), states]


def assert_same_bits(first: Any, second: Any) -> None:
    pairs = list(zip(tensors_in(first), tensors_in(second), strict=True))
    assert len(pairs) > 20
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    flips = [a for a, _ in pairs if a.dtype == torch.int64 and a.dim() == 1]
    assert any(int(counts.sum()) for counts in flips), "weights flip"


@pytest.mark.parametrize("loop", [plain_loop, online])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("build", [chain, branches])
def test_a_compiled_network_gives_the_same_bits(build: Any, rule: str, loop: Any) -> None:
    if rule == "bptt":
        loop = functools.partial(online, bptt=True)
    net = build(rule)
    compiled = torch.compile(copy.deepcopy(net))  # default settings
    assert_same_bits(loop(net), loop(compiled))


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_on_every_backend(backend: str) -> None:
    net = chain("ottt")
    with bsnn.backend(backend):
        compiled = torch.compile(copy.deepcopy(net))
        assert_same_bits(online(net), online(compiled))


@pytest.mark.parametrize("rule", ["ottt", "bptt"])
def test_between_layers_of_ours_your_own_forward_is_compiled(rule: str) -> None:
    """Traced and differentiated by the compiler, then run by torch's own kernels: nothing is left to rounding."""
    loop = functools.partial(online, bptt=rule == "bptt")
    net = Own(rule)
    compiled = torch.compile(copy.deepcopy(net), backend="aot_eager")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert_same_bits(loop(net), loop(compiled))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before


def test_more_time_steps_compile_nothing_more() -> None:
    compiled, state = torch.compile(Own("ottt"), backend="aot_eager"), None
    for _ in range(3):  # without a state, then with one
        _, state = compiled(X, state)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(20):
            _, state = compiled(X, state)


compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


@pytest.mark.skipif(compiler is None, reason="the default compiler backend, inductor, needs a C++ compiler")
def test_your_own_forward_under_inductor_differs_by_rounding_alone() -> None:
    """In double precision no spike hangs on the last bit of a sum."""

    class Short(bsnn.Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.binary, self.lif = bsnn.BinaryLinear(8, 8), bsnn.LIF()

        def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            activity, state = self.lif(self.binary(torch.tanh(x).softmax(dim=1)), state)
            return activity.spikes, state

    def forwarded(net: nn.Module) -> list[Any]:
        x = torch.linspace(-3, 3, 32, dtype=torch.float64).view(4, 8).requires_grad_()
        spikes, state = net(x, None)
        spikes.square().sum().backward()
        return [spikes, state, x.grad]

    net = Short().double()
    compiled = torch.compile(copy.deepcopy(net))
    for a, b in zip(tensors_in(forwarded(net)), tensors_in(forwarded(compiled)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


# What people do with a compiled network.


def test_a_compiled_network_is_one_for_every_function() -> None:
    net = chain("ottt")
    compiled: Any = torch.compile(net)
    assert [len(part) for part in bsnn.split_parameters(compiled)] == [2, 9]
    zeros = compiled.initial_state(X)
    assert all(torch.equal(a, b) for a, b in zip(tensors_in(zeros), tensors_in(net.initial_state(X)), strict=True))
    assert bsnn.model_size(compiled) == bsnn.model_size(net)
    assert bsnn.predict_memory(compiled, X[:1], 4) == bsnn.predict_memory(net, X[:1], 4)
    bsnn.estimate_statistics(compiled, [X], time_steps=3)
    first, second = (bsnn.evaluate(n, [(X, Y)], time_steps=3) for n in (compiled, net))
    assert first.firing_rates == second.firing_rates
    assert torch.equal(first.confusion, second.confusion)
    assert compiled.training == net.training


def test_names_in_a_state_dict_are_torchs() -> None:
    net = chain("ottt")
    compiled = torch.compile(net)
    assert list(compiled.state_dict()) == [f"_orig_mod.{name}" for name in net.state_dict()]
    other = torch.compile(chain("ottt"))
    other.load_state_dict(compiled.state_dict())
    assert torch.equal(other.conv2.weight.bits, net.conv2.weight.bits)  # pyright: ignore


def test_a_copy_of_a_compiled_network_has_weights_of_its_own() -> None:
    compiled: Any = torch.compile(chain("ottt"))
    twin = copy.deepcopy(compiled)
    assert torch.equal(twin(X, None)[0], compiled(X, None)[0])
    twin.conv2.weight.bits.bitwise_not_()
    assert not torch.equal(twin(X, None)[0], compiled(X, None)[0])


def test_a_compiled_network_is_exported(tmp_path: Path) -> None:
    net = chain("ottt")
    for name, module in (("plain", net), ("compiled", torch.compile(net))):
        bsnn.export(module, tmp_path / name, input_shape=(2, 8, 8))
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "compiled").read_bytes()


def test_compiled_in_place() -> None:
    net = chain("ottt")
    other = copy.deepcopy(net)
    other.compile()
    assert isinstance(other, bsnn.Stateful)
    assert_same_bits(online(net), online(other))


def test_compiled_layers_in_a_network() -> None:
    """Those of ours are called as what they are; a block without state is compiled."""
    block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
    layers = block, bsnn.LIF(), bsnn.BinaryLinear(8, 8), bsnn.LIF(), nn.Linear(8, 2)
    net = bsnn.Sequential(*layers)
    compiled = bsnn.Sequential(*(torch.compile(layer, backend="aot_eager") for layer in layers))
    x = torch.randn(3, 4)
    (first, before), (second, after) = net(x, None), compiled(x, None)
    assert torch.equal(first, second)
    assert len(before) == len(after) == 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_the_whole_graph_is_refused() -> None:
    with pytest.raises(RuntimeError, match="fullgraph=True found no compiled frames"):
        torch.compile(chain("ottt"), fullgraph=True)(X, None)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="bsnn computes this itself"):
        torch.compile(Own("ottt"), fullgraph=True)(X, None)


def test_a_weight_that_refuses_arithmetic_is_not_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler never computes with a binary parameter."""
    seen, refusing = [], bsnn.BinaryParameter.__torch_function__

    def noted(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(function)
        return refusing(function, types, args, kwargs)

    monkeypatch.setattr(bsnn.BinaryParameter, "__torch_function__", classmethod(noted))
    net = Own("ottt")
    compiled = torch.compile(copy.deepcopy(net), backend="aot_eager")
    assert_same_bits(online(net), online(compiled))
    assert seen


def test_every_forward_of_ours_is_left_alone() -> None:
    """A new layer that is not opaque may crash the compiler, or round in another way under it."""
    homes = [importlib.import_module(m.name) for m in pkgutil.walk_packages(bsnn.nn.__path__, "bsnn.nn.")]
    classes = {c for home in homes for c in vars(home).values() if isinstance(c, type) and issubclass(c, nn.Module)}
    own = [c for c in classes if c.__module__.startswith("bsnn.") and "forward" in vars(c)]
    assert len(own) >= 6
    for layer in own:
        marked = vars(vars(layer)["forward"]).get("_torchdynamo_disable")
        assert marked, f"{layer.__name__}.forward lacks @opaque (bsnn.kernels.torch_internals)"
