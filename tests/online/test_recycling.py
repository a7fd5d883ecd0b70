"""Loops that write over states must not do so if code of the user's sees these states: each equals a plain loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bsnn
from bsnn.nn.fused import recyclable, recycling_state

T = 6


def inner() -> bsnn.Sequential:
    return bsnn.Sequential(nn.Linear(4, 8), bsnn.LIF(), bsnn.BinaryLinear(8, 8), bsnn.LIF(), nn.Linear(8, 3))


class Own(bsnn.Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.net = inner()


class StartsTwice(Own):
    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        one, _ = self.net(x, state)
        two, new = self.net(-x, state)
        return one + two, new


class ReadsAfterwards(Own):
    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, new = self.net(x, state)
        return logits if state is None else logits + state[1].membrane[:, :3], new


class SendsMembrane(Own):
    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, new = self.net(x, state)
        return new[0].membrane[:, :3] + 0 * logits.sum() if torch.is_grad_enabled() else new[0].membrane[:, :3], new


class PlainModule(nn.Module):
    """Not derived from Stateful, though it handles states."""

    def __init__(self) -> None:
        super().__init__()
        self.net = inner()

    forward = StartsTwice.forward


def nested() -> bsnn.Sequential:
    return bsnn.Sequential(nn.Linear(4, 4), StartsTwice())


def replaced() -> bsnn.Sequential:
    net, fresh = inner(), inner()
    net.forward = lambda x, state: StartsTwice.forward(holder, x, state)  # pyright: ignore[reportArgumentType]
    holder = nn.Module()
    holder.net = fresh
    net.fresh = fresh
    return net


class OwnSynapse(bsnn.BinaryLinear):
    """Keeps the trace of the last time step, which is a part of the state."""

    def forward(self, x: Any) -> Tensor:
        last, self.last = getattr(self, "last", None), x.trace
        return super().forward(x) + (0.0 if last is None else last.sum())


def with_own_synapse() -> bsnn.Sequential:
    return bsnn.Sequential(nn.Linear(4, 8), bsnn.LIF(), OwnSynapse(8, 8), bsnn.LIF(), nn.Linear(8, 3))


NETWORKS: list[Callable[[], nn.Module]] = [
    StartsTwice,
    ReadsAfterwards,
    SendsMembrane,
    PlainModule,
    nested,
    replaced,
    with_own_synapse,
]


def built(build: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return build()


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels)


FRAMES = torch.randn(T, 5, 4, generator=torch.Generator().manual_seed(1)) * 2
LABELS = torch.tensor([0, 1, 2, 0, 1])


def plain_sum(net: nn.Module) -> Tensor:
    total, state = torch.zeros(5, 3), None
    with torch.no_grad():
        for frame in FRAMES:
            logits, state = net(frame, state)
            total = total + logits
    return total


def optimizers(net: nn.Module) -> list[Any]:
    binary, real = bsnn.split_parameters(net)
    return [bsnn.optim.BSO(binary, gamma=1e-3, beta=0.5), torch.optim.SGD(real, lr=0.1)]


@pytest.mark.parametrize("backend", ["fused", "cpu"])
@pytest.mark.parametrize("build", NETWORKS)
def test_every_loop_equals_a_plain_one(build: Callable[[], nn.Module], backend: Any) -> None:
    with bsnn.backend(backend):
        expected = plain_sum(built(build))
        assert torch.equal(bsnn.predict(built(build), FRAMES, None), expected)
        found = bsnn.evaluate(built(build), [(FRAMES, LABELS)], None)
        assert int(found.confusion.trace()) == int((expected.argmax(1) == LABELS).sum())
        assert found.total_loss == float(nn.functional.cross_entropy(expected / T, LABELS, reduction="sum"))

        plain = built(build)
        states, state, total = [], None, torch.zeros(5, 3)
        own = optimizers(plain)
        for t, frame in enumerate(FRAMES):
            logits, state = plain(frame, state)
            loss(logits, LABELS).backward()
            own[0].step(t=t)
            own[1].step()
            plain.zero_grad()
            total = total + logits.detach()
            states.append(state)
        net = built(build)
        outcome = bsnn.online_update(net, FRAMES, lambda logits: loss(logits, LABELS), optimizers(net))
        assert torch.equal(outcome.logits, total)
        streamed = built(build)
        moments = [bsnn.Moment(frame, LABELS) for frame in FRAMES]
        kept = [step.state for step in bsnn.stream_update(streamed, moments, loss, optimizers(streamed))]
        for name, value in plain.state_dict().items():
            assert torch.equal(net.state_dict()[name], value), name
            assert torch.equal(streamed.state_dict()[name], value), name
    assert bsnn.map_state(lambda x: x.sum().item(), kept) == bsnn.map_state(lambda x: x.sum().item(), states)


@pytest.mark.filterwarnings("ignore::bsnn.errors.BackendWarning")
@pytest.mark.parametrize("place", ["", "1", "2"])
def test_a_hook_may_keep_the_states_and_traces_that_it_sees(place: str) -> None:
    def seen(run: Callable[[nn.Module], Any]) -> list[Tensor]:
        kept: list[Any] = []
        net = built(inner)
        net.get_submodule(place).register_forward_hook(lambda _module, inputs, output: kept.append((inputs, output)))
        run(net)
        tensors: list[Tensor] = []
        bsnn.map_state(tensors.append, kept)
        return tensors

    by_loop, by_predict = seen(plain_sum), seen(lambda net: bsnn.predict(net, FRAMES, None))
    assert len(by_loop) == len(by_predict) > T
    assert all(torch.equal(one, two) for one, two in zip(by_loop, by_predict, strict=True))


def own_constructor() -> bsnn.Sequential:
    class Named(bsnn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 8), bsnn.LIF(), nn.Linear(8, 3))

    return Named()


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (inner, (5, 4)),
        (own_constructor, (5, 4)),
        (lambda: torch.compile(inner(), backend="eager"), (5, 4)),
        (lambda: bsnn.models.vgg((8, "pool", 8), in_channels=1), (2, 1, 8, 8)),
        (lambda: bsnn.models.resnet18(width=0.05), (2, 3, 8, 8)),
    ],
)
def test_a_network_of_the_librarys_own_still_writes_over_its_state(build: Callable[[], Any], shape: Any) -> None:
    net, x = built(build), torch.randn(shape)
    with torch.no_grad(), bsnn.counting_spikes(net):
        _, state = net(x, None)
        addresses: list[int] = []
        bsnn.map_state(lambda part: addresses.append(part.data_ptr()), state)
        with recycling_state(net):
            _, state = net(x, state)
        again: list[int] = []
        bsnn.map_state(lambda part: again.append(part.data_ptr()), state)
    assert again == addresses


def test_another_network_that_is_called_meanwhile_keeps_its_states() -> None:
    teacher, x = built(inner), FRAMES[0]
    _, held = teacher(x, None)
    kept = bsnn.map_state(Tensor.clone, held)

    class Asks(nn.Module):
        def forward(self, current: Tensor) -> Tensor:
            return current + teacher(x, held)[0].sum()

    bsnn.predict(bsnn.Sequential(nn.Linear(4, 8), Asks(), bsnn.LIF(), nn.Linear(8, 3)), FRAMES, None)
    assert all(torch.equal(a, b) for one, two in zip(held, kept, strict=True) for a, b in zip(one, two, strict=True))


def test_layers_that_are_exchanged_and_hooks_that_come_and_go_count() -> None:
    net = inner()
    assert recyclable(net) == {net[1], net[3]}
    handle = net[3].register_forward_hook(lambda *_: None)
    assert not recyclable(net)
    handle.remove()
    assert recyclable(net)
    net.add_module("4", nn.Sequential(StartsTwice()))
    assert not recyclable(net)
    assert not recyclable(lambda x, state: (x, state))
