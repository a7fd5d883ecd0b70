"""Processes that share a batch unevenly make the updates that one process makes on the whole batch.

The processes are threads here, and what torch.distributed would send between them meets in this process: in double
precision, without BatchNorm, nothing else but the order of sums is left to differ.
"""

import dataclasses
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from training_runs import TINY

import bsnn
from bsnn.train.build import load_data
from bsnn.train.distributed import World
from bsnn.train.own import Own
from bsnn.train.trainer import Trainer

# Four batches: 30, 30, 30 and 11, which two processes share as 6 and 5, three as 4, 4 and 3.
UNEVEN = dataclasses.replace(TINY, train_samples=101, batch_size=30, epochs=1, model="<uneven>", time_steps=2)


class Double(nn.Module):
    """Makes what comes in double precision."""

    def forward(self, x: Tensor) -> Tensor:
        return x.double()


def network() -> nn.Module:
    return bsnn.Sequential(
        *(Double(), nn.Conv2d(1, 4, 3, padding=1), bsnn.LIF(threshold=0.25)),
        *(bsnn.BinaryConv2d(4, 4, 3, padding=1), bsnn.LIF(threshold=2.0), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(4, 10),
    ).double()


class Meeting:
    """Stands in for torch.distributed among threads."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.brought = size, threading.Barrier(size, timeout=60), {}

    def all_reduce(self, tensor: Tensor) -> None:
        self.brought[threading.current_thread().name] = tensor.clone()
        self.barrier.wait()
        total = torch.stack([self.brought[name] for name in sorted(self.brought)]).sum(0)
        self.barrier.wait()
        tensor.copy_(total)

    def get_world_size(self) -> int:
        return self.size


def trained(size: int, config: Any, monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    meeting = Meeting(size)
    monkeypatch.setattr(distributed, "all_reduce", meeting.all_reduce)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", meeting.get_world_size)
    sets, own = load_data(config, None), Own(model=network)
    runs = [Trainer(config, *sets, World(rank, size), own=own) for rank in range(size)]
    errors: list[BaseException] = []

    def train(run: Trainer) -> None:
        try:
            run.train_epoch()
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=train, args=(run,), name=f"process {run.world.rank}") for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return runs


@pytest.mark.parametrize("updates", ["real-time", "accumulated"])
@pytest.mark.parametrize("size", [2, 3])
def test_uneven_parts_of_a_batch_weigh_as_much_as_they_have_samples(size: int, updates: Any, monkeypatch) -> None:
    config = dataclasses.replace(UNEVEN, updates=updates)
    (whole,) = trained(1, config, monkeypatch)
    runs = trained(size, config, monkeypatch)
    before = dict(Trainer(config, *load_data(config, None), own=Own(model=network)).net.state_dict())
    for run in runs:
        assert run.batches == 4
        for name, value in whole.net.state_dict().items():
            torch.testing.assert_close(run.net.state_dict()[name], value, rtol=1e-12, atol=1e-14)
            learned = not name.endswith("_shape")
            assert torch.equal(value, before[name]) != learned, f"{name} has learned something"
        assert run.tally.seen == 101
        assert run.tally.correct == whole.tally.correct
        assert run.tally.loss == pytest.approx(whole.tally.loss, rel=1e-12)
        assert run.tally.flips == whole.tally.flips
