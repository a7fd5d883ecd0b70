"""What the tests of `torch.compile` share: networks, loops that show everything, and a comparison to the bit."""

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bsnn
from bsnn.kernels.torch_internals import tensors_in

X, Y = torch.randn(4, 2, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3])
X = X.contiguous(memory_format=torch.channels_last)  # as compiled synapses have it; else a sum may be rounded otherwise
LOSS = functools.partial(bsnn.step_loss, labels=Y, time_steps=3)
# torch's own, from importing its compiler and from tracing
QUIET = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


class Own(bsnn.Stateful):
    """A network with a forward of its own, around layers of ours."""

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
    """With 64 channels, which C counts."""
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
    """Everything that three updates show, by torch's own loop."""
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
    return [*seen, *_left(net, [flip, sgd])]


def online(net: nn.Module, bptt: bool = False, copies: int = 1, **settings: Any) -> list[Any]:
    """The same by the library's loop, twice, with a batch that is `copies` times as large."""
    optimizers, seen = optimizers_of(net), []
    x, loss = torch.cat([X] * copies), functools.partial(LOSS, labels=Y.repeat(copies))
    for _ in range(2):
        update = bsnn.bptt_update if bptt else bsnn.online_update
        seen += [update(net, itertools.repeat(x, 3), loss, optimizers, **settings)]  # pyright: ignore
        seen += [torch.tensor(optimizers[0].flip_counts)]  # pyright: ignore[reportAttributeAccessIssue]
    return [*seen, *_left(net, optimizers)]


def lived(net: nn.Module) -> list[Any]:
    """Training, new statistics, and evaluation, also of a smaller batch, as the last batch may be."""
    seen = online(net)
    bsnn.estimate_statistics(net, [X], time_steps=2)
    net.eval()
    return [*seen, *(bsnn.predict(net, x, time_steps=2) for x in (X, X[:3])), dict(net.named_buffers())]


def _left(net: nn.Module, optimizers: list[torch.optim.Optimizer]) -> list[Any]:
    return [dict(net.state_dict()), [optimizer.state_dict()["state"] for optimizer in optimizers]]


def assert_same_bits(first: Any, second: Any) -> None:
    pairs = list(zip(tensors_in(first), tensors_in(second), strict=True))
    assert len(pairs) > 20
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    flips = [a for a, _ in pairs if a.dtype == torch.int64 and a.dim() == 1]
    assert any(int(counts.sum()) for counts in flips), "weights flip"
