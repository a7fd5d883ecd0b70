"""Whether a training run fits into the memory that is free, told before it starts."""

from pathlib import Path

import torch

from bsnn.errors import UserError
from bsnn.online.ledger import predict_memory
from bsnn.train.config import Config
from bsnn.train.distributed import World
from bsnn.train.own import keeps_graph
from bsnn.train.trainer import Trainer

# What a prediction may be off by, swap, and what other processes give up, are less than this.
_HOPELESS = 3
# A pass of one sample at most this large, in pixels each way, costs next to nothing.
_SMALL = 64


def check_image_size(config: Config, world: World) -> None:
    """Refuses images of which not even a batch fits into memory, before one is read."""
    free = free_bytes()
    least = 4 * config.batch_size // world.size * config.image_size**2
    if free is not None and least > _HOPELESS * free:
        raise UserError(f"{_told(least, free)}.")


def _told(needed: int, free: int) -> str:
    return (
        f"training needs about {needed / 1e9:,.1f} GB and {free / 1e9:.1f} GB are free; lower --batch-size, --width or "
        "--image-size, or set --momentum-bits 8"
    )


def check_memory(trainer: Trainer) -> list[str]:
    """A warning if a run will not fit into the memory that is free.

    Raises:
        UserError: If it needs several times as much, and the system would end the process.
    """
    free = free_bytes()
    if free is None or trainer.world.device.type != "cpu":
        return []
    needed = _needed_bytes(trainer, free)
    if needed > _HOPELESS * free:
        raise UserError(f"{_told(needed, free)}.")
    # By BPTT it needs more than that, and with real-valued weights something else.
    exact = not keeps_graph(trainer.net) and trainer.config.weights == "binary"
    return [_told(needed, free)] if exact and needed > free else []


def _needed_bytes(trainer: Trainer, free: int) -> int:
    """Bytes that a process holds at the peak of an online update, at least."""
    *_, channels, height, width = trainer.spec.shape
    batch = trainer.config.batch_size // trainer.world.size

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


def free_bytes() -> int | None:
    """Memory that new processes can have, if the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
