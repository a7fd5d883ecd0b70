"""Training on several processes under torchrun: what they must share, and a check that they do.

The gradients of every time step are averaged before the flip, so all processes flip the same weights. Without
torchrun there is one process and nothing here costs anything.
"""

import hashlib
import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.optim import FlipOptimizer


class LostProcess(UserError):
    """Another process has ended, so this one cannot go on."""


class World(NamedTuple):
    """Which of how many processes this is, and its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    local_rank: int = 0
    """Its number on its machine."""
    restarted: bool = False
    """Whether torchrun has started it again after a process was lost."""

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0


def device_named(name: str, local_rank: int = 0) -> torch.device:
    """The device of a process.

    Args:
        name: `cpu`, `cuda` (under torchrun each process has its own), `cuda:N`, or `auto`: CUDA if there is any, else
            the CPU.
        local_rank: The number of the process on its machine.

    Example:
        >>> device_named("cpu")
        device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if name == "mps":
        raise UserError("device: received mps, which has no double precision; expected cpu, cuda or auto.")
    if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise UserError(f"device: received {name!r}; expected cpu, cuda, cuda:N or auto.")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if number and "LOCAL_RANK" in os.environ:
        raise UserError(f"device: received {name} under torchrun; expected cuda, of which each process takes its own.")
    index, count = int(number or local_rank), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        raise UserError(
            f"device: received {name} for process {local_rank}, and torch finds {count} CUDA devices here; expected "
            "one for each process. Use --device cpu, or start fewer processes."
        )
    return torch.device("cuda", index)


@contextmanager
def joined_world(device: str = "auto") -> Iterator[World]:
    """Joins the processes that torchrun started; without torchrun, a world of one. Within itself, the same one.

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
        # The frames of the failed call hold the process group, whose threads must end here and not while Python does.
        traceback.clear_frames(error.__traceback__)
        # gloo has no error of its own: a plain one begins with the place in its source.
        if not isinstance(error, distributed.DistError) and "/gloo/" not in str(error):
            raise
        raise LostProcess(
            f"process {world.rank} of {size} has lost another one, whose own message, if any, says why. What was saved "
            "is intact: unless torchrun starts them again, go on with --resume."
        ) from error
    finally:
        distributed.destroy_process_group()


@contextmanager
def first_on_machine(world: World) -> Iterator[None]:
    """Lets one process of each machine run the block before the others, so that they find what it has left."""
    if world.size > 1 and world.local_rank > 0:
        distributed.barrier()
    yield
    if world.size > 1 and world.local_rank == 0:
        distributed.barrier()


def average(tensors: Iterable[Tensor]) -> None:
    """Replaces tensors by their means over all processes, in place."""
    for tensor in tensors:
        distributed.all_reduce(tensor)
        tensor /= distributed.get_world_size()


def average_gradients(optimizers: Iterable[Optimizer]) -> None:
    """Makes every gradient the mean over all processes before an optimizer uses it.

    A binary parameter's gradient is used at each time step, also where updates are accumulated: it is averaged as
    soon as backward has made it. An ordinary optimizer's may grow over a sequence: its are averaged at its step.
    """

    def at_step(optimizer: Optimizer, *_: Any) -> None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        average(p.grad for p in parameters if p.grad is not None)

    for optimizer in optimizers:
        if isinstance(optimizer, FlipOptimizer):
            optimizer.reduce_gradients(lambda gradient: average([gradient]))
        else:
            optimizer.register_step_pre_hook(at_step)


def average_buffers(net: nn.Module) -> None:
    """Makes BatchNorm's running statistics the same on all processes."""
    average(buffer for buffer in net.buffers() if buffer.is_floating_point())


def summed(values: Iterable[float], world: World) -> list[float]:
    """Sums numbers over all processes."""
    tensor = torch.tensor(list(values), dtype=torch.float64, device=world.device)
    if world.size > 1:
        distributed.all_reduce(tensor)
    return tensor.tolist()


def check_identical(tensors: dict[str, Tensor], world: World) -> None:
    """Raises if any tensor differs between processes, in any bit, and names the first that does."""
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
    for name, digest in digests.items():
        if any(other.get(name) != digest for other in gathered):
            raise RuntimeError(f"{name} differs between processes; they have trained apart, which is a bug of bsnn")
