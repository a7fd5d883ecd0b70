"""Your own loop on many processes: this file is also the script that torchrun starts, twice, for what needs two."""

import copy
import itertools
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

import bsnn
from bsnn.optim import NotFinite
from bsnn.train import TrainedApart, World, average_buffers, check_identical, distribute, joined_world
from bsnn.train.averaging import average_gradients

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "many_processes.py"
TIME_STEPS = 2
NORM = 0.05


class Wrapper(nn.Module):
    """A plain module with a network of ours inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()


def small(width: float = 1.0) -> bsnn.Sequential:
    return bsnn.models.vgg((4, 8, 8), in_channels=1, width=width)


def wrapped(init_sync: bool) -> Callable[[nn.Module], nn.Module]:
    return partial(nn.parallel.DistributedDataParallel, init_sync=init_sync)


def sharded(net: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(net, device_id=torch.device("cpu"))


@pytest.fixture
def _group_of_one() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.usefixtures("_group_of_one")
@pytest.mark.filterwarnings("ignore:FullyShardedDataParallel:FutureWarning")
@pytest.mark.filterwarnings("ignore:FSDP will not:UserWarning")
@pytest.mark.parametrize("build", [small, Wrapper, lambda: nn.Sequential(nn.Linear(2, 2), bsnn.BinaryLinear(2, 2))])
@pytest.mark.parametrize("wrap", [wrapped(True), wrapped(False), nn.DataParallel, sharded])
def test_wrappers_for_parallel_training_are_refused_by_name(wrap: Any, build: Any) -> None:
    expected = r"Parallel: received a network with binary weights.*bsnn\.train\.distribute\(net, optimizers, world\)"
    with pytest.raises(bsnn.UserError, match=expected):
        wrap(build())


@pytest.mark.usefixtures("_group_of_one")
def test_networks_without_binary_weights_may_be_wrapped() -> None:
    net = bsnn.models.vgg((4, 4), in_channels=1, weights="real")
    x = torch.randn(2, 1, 4, 4)
    assert torch.equal(wrapped(True)(net)(x, None)[0], net(x, None)[0])


def test_training_on_after_the_processes_were_left_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = bsnn.Sequential(nn.Linear(4, 8), bsnn.LIF(), bsnn.BinaryLinear(8, 2))
    average_gradients(net.parameters())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(bsnn.UserError, match="after the block of joined_world has ended"):
        net(torch.ones(1, 4), None)[0].sum().backward()
    with pytest.raises(bsnn.UserError, match="Put the whole training loop into"):
        average_buffers(bsnn.BatchNorm1d(3))


def test_in_one_process_nothing_changes() -> None:
    net, world = small(), World()
    optimizers = optimizers_of(net)
    before = copy.deepcopy(net.state_dict())
    distribute(net, optimizers, world, sync_batchnorm=True)
    average_buffers(net)
    check_identical(net, optimizers, world)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert world.share(5) == 1.0
    loop = partial(online, accumulate=False)
    two = copy.deepcopy(net)
    loop(net, optimizers, *batch(0), 1.0)
    loop(two, optimizers_of(two), *batch(0), 1.0)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), two.state_dict().values(), strict=True))


# On two processes.


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with processes.running([*torchrun, __file__, str(folder)], BSNN_CACHE=str(folder / "cache")) as process:
        output, errors = processes.finish(process)
    assert process.returncode == 0, errors
    return folder, output


@pytest.mark.parametrize("rank", [0, 1])
def test_what_two_processes_do(on_two: tuple[Path, str], rank: int) -> None:
    assert (on_two[0] / f"{rank}.txt").read_text().split() == [name for name, _ in checks()]


def test_the_example_runs_on_two_processes(on_two: tuple[Path, str]) -> None:
    (accuracy,) = re.findall(r"2 process\(es\): test accuracy ([\d.]+)% on 359 images", on_two[1])
    assert float(accuracy) >= 90


def checks() -> list[tuple[str, Any]]:
    return [(name, function) for name, function in globals().items() if name.startswith("check_on_two")]


def optimizers_of(net: nn.Module) -> list[Optimizer]:
    binary, real = bsnn.split_parameters(net)
    flip = bsnn.optim.TBSO(binary, gamma=1e-6, betas=(0.9, 0.99), time_steps=TIME_STEPS)
    return [flip, torch.optim.SGD(real, lr=0.05, momentum=0.9)]


def batch(number: int, samples: int = 5) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(number)
    labels = torch.randint(10, (samples,), generator=rng)
    return torch.randn(samples, 1, 6, 6, generator=rng, dtype=torch.float64) + labels.view(-1, 1, 1, 1) / 10, labels


def plain(net: Any, optimizers: list[Any], x: Tensor, y: Tensor, share: float) -> None:
    """A loop as in torch, with clipping over all parameters."""
    flip, sgd = optimizers
    state = None
    for t in range(TIME_STEPS):
        logits, state = net(x.to(net.classifier.weight.dtype), state)
        (share * bsnn.step_loss(logits, y, time_steps=TIME_STEPS)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), NORM)
        flip.step(t=t)
        sgd.step()
        flip.zero_grad()
        sgd.zero_grad()


def online(net: Any, optimizers: list[Any], x: Tensor, y: Tensor, share: float, *, accumulate: bool) -> None:
    frames = itertools.repeat(x.to(net.classifier.weight.dtype), TIME_STEPS)

    def loss(logits: Tensor) -> Tensor:
        return share * bsnn.step_loss(logits, y, time_steps=TIME_STEPS)

    bsnn.online_update(net, frames, loss, optimizers, accumulate=accumulate)


def stream(net: Any, optimizers: list[Any], x: Tensor, y: Tensor, share: float) -> None:
    x = x.to(net.classifier.weight.dtype)
    moments = [bsnn.Moment(x, y, cut=True), bsnn.Moment(x, None), bsnn.Moment(x, y)]

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return share * bsnn.step_loss(logits, y, time_steps=1)

    assert len(list(bsnn.stream_update(net, moments, loss, optimizers))) == 3


LOOPS = {
    "plain": (plain, 50),
    "online": (partial(online, accumulate=False), 50),
    "accumulated": (partial(online, accumulate=True), 12),
    "stream": (stream, 12),
}


def check_on_two_processes_own_loops_equal_one_process(world: World) -> None:
    """Unequal parts of each batch, in double precision; 50 batches are 100 updates."""
    for loop, batches in LOOPS.values():
        torch.manual_seed(world.rank)  # processes that do not begin alike
        net = small().double()
        optimizers = optimizers_of(net)
        distribute(net, optimizers, world, sync_batchnorm=True)
        whole = small().double()
        whole.load_state_dict(net.state_dict())
        alone, flips = optimizers_of(whole), 0
        start = {name: value.clone() for name, value in net.state_dict().items()}
        for number in range(batches):
            x, y = batch(number)
            mine = slice(world.rank, None, world.size)
            loop(net, optimizers, x[mine], y[mine], world.share(len(y[mine])))
            loop(whole, alone, x, y, 1.0)
            flips += sum(optimizers[0].flip_counts)  # pyright: ignore[reportAttributeAccessIssue]
        check_identical(net, optimizers, world, statistics=True)
        assert flips > 100
        for name, value in net.state_dict().items():
            assert torch.equal(value, start[name]) == name.endswith("_shape"), name
            other = whole.state_dict()[name]
            assert torch.equal(value, other) if value.dtype == torch.uint8 else torch.allclose(value, other), name


def check_on_two_processes_states_of_optimizers_are_the_firsts(world: World) -> None:
    net = small()
    optimizers = optimizers_of(net)
    if world.is_first:
        plain(net, optimizers, *batch(0), 1.0)
        optimizers[1].param_groups[0]["lr"] = 0.25
    distribute(net, optimizers, world)
    check_identical(net, optimizers, world, statistics=True)
    assert optimizers[1].param_groups[0]["lr"] == 0.25
    assert any(optimizers[0].momentum(p).any() for p in bsnn.split_parameters(net)[0])  # pyright: ignore


def check_on_two_processes_those_that_train_apart_are_noticed(world: World) -> None:
    torch.manual_seed(0)
    net = small()
    optimizers = optimizers_of(net)
    check_identical(net, optimizers, world)
    plain(net, optimizers, *batch(world.rank), 1.0)  # without distribute
    with pytest.raises(TrainedApart, match=r"differs between processes, which have trained apart.*distribute"):
        check_identical(net, optimizers, world)
    # A process that makes an update by itself.
    distribute(net, optimizers, world)
    if world.is_first:
        optimizers[1].param_groups[0]["params"][0].grad = torch.ones(4, 1, 3, 3)
        optimizers[1].step()
    with pytest.raises(TrainedApart, match=r"net\.conv1\.weight differs"):
        check_identical(net, optimizers, world)


def check_on_two_processes_statistics_can_be_averaged(world: World) -> None:
    net = small()
    optimizers = optimizers_of(net)
    distribute(net, optimizers, world)
    online(net, optimizers, *batch(world.rank), 1.0, accumulate=False)
    check_identical(net, optimizers, world)
    with pytest.raises(TrainedApart, match="running_mean"):
        check_identical(net, optimizers, world, statistics=True)
    average_buffers(net)
    check_identical(net, optimizers, world, statistics=True)


def check_on_two_processes_a_bad_sample_on_one_stops_all(world: World) -> None:
    net = small()
    optimizers = optimizers_of(net)
    distribute(net, optimizers, world)
    x, y = batch(0)
    for loop in (plain, partial(online, accumulate=False)):
        with pytest.raises(NotFinite):
            loop(net, optimizers, x * (torch.nan if world.is_first else 1.0), y, 1.0)
        for optimizer in optimizers:
            optimizer.zero_grad()
        check_identical(net, optimizers, world)


def check_on_two_processes_a_layer_that_thaws_is_averaged(world: World) -> None:
    net = small()
    net.classifier.requires_grad_(False)
    optimizers = optimizers_of(net)
    distribute(net, optimizers, world)
    net.classifier.requires_grad_(True)
    plain(net, optimizers, *batch(world.rank), 1.0)
    check_identical(net, optimizers, world)


def check_on_two_processes_other_networks_are_refused(world: World) -> None:
    net = small(width=1.0 if world.is_first else 2.0)
    expected = r"distribute: conv1\.weight is \(8, 1, 3, 3\) .* on process 1 and \(4, 1, 3, 3\) .* on the first"
    with pytest.raises(bsnn.UserError, match=expected):
        distribute(net, optimizers_of(net), world)
    net = small()
    with pytest.raises(bsnn.UserError, match=r"distribute: optimizer 0 is SGD.* on process 1 and TBSO"):
        distribute(net, optimizers_of(net)[:: 1 if world.is_first else -1], world)


def main() -> None:
    torch.set_num_threads(1)
    with joined_world() as world:
        for name, check in checks():
            check(world)
            with open(Path(sys.argv[1]) / f"{world.rank}.txt", "a") as file:
                file.write(f"{name}\n")
        runpy.run_path(str(EXAMPLE), run_name="__main__")


if __name__ == "__main__":
    main()
