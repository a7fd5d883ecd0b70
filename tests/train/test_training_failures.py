"""What goes wrong while a run trains: signals, a full disk, lost data, numbers that are not finite."""

import errno
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import torch
from training_runs import TINY, TINY_OPTIONS, assert_same_run, last_state, run_command, train_command

from bsnn import cli
from bsnn.data import FileDataset
from bsnn.train import load, loop as train
from bsnn.train.build import load_data
from bsnn.train.trainer import Diverged, Trainer


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_ctrl_c_and_sigterm_say_one_line(number: signal.Signals, word: str, tmp_path: Path) -> None:
    with processes.running(train_command(tmp_path / "run", "--epochs", "2000")) as process:
        processes.wait_for(lambda: any((tmp_path / "run" / "checkpoints").glob("batch-*.ckpt")), process)
        process.send_signal(number)
        output, errors = processes.finish(process)
    assert process.returncode == 128 + number
    assert output == ""
    last = errors.splitlines()[-1]
    assert last == f"bsnn: {word}; what was saved is intact, go on with --resume"
    assert "Traceback" not in errors
    assert last_state(tmp_path / "run")["place"][0] >= 1


@pytest.mark.parametrize("saved", [False, True])
def test_an_interrupted_run_says_whether_anything_was_saved(saved: bool, tmp_path: Path, capfd, monkeypatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        if saved:
            (tmp_path / "run" / "checkpoints").mkdir(parents=True)
            (tmp_path / "run" / "checkpoints" / "batch-000000001.ckpt").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", interrupted)
    status, message = run_command(capfd, "train", "digits", "--out", str(tmp_path / "run"))
    what = "what was saved is intact, go on with --resume" if saved else "nothing was saved yet"
    assert (status, message) == (130, f"bsnn: interrupted; {what}")


def test_a_full_disk_keeps_the_last_checkpoint(finished: Path, tmp_path: Path, capfd, monkeypatch) -> None:
    out, calls = tmp_path / "run", iter(range(1, 1000))
    fsync = os.fsync

    def full(handle: int) -> None:
        if next(calls) > 10:  # config, metrics, metrics and checkpoint, metrics; each with its folder
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    status, message = run_command(capfd, "train", "digits", *TINY_OPTIONS, "--out", str(out))
    assert status == 2
    assert "(No space left on device); make room or choose another place" in message
    assert str(out) in message
    monkeypatch.undo()
    assert last_state(out)["place"] == [1, 0, 7]
    assert cli.main(["train", "digits", *TINY_OPTIONS, "--out", str(out), "--resume"]) == 0
    assert_same_run(finished, out)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(("mode", "out"), [(0o755, "run"), (0o755, "."), (0o700, "run")])
def test_no_permission(mode: int, out: str, finished: Path, capfd) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(mode)
    os.seteuid(65534)
    try:
        status, message = run_command(capfd, "train", "digits", *TINY_OPTIONS, "--out", str(folder / out))
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)
    assert status == 2
    assert f"{folder}" in message
    assert "cannot be written (Permission denied)" in message


def test_data_that_goes_away_halfway(finished: Path, tmp_path: Path, capfd, monkeypatch) -> None:
    folder = tmp_path / "data"
    digits, test = load_data(TINY, None)
    folder.mkdir()
    paths = []
    for index in range(len(digits)):
        paths.append(folder / f"{index}.npy")
        np.save(paths[-1], digits.read(index))
    about = {key: getattr(digits, key) for key in ("classes", "labels", "shape", "mean", "std", "scale")}
    files = FileDataset(name="digits", kind="image", paths=paths, decode=lambda path, _: np.load(path), **about)
    monkeypatch.setattr(load, "load_data", lambda *_: (files, test))
    finish = Trainer.finish_epoch

    def lose_a_file(self: Trainer) -> dict[str, Any]:
        line = finish(self)
        (folder / "100.npy").unlink(missing_ok=True)
        return line

    monkeypatch.setattr(Trainer, "finish_epoch", lose_a_file)
    out = tmp_path / "run"
    status, message = run_command(capfd, "train", "digits", *TINY_OPTIONS, "--out", str(out))
    assert status == 2
    assert "100.npy (sample 100 of digits) cannot be read" in message
    assert last_state(out)["place"] == [1, 0, 7]
    monkeypatch.undo()
    np.save(folder / "100.npy", digits.read(100))
    monkeypatch.setattr(load, "load_data", lambda *_: (files, test))
    assert cli.main(["train", "digits", *TINY_OPTIONS, "--out", str(out), "--resume"]) == 0
    assert_same_run(finished, out)


@pytest.mark.parametrize("weights", ["binary", "real"])
def test_a_loss_that_is_not_finite_stops_the_run(weights: str, tmp_path: Path, capfd) -> None:
    options = ["--learning-rate", "1e38", "--mse-share", "1", "--weights", weights, "--out", str(tmp_path / "run")]
    status, message = run_command(capfd, "train", "digits", *TINY_OPTIONS, *options)
    assert status == 2
    assert "in epoch 1, batch " in message
    assert "is not finite; expected finite numbers. Lower --learning-rate" in message
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_weights_that_are_not_finite_are_never_saved() -> None:
    run = Trainer(TINY, *load_data(TINY, None))
    with torch.no_grad():
        run.net.get_parameter("conv1.weight")[0, 0, 0, 0] = torch.nan
    with pytest.raises(Diverged, match=r"a weight of conv1\.weight after 0 batches is not finite"):
        run.state()


def test_missing_kernels_are_said_at_the_start(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setattr("bsnn.train.loop.is_available", lambda name: name != "cpu")
    assert cli.main(["train", "digits", *TINY_OPTIONS, "--out", str(tmp_path / "run")]) == 0
    assert "warning: the kernels in C are missing, so training takes about twice as long" in capfd.readouterr().err
