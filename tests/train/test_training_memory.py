"""The memory that a run counts, and the warning if there is too little of it, or too little room on the disk."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training_runs import TINY, assert_equal

import bsnn
from bsnn import UserError
from bsnn.kernels.memory import keeps_memory
from bsnn.paper.recipes import recipe
from bsnn.train import build, fit, loop as train, trainer
from bsnn.train.build import load_data
from bsnn.train.config import Config
from bsnn.train.load import load_network
from bsnn.train.trainer import Trainer


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


SMALL = dataclasses.replace(recipe("digits"), plan=(4, 4), train_samples=64, epochs=1)


def test_a_run_that_will_not_fit_is_warned_about(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    run = Trainer(SMALL, *load_data(SMALL, None))
    needed = bsnn.predict_memory(run.net, torch.zeros(1, 1, 8, 8), SMALL.batch_size)["total"]
    monkeypatch.setattr(fit, "free_bytes", lambda: needed + 1)
    assert fit.check_memory(run) == ([], False)
    monkeypatch.setattr(fit, "free_bytes", lambda: needed - 1)
    train.train(SMALL, tmp_path / "run")
    assert "warning: training needs about" in capsys.readouterr().err


@pytest.mark.parametrize("processes", [1, 2])
def test_freed_memory_is_kept_where_there_is_four_times_as_much(
    processes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Trainer(SMALL, *load_data(SMALL, None))
    run.world = run.world._replace(size=processes)
    batch = SMALL.batch_size // processes
    needed = bsnn.predict_memory(run.net, torch.zeros(1, 1, 8, 8), batch)["total"]
    kept, original = [], Trainer._train_batch

    def recorded(self: Trainer, *arguments: object) -> None:
        kept.append(keeps_memory())
        original(self, *arguments)

    monkeypatch.setattr(Trainer, "_train_batch", recorded)
    for spare, expected in ((0, False), (1, True)):
        monkeypatch.setattr(fit, "free_bytes", lambda spare=spare: 4 * processes * needed + spare)
        assert fit.check_memory(run) == ([], expected)
        if processes == 1:
            train.train(SMALL, tmp_path / str(spare))
    if processes == 1:
        before, after = (load_network(tmp_path / name).net.state_dict() for name in "01")
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert kept == [False, True]
    assert not keeps_memory()


def test_a_run_that_needs_several_times_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda: 1000)
    with pytest.raises(
        UserError, match=r"training needs about .* are free; lower --batch-size, --width or --image-size"
    ):
        train.train(SMALL, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_most_demanding_stage_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def needed(config: Config) -> int:
        run, sizes = Trainer(config, *load_data(config, None)), []
        monkeypatch.setattr(fit, "_needed_bytes", lambda *_: sizes.append(original(*_)) or sizes[-1])
        fit.check_memory(run)
        return max(sizes)

    original = fit._needed_bytes
    staged = dataclasses.replace(SMALL, epochs=2, stages=({"epochs": 1, "image_size": 6, "batch_size": 32},))
    assert needed(staged) == needed(SMALL)
    larger = dataclasses.replace(SMALL, epochs=2, stages=({"epochs": 1, "batch_size": 128},))
    assert needed(larger) > 1.5 * needed(SMALL)


def test_checkpoints_that_do_not_fit_onto_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Trainer(dataclasses.replace(SMALL, sgd_momentum=0.9), *load_data(SMALL, None))
    one = run.standing_bytes() + sum(p.nbytes for p in bsnn.split_parameters(run.net)[1])
    for free, expected in ((5 * one, ""), (5 * one - 1, "5 checkpoints take about"), (2 * one, "5 checkpoints")):
        monkeypatch.setattr(fit.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert expected in "".join(fit.check_disk(run, tmp_path, 5))
    monkeypatch.setattr(fit.shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * one - 1))
    with pytest.raises(UserError, match="GB are free; make room, or choose another --out"):
        train.train(run.config, tmp_path / "run")


@pytest.mark.parametrize("side", [3_000, 30_000, 3_000_000])
def test_an_absurd_image_is_refused_without_a_try(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Trainer(SMALL, *load_data(SMALL, None))
    run.spec = dataclasses.replace(run.spec, shape=(1, side, side))
    seen = []
    original = fit.predict_memory
    monkeypatch.setattr(fit, "predict_memory", lambda *a, **k: (seen.append(a[1].numel()), original(*a, **k))[1])
    monkeypatch.setattr(fit, "free_bytes", lambda: 10**9)
    with pytest.raises(UserError, match="training needs about"):
        fit.check_memory(run)
    assert max(seen, default=0) <= 64 * 64


def test_a_network_for_one_size_is_tried_at_that_size(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Trainer(SMALL, *load_data(SMALL, None))
    run.spec = dataclasses.replace(run.spec, shape=(1, 300, 300))
    tried = []

    def predict(_net: object, sample: torch.Tensor, _batch: int, **_: object) -> dict[str, int]:
        tried.append(tuple(sample.shape))
        if sample.shape[-1] != 300:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return {"total": 1}

    monkeypatch.setattr(fit, "predict_memory", predict)
    assert fit.check_memory(run)[0] == []
    assert tried == [(1, 1, 64, 64), (1, 1, 300, 300)]


def test_a_container_has_at_most_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fit, "_LIMIT", tmp_path / "memory.max")
    if fit.free_bytes() is None:
        pytest.skip("this system does not tell")
    (tmp_path / "memory.max").write_text("2000\n")
    assert fit.free_bytes() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert (fit.free_bytes() or 0) > 10**6
