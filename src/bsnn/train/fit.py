"""Whether a training run fits into the memory and onto the disk that are free, told before it starts."""

import shutil
from pathlib import Path

import torch

from bsnn.errors import UserError
from bsnn.online.ledger import predict_memory
from bsnn.optim import FlipOptimizer
from bsnn.train.config import Config
from bsnn.train.distributed import World
from bsnn.train.own import keeps_graph
from bsnn.train.stages import stages_of
from bsnn.train.trainer import Trainer

# What a prediction may be off by, swap, and what other processes give up, are less than this.
_HOPELESS = 3
# With this many times the need free, updates need not economize.
_AMPLE = 4
# A pass of one sample at most this large, in pixels each way, costs next to nothing.
_SMALL = 64

# Of the memory of a container, on Linux.
_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_image_size(config: Config, world: World) -> None:
    """Refuses images of which not even a batch fits into memory, before one is read."""
    free = free_bytes()
    sizes = ((stage.config.batch_size, stage.config.image_size) for stage in stages_of(config))
    least = max(4 * batch_size // world.size * image_size**2 for batch_size, image_size in sizes)
    if free is not None and least > _HOPELESS * free:
        raise UserError(f"{_told(least, free)}.")


def _told(needed: int, free: int) -> str:
    return (
        f"training needs about {needed / 1e9:,.1f} GB and {free / 1e9:.1f} GB are free; lower --batch-size, --width or "
        "--image-size, or set --momentum-bits 8"
    )


def check_memory(trainer: Trainer) -> tuple[list[str], bool]:
    """A warning if a run will not fit into the memory that is free; and whether there is so much that it may be kept.

    Raises:
        UserError: If it needs several times as much, and the system would end the process.
    """
    free = free_bytes()
    if free is None or trainer.world.device.type != "cpu":
        return [], False
    sizes = {(stage.spec_of(trainer.spec).shape, stage.config.batch_size) for stage in trainer.stages}
    needed = max(_needed_bytes(trainer, shape, batch_size, free) for shape, batch_size in sizes)
    if needed > _HOPELESS * free:
        raise UserError(f"{_told(needed, free)}.")
    # Under BPTT it needs more than that, and with real-valued weights something else.
    exact = not keeps_graph(trainer.net) and trainer.config.weights == "binary"
    warnings = [_told(needed, free)] if exact and needed > free else []
    return warnings, exact and _AMPLE * trainer.world.size * needed < free


def _needed_bytes(trainer: Trainer, shape: tuple[int, ...], batch_size: int, free: int) -> int:
    """Bytes that a process holds at the peak of an online update with such samples, at least."""
    *_, channels, height, width = shape
    batch = batch_size // trainer.world.size

    def predicted(height: int, width: int) -> dict[str, int]:
        sample = torch.zeros(1, channels, height, width)
        return predict_memory(trainer.net, sample, batch, momentum_bits=trainer.config.momentum_bits)

    least = 4 * batch * channels * height * width
    if least <= _HOPELESS * free and max(height, width) > 4 * _SMALL:
        # Even one sample may be too large to try: what grows with the area is told from a smaller one.
        small_height, small_width = (max(side * _SMALL // max(height, width), 32) for side in (height, width))
        try:
            kinds = predicted(small_height, small_width)
        except (UserError, RuntimeError):
            kinds = {}  # a network for one size alone
        area = height * width / (small_height * small_width)
        least = max(least, int(area * sum(kinds.get(kind, 0) for kind in ("membrane", "trace"))))
    if least > _HOPELESS * free:
        return least
    return predicted(height, width)["total"]


def check_disk(trainer: Trainer, folder: Path, checkpoints: int) -> list[str]:
    """A warning if the checkpoints of a run that begins will not fit onto the disk.

    Args:
        trainer: The run.
        folder: Where they go.
        checkpoints: How many there are at a time.

    Raises:
        UserError: If not even two fit, of which one is written while the other is there.
    """
    config = trainer.config
    ordinary = (optimizer for optimizer in trainer.optimizers if not isinstance(optimizer, FlipOptimizer))
    real = sum(p.nbytes for optimizer in ordinary for group in optimizer.param_groups for p in group["params"])
    # These optimizers make their state in the first update.
    copies = 2 if config.real_optimizer == "adamw" else int(config.sgd_momentum > 0)
    one, free = trainer.standing_bytes() + copies * real, shutil.disk_usage(folder).free
    told = (
        f"{folder}: {checkpoints} checkpoints take about {checkpoints * one / 1e9:.2f} GB, and {free / 1e9:.2f} GB are "
        "free; make room, or choose another --out"
    )
    if 2 * one > free:
        raise UserError(f"{told}.")
    return [told] if checkpoints * one > free else []


def free_bytes() -> int | None:
    """Memory that new processes can have, at most the limit of this container; None if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    try:
        return min(free, int(_LIMIT.read_text()))
    except (OSError, ValueError):  # no limit, or "max"
        return free
