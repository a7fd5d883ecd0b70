import dataclasses
import errno
import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import torch

import bsnn
from bsnn import UserError, cli
from bsnn.data import FileDataset
from bsnn.paper.recipes import recipe
from bsnn.train import build, checkpoint, load, loop as train, trainer
from bsnn.train.build import load_data
from bsnn.train.config import Config
from bsnn.train.metrics import warnings_of
from bsnn.train.run import RunDirectory, default_out
from bsnn.train.trainer import Diverged, Trainer

TINY = dataclasses.replace(recipe("digits"), plan=(4, 4, "pool", 4), train_samples=200, batch_size=32, epochs=3)
TINY_OPTIONS = ["--plan", "4,4,pool,4", "--train-samples", "200", "--batch-size", "32", "--epochs", "3"]
VARIABLE = ("seconds", "peak_bytes", "training_bytes")


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in VARIABLE} for line in lines]


def last_state(run: Path) -> dict[str, Any]:
    state, notes = RunDirectory(run).checkpoints.load_newest()
    assert not notes
    return state


def assert_same_run(a: Path, b: Path) -> None:
    """Bits, real parameters, optimizers, place and metrics; times and memory aside."""
    assert metrics(a) == metrics(b)
    first, second = last_state(a), last_state(b)
    for state in (first, second):
        state["tally"] = state["history"] = None
    assert_equal(first, second)


def assert_equal(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of TINY."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "whole"
    train.train(TINY, out)
    return out


class Killed(BaseException):
    pass


# The run and its files.


def test_held_out_samples_are_not_trained_on_and_the_test_set_is_not_read(monkeypatch):
    whole = bsnn.data.digits("train")
    monkeypatch.setattr(bsnn.data, "digits", lambda split: {"train": whole}[split])
    train, held_out = load_data(dataclasses.replace(TINY, train_samples=0, validation_samples=138), None)
    assert (len(train), len(held_out)) == (1300, 138)
    both = np.concatenate([train.samples, held_out.samples])
    order = np.lexsort(both.reshape(len(both), -1).T)
    assert np.array_equal(both[order], whole.samples[np.lexsort(whole.samples.reshape(len(both), -1).T)])
    assert set(held_out.labels) == set(range(10))
    assert len(load_data(dataclasses.replace(TINY, validation_samples=138), None)[0]) == TINY.train_samples
    with pytest.raises(UserError, match="validation_samples: received 1438; expected fewer"):
        load_data(dataclasses.replace(TINY, validation_samples=1438), None)


def test_a_run_directory_holds_what_it_says(finished: Path) -> None:
    assert {p.name for p in finished.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "checkpoints",
        "tensorboard",
    }
    config = json.loads((finished / "config.json").read_text())
    assert config["config"] == json.loads(json.dumps(dataclasses.asdict(TINY)))
    assert config["versions"]["bsnn"] == bsnn.__version__
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert set(line) == {
            *("epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "learning_rate", "gamma"),
            *("one_minus_beta1", "flip_ratio", "flip_ratios", "firing_rates", "seconds", "peak_bytes", "warnings"),
            "training_bytes",
        }
        assert list(line["flip_ratios"]) == ["conv2.weight", "conv3.weight"]
        assert list(line["firing_rates"]) == ["lif1", "lif2", "lif3"]
        assert 0 < line["flip_ratio"] < 1
        assert line["seconds"] > 0
    assert lines[-1]["learning_rate"] == lines[-1]["one_minus_beta1"] == 0, "annealed to the end"
    names = sorted(p.name for p in (finished / "checkpoints").iterdir())
    assert names == ["best.ckpt", "update-000000007.ckpt", "update-000000014.ckpt", "update-000000021.ckpt"]


def trained(config: Config, epochs: int = 1) -> Trainer:
    run = Trainer(config, *load_data(config, None))
    for _ in range(epochs):
        run.train_epoch()
        run.finish_epoch()
    return run


def test_the_memory_of_a_run_is_its_own_whatever_the_process_did_before() -> None:
    def counted(**changes: Any) -> int:
        return trained(dataclasses.replace(TINY, **changes)).history[-1]["training_bytes"]

    counted()  # what a process makes once and keeps
    small, large = counted(), counted(batch_size=128)
    assert large > 3 * small
    assert counted() == small
    assert counted(weights="latent", gradient="bptt") > 2 * small
    net = build.build_network(dataclasses.replace(TINY, weights="latent"), 10, 1)
    momentum = sum(parameter.nbytes for parameter in net.parameters())
    assert counted(weights="latent", sgd_momentum=0.9) - counted(weights="latent") == momentum


def test_counting_memory_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = trained(TINY, epochs=2).state()
    monkeypatch.setattr(trainer, "peak_bytes", lambda compute: [compute(), 1][1])
    plain = trained(TINY, epochs=2).state()
    for state in (counted, plain):
        lines = state.pop("history")
        assert lines[0]["training_bytes"] == lines[1]["training_bytes"] == state.pop("tally")["training_bytes"]
    assert_equal(counted, plain)


def test_a_checkpoint_from_before_memory_was_counted_goes_on_without() -> None:
    old = trained(TINY).state()
    del old["tally"]["training_bytes"], old["history"][0]["training_bytes"]
    run = Trainer(TINY, *load_data(TINY, None))
    run.load_state(old)
    run.train_epoch()
    assert "training_bytes" not in run.finish_epoch()


def test_weights_are_saved_as_bits(finished: Path) -> None:
    bits = [v for v in last_state(finished)["net"].values() if v.dtype == torch.uint8]
    assert [b.numel() for b in bits] == [4 * 4 * 9 // 8] * 2


def test_evaluation_gives_the_recorded_accuracy_exactly(finished: Path) -> None:
    result, line = load.evaluate_run(finished), metrics(finished)[-1]
    assert result["samples"] == 359
    for key in ("test_accuracy", "test_loss", "firing_rates"):
        assert result[key] == line[key]


def test_evaluation_within_an_epoch_estimates_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 9)
    with pytest.raises(Killed):
        train.train(TINY, tmp_path / "run", checkpoint_minutes=0)
    monkeypatch.undo()
    called = []
    original = Trainer.estimate_statistics
    monkeypatch.setattr(Trainer, "estimate_statistics", lambda self: (called.append(1), original(self))[1])
    assert load.evaluate_run(tmp_path / "run")["epoch"] == 1
    assert called


def test_tensorboard_shows_every_number_once_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    kill_in(monkeypatch, checkpoint.Checkpoints, "save", call=2)  # logged, but not saved
    with pytest.raises(Killed):
        train.train(TINY, out)
    monkeypatch.undo()
    train.train(TINY, out, resume=True)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    lines = metrics(out)
    tags = {"train_loss", "test_accuracy", "learning_rate", "flip_ratio", "flip_ratios/conv2.weight"}
    assert tags | {"firing_rates/lif3", "gamma", "one_minus_beta1"} <= set(events.Tags()["scalars"])
    for tag in ("train_loss", "test_accuracy"):
        shown = events.Scalars(tag)
        assert [event.step for event in shown] == [1, 2, 3]
        assert [event.value for event in shown] == pytest.approx([line[tag] for line in lines], rel=1e-6)


def test_the_bar_is_for_terminals_alone(finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train.train(dataclasses.replace(TINY, epochs=1), tmp_path / "run")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "\r" not in captured.err
    assert captured.err.startswith("bsnn: epoch 1/1: test accuracy")


def test_the_bar_shows_accuracy_flips_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train.train(dataclasses.replace(TINY, epochs=1), tmp_path / "run")
    assert "epoch 1, accuracy 0." in (shown := capfd.readouterr().err)
    assert "% flips, " in shown
    assert "GB" in shown


def line_of(epoch: int, flips: float = 0.01, rate: float = 0.2, beta: float = 1e-3, layer: float = 0.01) -> dict:
    return {
        "epoch": epoch,
        "firing_rates": {"lif1": 0.2, "lif2": rate},
        "flip_ratio": flips,
        "flip_ratios": {"conv2.weight": layer},
        "one_minus_beta1": beta,
    }


def test_warnings_that_matter() -> None:
    calm = [line_of(1, flips=0.02), line_of(2, flips=0.02)]
    assert warnings_of(line_of(3), calm) == []
    assert "layer lif2 hardly ever fires" in warnings_of(line_of(3, rate=0.0), calm)[0]
    assert "layer lif2 fires nearly always" in warnings_of(line_of(3, rate=1.0), calm)[0]
    assert warnings_of(line_of(3, layer=0.0), calm) == ["the weights of conv2.weight have stopped flipping"]
    assert warnings_of(line_of(3, layer=0.0, beta=1e-5), calm) == [], "an annealed rate is meant to stop them"
    growing = [line_of(1, flips=0.01), line_of(2, flips=0.02)]
    assert "flips grow: 4.00% of the weights per update" in warnings_of(line_of(3, flips=0.04), growing)[0]
    assert warnings_of(line_of(3, flips=0.02), growing) == []
    real = {"firing_rates": {"lif1": 0.5}, "epoch": 1}
    assert warnings_of(real, []) == []


def test_warnings_are_printed_and_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    silent = dataclasses.replace(TINY, epochs=1, threshold=1e6)
    train.train(silent, tmp_path / "run")
    assert "bsnn: warning: layer lif1 hardly ever fires (0.00%)" in capfd.readouterr().err
    assert metrics(tmp_path / "run")[0]["warnings"]


# Resuming bit for bit.


def kill_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Ends the run, as a kill would, just before the given call of a function."""
    original, calls = getattr(owner, name), iter(range(1, 1000))

    def killed(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, killed)


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    kill_in(monkeypatch, Trainer, "_train_batch", batches + 1)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (Trainer, "_train_batch", 1),
        (Trainer, "_train_batch", 11),
        (Trainer, "finish_epoch", 1),
        (RunDirectory, "write_history", 3),
        (checkpoint.Checkpoints, "save", 12),
        (os, "fsync", 31),
        (os, "replace", 20),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(
    owner: Any, name: str, call: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    kill_in(monkeypatch, owner, name, call)
    with pytest.raises(Killed):
        train.train(TINY, out, checkpoint_minutes=0)  # a checkpoint after every batch
    monkeypatch.undo()
    torch.manual_seed(99)
    assert not train.train(TINY, out, resume=True)["finished_before"]
    assert_same_run(finished, out)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "bso", "gamma": 1e-4, "gamma_schedule": "inverse_sqrt"},
        {"updates": "accumulated", "gradient": "ndot"},
        {"weights": "real", "sgd_momentum": 0.9, "gradient": "bptt"},
        {"weights": "latent", "sgd_momentum": 0.9, "crop_padding": 1, "flip": True, "cutout": 2},
        {"gradient": "bptt", "beta_schedule": "step", "decay_epochs": 1},
    ],
)
def test_every_kind_of_run_resumes(changes: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(TINY, epochs=2, train_samples=100, **changes)
    train.train(config, tmp_path / "whole")
    stop_after(monkeypatch, 5)
    with pytest.raises(Killed):
        train.train(config, tmp_path / "killed", checkpoint_minutes=0)
    monkeypatch.undo()
    train.train(config, tmp_path / "killed", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_a_damaged_checkpoint_costs_an_epoch_not_the_run(finished: Path, tmp_path: Path, capfd) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    newest = out / "checkpoints" / "update-000000021.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert not train.train(TINY, out, resume=True)["finished_before"]
    assert f"bsnn: warning: {newest}: received" in capfd.readouterr().err
    assert_same_run(finished, out)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_broken_files_beside_the_checkpoints_are_written_again(name: str, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "checkpoints" / "update-000000021.ckpt").unlink()
    whole = json.loads((finished / "config.json").read_text())
    (out / name).write_bytes(b'{"epoch": 1,\n\xff')
    train.train(TINY, out, resume=True)
    assert_same_run(finished, out)
    assert json.loads((out / "config.json").read_text()) == whole


def bsnn_train(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "bsnn", "train", "digits", *TINY_OPTIONS, "--out", str(out), *options]


def test_kill_9_and_resume_end_with_the_same_bits(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, epochs=12)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train.train(config, whole)
    rng = random.Random(0)
    for epoch in (3, 7, None):
        command = bsnn_train(killed, "--epochs", "12", "--checkpoint-minutes", "0.001", "--resume")
        with processes.running(command) as process:
            if epoch is not None:
                history = killed / "metrics.jsonl"
                processes.wait_for(lambda h=history, e=epoch: h.exists() and h.read_text().count("\n") >= e, process)
                time.sleep(rng.random() * 0.1)
                process.kill()
            _, errors = processes.finish(process)
        assert process.returncode == (0 if epoch is None else -signal.SIGKILL), errors
    assert_same_run(whole, killed)


# What can go wrong.


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_ctrl_c_and_sigterm_say_one_line(number: signal.Signals, word: str, tmp_path: Path) -> None:
    with processes.running(bsnn_train(tmp_path / "run", "--epochs", "2000")) as process:
        processes.wait_for(lambda: any((tmp_path / "run" / "checkpoints").glob("update-*.ckpt")), process)
        process.send_signal(number)
        output, errors = processes.finish(process)
    assert process.returncode == 128 + number
    assert output == ""
    last = errors.splitlines()[-1]
    assert last == f"bsnn: {word}; what was saved is intact, go on with --resume"
    assert "Traceback" not in errors
    assert last_state(tmp_path / "run")["place"][0] >= 1


def run_command(capfd: Any, *arguments: str) -> tuple[int, str]:
    """The exit status and the last line of standard error of a command that fails."""
    try:
        status = cli.main(arguments)
    except SystemExit as leaving:
        status = int(str(leaving.code))
    errors = capfd.readouterr().err.splitlines()
    assert not any("Traceback" in line for line in errors)
    return status, errors[-1] if errors else ""


def test_a_full_disk_keeps_the_last_checkpoint(finished: Path, tmp_path: Path, capfd, monkeypatch) -> None:
    out, calls = tmp_path / "run", iter(range(1, 1000))
    fsync = os.fsync

    def full(handle: int) -> None:
        if next(calls) > 12:  # config, metrics (twice), best and last checkpoint, each with its folder
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
    with pytest.raises(Diverged, match=r"a weight of conv1\.weight after update 0 is not finite"):
        run.state()


def test_resuming_what_is_finished_says_so(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resume = ["train", "digits", *TINY_OPTIONS, "--out", str(finished), "--resume"]
    assert cli.main(resume) == 0
    assert (finished / "model.bsnn").exists(), "a run that has no model file yet gets one"
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    assert cli.main(resume) == 0
    assert f"{finished} was finished already: test accuracy" in capfd.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_resuming_without_a_checkpoint_starts_afresh(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    train.train(TINY, tmp_path / "empty", resume=True)
    assert_same_run(finished, tmp_path / "empty")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "{finished}"], "holds a run already; go on with --resume, or choose another --out"),
        (["--out", "{finished}", "--resume", "--seed", "3"], "the run there was started with --seed 0 (now 3)"),
        (["--plan", "4"], "plan: received 4; expected channels of two layers or more"),
        (["--plan", "0,4"], "argument --plan: received '0,4'; expected channels and pools"),
        (["--width", "1e9"], "training does not fit into memory; lower --batch-size or --width"),
        (["--data", "{finished}"], "the digits come with bsnn. For your own data: bsnn train folder"),
        (["--checkpoint-minutes", "-1"], "--checkpoint-minutes: received -1.0; expected 0 or more"),
        (["--sweep", "seed=0", "--sweep", "seed=1"], "--sweep: received seed twice; give all its values at once"),
        (["--out", "{finished}/config.json"], "config.json is a file; expected a folder"),
        (["--out", "/dev/null/run"], "cannot be written (Not a directory)"),
        (["--data", "/nowhere", "--dataset", "cifar10"], "/nowhere"),
        (["--dataset", "folder"], "say where it is with --data DIR"),
        (["--epochs", "0"], "epochs: received 0; expected a number, at least 1"),
        (["--epochs", "x"], "argument --epochs: received 'x'; expected a whole number"),
        (["--gamma", "nan"], "argument --gamma: received 'nan'; expected a number such as 5e-7"),
        (["--gamma", "-1"], "gamma: received -1.0; expected a number, at least 0"),
        (["--flip", "perhaps"], "argument --flip: received 'perhaps'; expected yes or no"),
        (["--plan", "32,x"], "argument --plan: received '32,x'; expected channels and pools"),
        (["--gradient", "bp"], "argument --gradient: invalid choice: 'bp'"),
        (["--leak", "2"], "leak: received 2.0; expected a number, 0 to 1"),
        (["--learning-rate", "-0.1"], "learning_rate: received -0.1; expected a number, at least 0"),
        (["--no-such-field", "2"], "unrecognized arguments: --no-such-field 2"),
        (["--init-from", "/nowhere"], "init_from: /nowhere does not exist; expected a run directory or a checkpoint"),
        (["--init-from", "{finished}/config.json"], "config.json: received"),
        (["--init-from", "{finished}", "--plan", "8,8"], "init_from: it holds another network"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, finished: Path, tmp_path: Path, capfd) -> None:
    given = [option.format(finished=finished) for option in options]
    out = [] if "--out" in given else ["--out", str(tmp_path / "run")]
    status, error = run_command(capfd, "train", "digits", *TINY_OPTIONS, *given, *out)
    assert status == 2
    assert message in error


def test_an_unknown_recipe_and_a_folder_without_a_run(tmp_path: Path, capfd) -> None:
    assert run_command(capfd, "train", "cifar") == (
        2,
        "bsnn: recipe: received 'cifar'; expected one of those that `bsnn recipes` lists.",
    )
    status, message = run_command(capfd, "evaluate", str(tmp_path))
    assert status == 2
    assert "has no checkpoint; expected the folder of a run" in message
    status, message = run_command(capfd, "evaluate", str(tmp_path / "nothing"))
    assert status == 2
    assert "nothing: there is no such run or file" in message


@pytest.mark.parametrize("changes", [{"new_field": 1}, {"gradient": "new"}])
def test_a_run_of_another_version_says_so(changes: dict, finished: Path, tmp_path: Path, capfd) -> None:
    state = last_state(finished)
    state["config"] |= changes
    RunDirectory(tmp_path).checkpoints.save(21, state)
    for command in (["evaluate"], ["train", "digits", *TINY_OPTIONS, "--resume", "--out"]):
        status, message = run_command(capfd, *command, str(tmp_path))
        assert status == 2
        assert f"the run is of another version of bsnn than this one, {bsnn.__version__}" in message
        assert next(iter(changes)) in message


def test_two_processes_cannot_train_in_one_directory(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.owned(), pytest.raises(UserError, match="another process is training in it"), run.owned(patience=0):
        pass
    with run.owned(patience=0):
        pass


def test_other_data_than_before_is_refused(finished: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "checkpoints" / "update-000000021.ckpt").unlink()
    less = load_data(dataclasses.replace(TINY, train_samples=199), None)
    monkeypatch.setattr(load, "load_data", lambda *_: less)
    with pytest.raises(UserError, match="received 199 samples of 10 classes; expected the 200"):
        train.train(TINY, out, resume=True)


def test_runs_without_a_place_get_the_next_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_out("digits") == default_out("digits", resume=True) == Path("runs/digits")
    for name in ("digits", "digits-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    assert default_out("digits") == Path("runs/digits-3")
    assert default_out("digits", resume=True) == Path("runs/digits-2")


# Fine-tuning.


def first_flips(config: Config, source: dict[str, Any] | None) -> float:
    run = Trainer(config, *load_data(config, None), source=source)
    inputs, labels = next(iter(run.train_loader.epoch(0)))
    ratios = []
    assert run.flip is not None
    run.flip.register_step_post_hook(lambda flip, *_: ratios.append(flip.flip_ratio))
    run.net.train()
    run._train_batch(inputs, labels)
    return ratios[0]


@pytest.mark.parametrize("source", ["{run}", "{run}/checkpoints/best.ckpt"])
def test_fine_tuning_does_not_flip_half_of_the_weights(source: str, finished: Path) -> None:
    state = load._source_state(Path(source.format(run=finished)))
    other = dataclasses.replace(TINY, time_steps=2, gradient="ndot")
    assert first_flips(other, state) < 0.2
    assert first_flips(dataclasses.replace(other, initial_momentum=1.0), state) == 0
    for entry in state["optimizers"][0]["state"].values():
        entry["momentum"].zero_()
    assert first_flips(other, state) > 0.3, "what would happen without the momentum"


def test_init_from_is_needed_for_the_start_alone(finished: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "run"
    shutil.copytree(finished, source)
    config = dataclasses.replace(TINY, epochs=1, init_from=str(source), initial_momentum=1.0)
    result = train.train(config, out)
    shutil.rmtree(source)
    assert load.evaluate_run(out)["test_accuracy"] == result["test_accuracy"]


# The documentation.


def test_the_commands_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text()
    commands = [
        shlex.split(line, comments=True)
        for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
        for line in block.splitlines()
    ]
    commands += [shlex.split(command) for command in re.findall(r"`(bsnn train .*?)`", text, flags=re.DOTALL)]
    assert len(commands) > 8
    monkeypatch.chdir(tmp_path)
    small = ["--train-samples", "100", "--plan", "4,4"]  # the same commands on less
    runnable = (["train", "digits"], ["evaluate", "runs/first"], ["report", "runs/first"], ["recipes"])
    for words in commands:
        arguments = words[words.index("bsnn") + 1 :]
        if "--help" in arguments:
            with pytest.raises(SystemExit):
                cli.main(arguments)
        elif words[0] == "bsnn" and arguments[:2] in runnable and "runs/second" not in words:
            assert cli.main([*arguments, *(small if arguments[0] == "train" else [])]) == 0, arguments
        else:
            cli.parser().parse_args(arguments)
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, "docs/training.md", "exec"), {})
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"first", "tuned", "grid", "python", "sigma"}


def test_a_run_that_will_not_fit_is_warned_about(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    config = dataclasses.replace(recipe("digits"), plan=(4, 4), train_samples=64, epochs=1)
    monkeypatch.setattr("bsnn.train.loop.free_bytes", lambda: 1000)
    train.train(config, tmp_path / "run")
    assert "warning: training needs about" in capsys.readouterr().err
