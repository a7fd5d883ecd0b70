"""Several processes: this file is also the script that torchrun starts, twice, for what needs two of them."""

import contextlib
import dataclasses
import errno
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import torch
from torch import Tensor, distributed

from bsnn import UserError, cli
from bsnn.data.dataset import FileDataset
from bsnn.nn.bits import BinaryParameter
from bsnn.paper.recipes import recipe
from bsnn.train import load
from bsnn.train.averaging import average
from bsnn.train.build import load_data
from bsnn.train.config import Config
from bsnn.train.distributed import (
    LostProcess,
    TrainedApart,
    World,
    compare_tensors,
    first_on_machine,
    joined_world,
    summed,
)
from bsnn.train.loop import train
from bsnn.train.run import RunDirectory
from bsnn.train.trainer import Trainer

TINY = dataclasses.replace(recipe("digits"), plan=(4, 8, "pool", 8), train_samples=199, batch_size=32, epochs=2)
OPTIONS = ["--plan", "4,8,pool,8", "--train-samples", "200", "--batch-size", "32"]


def torchrun(*arguments: str, restarts: int = 0) -> list[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launch, "--max-restarts", str(restarts), *arguments]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left that ran the checks below and then trained."""
    folder = tmp_path_factory.mktemp("two")
    with processes.running(torchrun(__file__, str(folder))) as process:
        _, errors = processes.finish(process)
    assert process.returncode == 0, errors
    return folder


def test_what_two_processes_share(on_two: Path) -> None:
    done = (on_two / "0.txt").read_text()
    assert done == (on_two / "1.txt").read_text()
    assert done.split() == [name for name, _ in checks()]


def test_a_process_that_loses_another_says_so(on_two: Path) -> None:
    message = "process 1 of 2 has lost another one, whose own message, if any, says why. What was saved is intact"
    assert (on_two / "lost.txt").read_text().startswith(message)


def checks() -> list[tuple[str, Any]]:
    return [(name, function) for name, function in globals().items() if name.startswith("check_on_two")]


def check_on_two_processes_sums_and_means(world: World) -> None:
    assert summed([1, world.rank + 0.5], world) == [2, 2]
    tensor = torch.tensor([float(world.rank), 3.0])
    average([tensor])
    assert tensor.tolist() == [0.5, 3.0]


def check_on_two_processes_a_world_within_itself(world: World) -> None:
    with joined_world() as inner:
        assert inner == world
    assert distributed.is_initialized()


def check_on_two_processes_one_goes_first(world: World) -> None:
    mark = Path(sys.argv[1]) / "mark"
    with first_on_machine(world):
        if world.rank == 0:
            time.sleep(0.1)
            mark.touch()
        assert mark.exists()


def check_on_two_processes_a_planted_difference_is_found(world: World) -> None:
    run = Trainer(TINY, *load_data(TINY, None), world)
    run.state()
    run.net.get_parameter("conv2.weight").bits[3] ^= world.rank  # pyright: ignore
    with pytest.raises(TrainedApart, match=r"net\.conv2\..* differs between processes"):
        run.state()
    tensor = torch.tensor([0.0 if world.rank else -0.0])
    with pytest.raises(TrainedApart, match="zero differs"):
        compare_tensors({"same": torch.ones(1), "zero": tensor}, world)


def check_on_two_processes_data_is_shared_without_overlap(world: World) -> None:
    run = Trainer(TINY, *load_data(TINY, None), world)
    for batches in (run.train_loader.epoch(0), run.held_out_loader.ordered()):
        own = sum(len(labels) for _, labels in batches)
        assert summed([own], world)[0] in (199, 359)
    whole = Trainer(TINY, *load_data(TINY, None))
    for (mine, _), (all_of_it, _) in zip(run.train_loader.epoch(1), whole.train_loader.epoch(1), strict=True):
        assert torch.equal(mine, all_of_it[world.rank :: 2][: len(mine)])


def check_on_two_processes_a_batch_that_cannot_be_shared_is_refused(world: World) -> None:
    odd = dataclasses.replace(TINY, batch_size=33)
    with pytest.raises(UserError, match="received 33 for 2 processes; expected a multiple"):
        Trainer(odd, *load_data(odd, None), world)


class Doubled:
    """A loader in double precision."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.dataset = loader, loader.dataset

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, *place: int, **options: bool) -> Iterator[tuple[Tensor, Tensor]]:
        return ((inputs.double(), labels) for inputs, labels in self.loader.epoch(*place, **options))

    def ordered(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((inputs.double(), labels) for inputs, labels in self.loader.ordered())


def trained_in_double(config: Config, world: World) -> Trainer:
    run = Trainer(config, *load_data(config, None), world)
    run.net.double()
    run.train_loader, run.held_out_loader = Doubled(run.train_loader), Doubled(run.held_out_loader)  # pyright: ignore
    for _ in range(config.epochs):
        run.train_epoch()
        run.finish_epoch()
    return run


def check_on_two_processes_training_equals_one_process(world: World) -> None:
    # 198 samples: six full batches and one of six samples.
    shared = dataclasses.replace(TINY, train_samples=198, epochs=1, sync_batchnorm=True)
    for changes in (
        {"flip": True, "alternating_flip": True, "mixup": 0.5, "label_smoothing": 0.1, "real_optimizer": "adamw"},
        {"updates": "accumulated", "optimizer": "bso", "gamma": 1e-6},
        {"gradient": "bptt"},
        {"weights": "real", "gradient": "ndot", "sgd_momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ):
        config = dataclasses.replace(shared, **changes)
        two, one = trained_in_double(config, world), trained_in_double(config, World())
        for a, b in zip(two.net.parameters(), one.net.parameters(), strict=True):
            if isinstance(a, BinaryParameter) and isinstance(b, BinaryParameter):
                assert torch.equal(a.bits, b.bits)
            else:
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
        for a, b in zip(two.history, one.history, strict=True):
            assert a["test_accuracy"] == b["test_accuracy"]
            assert a.get("flip_ratios") == b.get("flip_ratios")
            assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-9)
            assert a["firing_rates"] == pytest.approx(b["firing_rates"], rel=1e-9)
        two.state()  # identical on both, or an error


def check_on_two_processes_without_shared_statistics_they_stay_identical(world: World) -> None:
    run = Trainer(TINY, *load_data(TINY, None), world)
    run.train_epoch(lambda: run.state() and None)
    of_all = run.finish_epoch()["processor_seconds"]
    assert summed([of_all], world) == [world.size * of_all]
    run.state()


# The command under torchrun.


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes in /proc")
def test_a_lost_worker_restarts_and_ends_with_the_same_bits(on_two: Path, tmp_path: Path) -> None:
    whole, killed = on_two / "whole", tmp_path / "killed"
    options = ["-m", "bsnn", "train", "digits", *OPTIONS, "--epochs", "4", "--checkpoint-minutes", "0.005", "--out"]
    with processes.running(torchrun(*options, str(killed), "--json", restarts=1)) as process:
        processes.wait_for((killed / "checkpoints").exists, process)
        os.kill(max(processes.children(process.pid)), signal.SIGKILL)
        output, errors = processes.finish(process)
    assert process.returncode == 0, errors
    assert output.count("\n") == 1, "the first process speaks for all"
    assert "[rank0]: Traceback" not in errors
    # torchrun ends the other process too, which may be before it has noticed.
    assert "bsnn: process 0 of 2 has lost another one" in errors or "bsnn: terminated" in errors
    assert_same_end(whole, killed)


def assert_same_end(whole: Path, other: Path) -> None:
    first, second = (last_state(run) for run in (whole, other))
    assert first["place"] == second["place"]
    for name, value in first["net"].items():
        assert torch.equal(value, second["net"][name]), name
    keys = ("train_loss", "test_accuracy", "test_loss", "flip_ratios", "firing_rates")
    for a, b in zip(first["history"], second["history"], strict=True):
        assert [a[key] for key in keys] == [b[key] for key in keys]


def last_state(run: Path) -> dict[str, Any]:
    return RunDirectory(run).checkpoints.load_newest()[0]


def test_mishaps_are_one_line_and_cost_an_epoch(on_two: Path, tmp_path: Path) -> None:
    with processes.running(torchrun(__file__, str(tmp_path), "mishaps", restarts=3)) as process:
        _, errors = processes.finish(process)
    assert process.returncode == 0, errors
    assert "[rank" not in errors, "no traceback"
    # torchrun may end the other process before it has left its message.
    ends = [" ".join(path.read_text() for path in tmp_path.glob(f"{start}-?.txt")) for start in range(4)]
    assert f"2 bsnn: {tmp_path / 'run'}" in ends[0]
    assert "cannot be written (No space left on device); make room or choose another place" in ends[0]
    assert "gone.npy (sample 100 of files) cannot be read" in ends[1]
    assert "130 bsnn: interrupted; what was saved is intact, go on with --resume" in ends[2]
    assert_same_end(on_two / "whole", tmp_path / "run")


def mishap(folder: Path, start: int) -> None:
    """What a process of `test_mishaps_are_one_line_and_cost_an_epoch` does when torchrun starts it."""
    rank, finish = int(os.environ["RANK"]), Trainer.finish_epoch
    patch = pytest.MonkeyPatch()

    def full_disk(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def files_one_of_which_goes(config: Config, root: str | None) -> tuple[Any, Any]:
        digits, test = load_data(config, root)
        about = {key: getattr(digits, key) for key in ("classes", "labels", "shape", "mean", "std", "scale")}
        paths = [folder / "gone.npy" if i == 100 else folder / f"{i}.npy" for i in range(len(digits))]

        def decode(path: Path, rng: Any) -> np.ndarray:
            if path.stem != "gone":
                return digits.read(int(path.stem))
            if happened:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return digits.read(100)

        return FileDataset(name="files", kind="image", paths=paths, decode=decode, **about), test

    def after_an_epoch(self: Trainer) -> dict[str, Any]:
        if start == 0 and self.epoch == 1:
            patch.setattr(os, "fsync", full_disk)
        if start == 2:
            signal.raise_signal(signal.SIGINT)
        happened.append(True)
        return finish(self)

    happened: list[bool] = []
    patch.setattr(Trainer, "finish_epoch", after_an_epoch)
    if start == 1:
        patch.setattr(load, "load_data", files_one_of_which_goes)
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = cli.main(["train", "digits", *OPTIONS, "--epochs", "4", "--out", str(folder / "run"), "--resume"])
    message = (errors.getvalue().splitlines() or [""])[-1]
    (folder / f"{start}-{rank}.txt").write_text(f"{status} {message}")
    sys.exit(status)


def test_under_torchrun_a_place_is_needed(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert cli.main(["train", "digits"]) == 2
    assert "under torchrun all processes need the same one" in capsys.readouterr().err


def test_other_processes_print_no_result(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("RANK", "1")
    assert cli.main(["recipes"]) == 0
    assert capsys.readouterr().out == ""


def test_a_world_of_one_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with joined_world() as world, first_on_machine(world):
        assert (world.rank, world.size, world.is_first, world.restarted) == (0, 1, True, False)
        assert summed([1.5], world) == [1.5]
        compare_tensors({"a": torch.zeros(1)}, world)
    assert not distributed.is_initialized()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    with joined_world() as world:
        assert world.restarted


def main() -> None:
    torch.set_num_threads(1)
    np.seterr(all="raise")
    if "mishaps" in sys.argv:
        mishap(Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    folder = Path(sys.argv[1])
    try:
        with joined_world() as world:
            for name, check in checks():
                check(world)
                with open(folder / f"{world.rank}.txt", "a") as file:
                    file.write(f"{name}\n")
            train(dataclasses.replace(TINY, train_samples=200, epochs=4), folder / "whole")
            if world.is_first:
                os._exit(0)  # without a word to the other
            summed([1], world)
    except LostProcess as error:
        (folder / "lost.txt").write_text(str(error))
        # gloo keeps threads after a call that failed. While Python ends, they have been seen to abort the process.
        os._exit(0)


if __name__ == "__main__":
    main()
