"""Training on several processes under torchrun: what they must share, and a check that they do.

The gradients of every time step are averaged before the flip, so all processes flip the same weights. Without
torchrun there is one process and nothing here costs anything.
"""

import gc
import hashlib
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.nn.norm import synchronize_statistics
from bsnn.train.averaging import average_gradients
from bsnn.train.trial import check_device


class LostProcess(UserError):
    """Another process has ended, so this one cannot go on."""


class TrainedApart(UserError):
    """The processes no longer hold the same weights."""


class World(NamedTuple):
    """Which of how many processes this is, and its device."""

    rank: int = 0
    """The number of this process, from 0."""
    size: int = 1
    """How many processes there are."""
    device: torch.device = torch.device("cpu")
    """What this process computes on."""
    local_rank: int = 0
    """Its number on its machine."""
    restarted: bool = False
    """Whether torchrun has started it again after a process was lost."""

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def share(self, samples: int) -> float:
        """What to multiply the mean loss of this process's samples by, if processes have unequal numbers of them.

        Then the mean of the gradients over processes is that of the mean loss over all samples. All processes must
        ask, each with at least one sample.
        """
        return samples * self.size / summed([samples], self)[0]


def device_named(name: str, local_rank: int = 0) -> torch.device:
    """The device of a process.

    Args:
        name: `cpu`, `cuda` (under torchrun each process has its own), `cuda:N`, `mps` (Apple's GPU), or `auto`: CUDA
            if there is any, else the CPU.
        local_rank: The number of the process on its machine.

    Example:
        >>> device_named("cpu")
        device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if name == "mps":
        return _apple()
    if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise UserError(f"device: received {name!r}; expected cpu, cuda, cuda:N, mps or auto.")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if number and "LOCAL_RANK" in os.environ:
        raise UserError(f"device: received {name} under torchrun; expected cuda, of which each process takes its own.")
    index, count = int(number or local_rank), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count and not local_rank:
        raise UserError(
            f"device: received {name}, and torch finds {count} CUDA devices here; expected one that is there. Use "
            "--device cpu."
        )
    if index >= count:
        raise UserError(
            f"device: received {name} for process {local_rank}, and torch finds {count} CUDA devices here; expected "
            "one for each process. Use --device cpu, or start fewer processes."
        )
    return torch.device("cuda", index)


def _apple() -> torch.device:
    """Apple's GPU, if it is there and computes what the CPU computes."""
    if not torch.backends.mps.is_available():
        raise UserError("device: received mps, and torch finds no GPU of Apple's here; expected cpu, or auto.")
    if "LOCAL_RANK" in os.environ:
        raise UserError("device: received mps under torchrun, which cannot connect Apple's GPUs; expected cpu or cuda.")
    device = torch.device("mps")
    check_device(device)
    return device


@contextmanager
def joined_world(device: str = "auto") -> Iterator[World]:
    """Joins the processes that torchrun started; without torchrun, a world of one. It may be nested.

    Args:
        device: What computes; see `device_named`.

    Raises:
        LostProcess: If another process ends while this one waits for it.
    """
    environ = {name: int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")}
    size, local_rank = int(os.environ.get("WORLD_SIZE", "1")), environ["LOCAL_RANK"]
    place = device_named(device, local_rank)
    cuda = place.type == "cuda"
    world = World(environ["RANK"], size, place, local_rank, environ["TORCHELASTIC_RESTART_COUNT"] > 0)
    if cuda:
        torch.cuda.set_device(place)
    if size == 1 or distributed.is_initialized():
        yield world
        return
    # torchrun may keep its store when it starts processes again: each start has a part of it for itself, so that
    # nobody looks for the processes of the one before.
    store, _, _ = next(distributed.rendezvous("env://", world.rank, size))  # pyright: ignore[reportPrivateImportUsage]
    prefix = f"start {environ['TORCHELASTIC_RESTART_COUNT']}"
    store = distributed.PrefixStore(prefix, store)  # pyright: ignore[reportPrivateImportUsage]
    distributed.init_process_group("nccl" if cuda else "gloo", store=store, rank=world.rank, world_size=size)
    try:
        yield world
    except RuntimeError as error:
        traceback.clear_frames(error.__traceback__)  # which hold the group; see below
        # gloo has no error of its own: a plain one begins with the place in its source.
        if not isinstance(error, distributed.DistError) and "/gloo/" not in str(error):
            raise
        raise LostProcess(
            f"process {world.rank} of {size} has lost another one, whose own message, if any, says why. What was saved "
            "is intact: unless torchrun starts them again, go on with --resume."
        ) from error
    finally:
        distributed.destroy_process_group()
        # The threads of a group end with the last reference to it, which should not be while Python ends: this frees
        # cycles of objects that hold the group.
        gc.collect()


@contextmanager
def first_on_machine(world: World) -> Iterator[None]:
    """Lets one process of each machine run the block before the others, so that they find what it has left."""
    if world.size > 1 and world.local_rank > 0:
        distributed.barrier()
    yield
    if world.size > 1 and world.local_rank == 0:
        distributed.barrier()


def summed(values: Iterable[float], world: World) -> list[float]:
    """Sums numbers over all processes."""
    if world.size == 1:
        return [float(value) for value in values]
    tensor = torch.tensor(list(values), dtype=torch.float64, device=world.device)
    distributed.all_reduce(tensor)
    return tensor.tolist()


def distribute(net: nn.Module, optimizers: Sequence[Optimizer], world: World, *, sync_batchnorm: bool = False) -> None:
    """Prepares your own training loop for many processes; without torchrun it does nothing.

    All processes take weights, buffers and the optimizers' state from the first. From then on, every gradient is the
    mean over all processes before anything uses it, so that all of them make the same updates, in a plain loop as well
    as by `online_update`, `stream_update` and `bptt_update`. Call it once, before the first update, on all processes.
    Each of them must make as many backward passes as the others, through the same layers.

    Args:
        net: The network, the same on all processes.
        optimizers: All optimizers that train it.
        world: What `joined_world` gave.
        sync_batchnorm: Whether BatchNorm in training uses the statistics of all processes' batches together. If not,
            running statistics are each process's own: before an evaluation, call `estimate_statistics` and
            `average_buffers`.

    Raises:
        UserError: If the processes hold different networks or optimizers.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1)
        >>> binary, real = bsnn.split_parameters(net)
        >>> optimizers = [bsnn.optim.BSO(binary), torch.optim.SGD(real, lr=0.1)]
        >>> x, y = torch.randn(8, 1, 8, 8), torch.arange(8)
        >>> with joined_world() as world:
        ...     distribute(net, optimizers, world)
        ...     mine = slice(world.rank, None, world.size)  # its part of the batch
        ...     share = world.share(len(y[mine]))
        ...     frames = itertools.repeat(x[mine], 4)
        ...     loss = lambda logits: share * bsnn.step_loss(logits, y[mine], time_steps=4)
        ...     _ = bsnn.online_update(net, frames, loss, optimizers)
        ...     check_identical(net, optimizers, world)
    """
    if world.size == 1:
        return
    _check_alike(net, optimizers, world)
    parts = [net, *optimizers]
    states: list[Any] = [part.state_dict() if world.is_first else None for part in parts]
    distributed.broadcast_object_list(states, src=0, device=world.device)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    average_gradients([*net.parameters(), *held])
    if sync_batchnorm:
        synchronize_statistics(net)


def _check_alike(net: nn.Module, optimizers: Sequence[Optimizer], world: World) -> None:
    """Refuses networks and optimizers that differ in what the first process cannot send."""
    named = {name: f"{tuple(p.shape)} {p.dtype}" for name, p in net.named_parameters()}
    for number, optimizer in enumerate(optimizers):
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        named[f"optimizer {number}"] = f"{type(optimizer).__name__} of {sizes} parameters"
    gathered: list[Any] = [None] * world.size
    distributed.all_gather_object(gathered, named)
    first = gathered[0]
    for rank, other in enumerate(gathered):
        for name in [*first, *other]:
            if first.get(name) != other.get(name):
                raise UserError(
                    f"distribute: {name} is {other.get(name, 'missing')} on process {rank} and "
                    f"{first.get(name, 'missing')} on the first; expected the same network and optimizers on all. "
                    "Build them from the same settings."
                )


def check_identical(net: nn.Module, optimizers: Sequence[Optimizer], world: World, *, statistics: bool = False) -> None:
    """Compares weights and optimizers' state over all processes, bit by bit; once per epoch costs next to nothing.

    Processes train apart if `distribute` was not called, or if one of them updates what the others do not.

    Args:
        net: The network.
        optimizers: Its optimizers.
        world: What `joined_world` gave.
        statistics: Whether BatchNorm's running statistics must be the same too; see `distribute`.

    Raises:
        TrainedApart: If anything differs; it names the first tensor that does.
    """
    tensors = {f"net.{name}": value for name, value in net.state_dict().items()}
    if not statistics:
        tensors = {name: value for name, value in tensors.items() if "running_" not in name}
    for number, optimizer in enumerate(optimizers):
        for index, entry in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer{number}.{index}.{key}": v for key, v in entry.items() if isinstance(v, Tensor)}
    compare_tensors(tensors, world)


def compare_tensors(tensors: dict[str, Tensor], world: World) -> None:
    """Raises `TrainedApart` if any tensor differs between processes, in any bit."""
    if world.size == 1:
        return
    digests = {
        name: hashlib.sha256(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        ).hexdigest()
        for name, tensor in sorted(tensors.items())
        if tensor.numel()
    }
    gathered: list[Any] = [None] * world.size
    distributed.all_gather_object(gathered, digests)
    for name in dict.fromkeys(name for other in gathered for name in other):
        if len({other.get(name) for other in gathered}) > 1:
            raise TrainedApart(
                f"{name} differs between processes, which have trained apart; expected the same bits on all. In your "
                "own loop, call bsnn.train.distribute(net, optimizers, world) before the first update, and update on "
                "all processes or on none."
            )
