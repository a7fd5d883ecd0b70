"""A run that learns from the answers of another network."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from training_runs import TINY

import bsnn
from bsnn import cli
from bsnn.errors import UserError
from bsnn.train import loop as train, trainer as trainer_module
from bsnn.train.build import load_data
from bsnn.train.load import build_trainer, load_network
from bsnn.train.recipes import SMALL, Recipe
from bsnn.train.teacher import Teacher, recipe_of_teacher
from bsnn.train.trainer import Trainer


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small recipes for teachers, one of which has a teacher itself."""
    small = dataclasses.replace(TINY, epochs=1, time_steps=1, gradient="bptt", neuron="bsnn.nn.compared:Rectifier")
    monkeypatch.setitem(SMALL, "small-teacher", Recipe("", dataclasses.replace(small, weights="real", seed=7)))
    monkeypatch.setitem(SMALL, "taught", Recipe("", dataclasses.replace(small, teacher="small-teacher")))


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_network(run).net.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_targets_by_hand() -> None:
    class Fixed(bsnn.Sequential):
        def forward(self, x, state):
            return x.flatten(1)[:, :2], state

    spec = bsnn.data.DataSpec("own", "image", ("a", "b"), (1, 1, 2), (0.0,), (1.0,), 1.0)
    inputs = torch.tensor([[[[0.0, 0.0]]], [[[torch.log(torch.tensor(3.0)), 0.0]]]])
    for steps in (1, 4):  # the mean over time, not the sum
        teacher = Teacher(Fixed(), spec, steps, 0.8)
        found = teacher.targets(teacher.answers(inputs), torch.tensor([1, 0]))
        # The answers are ½ and ½, then ¾ and ¼.
        torch.testing.assert_close(found, torch.tensor([[0.4, 0.6], [0.8, 0.2]]))
        mixed = teacher.targets(teacher.answers(inputs), torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
        torch.testing.assert_close(mixed, torch.tensor([[0.5, 0.5], [0.6, 0.4]]))
        once = teacher.answers_once([inputs[:1], inputs[1:]], mirrored=False)
        torch.testing.assert_close(once, torch.tensor([[0.5, 0.5], [0.75, 0.25]]))
        # The answers for the mirror image of the second are ¼ and ¾.
        torch.testing.assert_close(teacher.answers_once([inputs], mirrored=True), torch.full((2, 2), 0.5))


def test_the_loss_takes_its_answers_and_the_accuracy_the_labels(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []
    monkeypatch.setattr(trainer_module, "judged", lambda logits, labels: judged.append(labels) or (0, 1))
    config = dataclasses.replace(TINY, teacher=str(finished), teacher_share=1.0)
    data = load_data(config, None)
    trained = load_network(finished)
    run = Trainer(config, *data, teacher=Teacher(trained.net, trained.spec, trained.time_steps, 1.0))
    plain = Trainer(dataclasses.replace(config, teacher=""), *data)
    inputs, labels = next(iter(run.train_loader.epoch(0)))
    targets = run.teacher.targets(run.teacher.answers(inputs), labels)
    assert not run.teacher.net.training
    for trainer, given in ((run, labels), (plain, targets)):
        trainer.net.train()
        trainer._train_batch(inputs, given)
    assert run.tally.loss == pytest.approx(plain.tally.loss)
    assert same(run.net.state_dict(), plain.net.state_dict())
    assert judged[0] is labels


@pytest.mark.parametrize("flip", [False, True])
def test_asked_once_it_answers_for_samples_without_augmentation(finished: Path, flip: bool, monkeypatch) -> None:
    fields = {"teacher_answers": "once", "teacher_share": 0.5, "crop_padding": 2, "flip": flip, "epochs": 2}
    config = dataclasses.replace(TINY, teacher=str(finished), **fields)
    data, trained = load_data(config, None), load_network(finished)
    teacher = Teacher(trained.net, trained.spec, trained.time_steps, 0.5)
    trainer, asked, given = Trainer(config, *data, teacher=teacher), [], []
    teacher.net.register_forward_pre_hook(lambda _, inputs: asked.append(len(inputs[0])))
    make_targets = trainer._targets
    monkeypatch.setattr(trainer, "_targets", lambda *batch: given.append(make_targets(*batch)) or given[-1])
    for _ in range(2):
        trainer.train_epoch()
        trainer.finish_epoch()
    assert sum(asked) == trained.time_steps * (1 + flip) * len(data[0])
    whole, labels = next(bsnn.data.Loader(data[0], len(data[0])).ordered())
    answers = teacher.answers(whole)
    if flip:
        answers = (answers + teacher.answers(whole.flip(-1))) / 2
    expected = 0.5 * torch.nn.functional.one_hot(labels, 10) + 0.5 * answers
    for epoch in range(2):
        numbers = [trainer.train_loader.numbers(epoch, batch) for batch in range(len(trainer.train_loader))]
        batches = given[epoch * len(numbers) : (epoch + 1) * len(numbers)]
        torch.testing.assert_close(torch.cat(batches), expected[np.concatenate(numbers)])


def test_what_cannot_be_asked_once_is_refused(finished: Path, tmp_path: Path, capfd) -> None:
    out = ["--out", str(tmp_path / "run")]
    for options, words in (
        (
            ["--teacher", str(finished), "--mixup", "0.2"],
            "teacher_answers: received once with mixup, which makes samples",
        ),
        (
            ["--teacher", str(finished), "--epochs", "2", "--stages", "epochs=1,mixup=0.2"],
            "teacher_answers: received once with mix",
        ),
        ([], "--teacher-answers: it has an effect only with --teacher"),
    ):
        assert cli.main(["train", "digits", "--teacher-answers", "once", *options, *out]) == 2
        assert words in capfd.readouterr().err


def test_a_folder_above_another_run_is_free(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "teacher")
    config = dataclasses.replace(TINY, epochs=1, teacher=str(tmp_path / "teacher"))
    assert train.train(config, tmp_path)["epochs"] == 1


def test_a_share_of_zero_changes_nothing(finished: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, epochs=1, teacher=str(finished), teacher_share=0.0)
    train.train(config, tmp_path / "taught")
    train.train(dataclasses.replace(TINY, epochs=1), tmp_path / "plain")
    # The loss is the same number, rounded otherwise: labels are distributions.
    accuracy = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text())["train_loss"] for name in ("taught", "plain")
    ]
    assert accuracy[0] == pytest.approx(accuracy[1], rel=0.02)


def test_a_recipe_is_trained_first_on_the_same_samples(recipes: None, tmp_path: Path, capfd) -> None:
    config = dataclasses.replace(TINY, epochs=1, teacher="small-teacher", seed=3, train_samples=100)
    train.train(config, tmp_path / "run")
    taught = json.loads((tmp_path / "run" / "teacher" / "config.json").read_text())["config"]
    assert (taught["seed"], taught["train_samples"], taught["weights"], taught["teacher"]) == (3, 100, "real", "")
    assert "training the teacher first (recipe small-teacher)" in capfd.readouterr().err
    # The same as with a run that was trained before.
    train.train(dataclasses.replace(config, teacher=str(tmp_path / "run" / "teacher")), tmp_path / "named")
    assert same(weights_of(tmp_path / "run"), weights_of(tmp_path / "named"))
    assert bsnn.train.evaluate_run(tmp_path / "run")["samples"] > 0


@pytest.mark.parametrize("answers", ["batch", "once"])
def test_an_interrupted_run_goes_on_to_the_bit(recipes: None, answers: str, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, epochs=2, teacher="small-teacher", teacher_answers=answers)

    class Stop:
        def on_update(self, trainer: Trainer) -> None:
            if trainer.batches == 5:
                raise KeyboardInterrupt

    train.train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train.train(config, tmp_path / "cut", callbacks=[Stop()], checkpoint_minutes=0)
    with pytest.raises(UserError, match="holds a run already"):
        train.train(config, tmp_path / "cut")
    train.train(config, tmp_path / "cut", resume=True)
    assert same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))


def test_a_run_that_is_stopped_while_its_teacher_learns_keeps_its_own_config(
    recipes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    options = ["--train-samples", "100", "--batch-size", "20", "--seed", "3", "--teacher", "small-teacher"]
    out, epochs = ["--out", str(tmp_path / "run")], ["--epochs", "2"]
    update = Trainer._train_batch

    def stopped(trainer: Trainer, *batch: torch.Tensor) -> None:
        if trainer.config.weights == "real" and trainer.batches == 3:
            raise KeyboardInterrupt
        update(trainer, *batch)

    assert cli.main(["train", "digits", *options, *epochs, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_batch", stopped)
        assert cli.main(["train", "digits", *options, *epochs, *out, "--checkpoint-minutes", "0"]) == 130
    assert cli.main(["train", "digits", *out]) == 2
    assert "holds a run already" in capfd.readouterr().err
    assert cli.main(["train", "digits", "--resume", "--epochs", "3", *out]) == 2
    assert "started with --epochs 2 (now 3)" in capfd.readouterr().err
    assert cli.main(["train", "digits", "--resume", *out]) == 0
    assert re.search(r"after 2 epochs and \d+\.\d minutes after the teacher's \d+\.\d, ", capfd.readouterr().out)
    assert same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "run"))


def test_what_a_teacher_may_have_seen_is_said(finished: Path, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(finished.parent)
    config = dataclasses.replace(TINY, epochs=1, teacher=finished.name, validation_samples=20, train_samples=60)
    train.train(config, tmp_path / "run")
    assert "it may have learned samples that are held out here" in capfd.readouterr().err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["teacher"] == str(finished)

    class Stop:
        def on_epoch(self, trainer: Trainer, metrics: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.train(dataclasses.replace(TINY, epochs=3), tmp_path / "begun", callbacks=[Stop()])
    train.train(dataclasses.replace(TINY, epochs=1, teacher=str(tmp_path / "begun")), tmp_path / "other")
    assert "begun has finished 1 of 3 epochs" in capfd.readouterr().err


def test_recordings_of_events_can_be_taught(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(24):
        (folder := tmp_path / "data" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        x, y, p = rng.integers(0, 8, 50), rng.integers(0, 8, 50), rng.integers(0, 2, 50)
        np.savez(folder / f"{number}.npz", x=x, y=y, t=np.arange(50), p=p, height=8, width=8)
    fields = {"dataset": "folder", "image_size": 8, "train_samples": 0, "batch_size": 8, "epochs": 1, "time_steps": 2}
    config = dataclasses.replace(TINY, **fields)
    train.train(config, tmp_path / "teacher", data=tmp_path / "data")
    # Its sensor is a tuple here and a list in the checkpoint.
    assert load_network(tmp_path / "teacher").spec == bsnn.data.DataSpec.of(
        load_data(config, str(tmp_path / "data"))[0]
    )
    for answers in ("batch", "once"):
        taught = dataclasses.replace(config, teacher=str(tmp_path / "teacher"), teacher_answers=answers)
        assert train.train(taught, tmp_path / answers, data=tmp_path / "data")["epochs"] == 1


def test_another_teacher_is_noticed(recipes: None, finished: Path, tmp_path: Path) -> None:
    teacher, out = tmp_path / "teacher", tmp_path / "run"
    shutil.copytree(finished, teacher)
    config = dataclasses.replace(TINY, epochs=2, teacher=str(teacher))

    class Stop:
        def on_epoch(self, trainer: Trainer, metrics: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.train(config, out, callbacks=[Stop()])
    shutil.rmtree(teacher)
    with pytest.raises(UserError, match="teacher: there is no run "):
        train.train(config, out, resume=True)
    train.train(dataclasses.replace(TINY, epochs=1, seed=5), teacher)
    with pytest.raises(UserError, match="holds other weights than when the run was started"):
        train.train(config, out, resume=True)


def test_what_cannot_teach_is_refused(recipes: None, finished: Path, tmp_path: Path, capfd) -> None:
    with pytest.raises(UserError, match="the recipe taught has a teacher itself"):
        recipe_of_teacher(dataclasses.replace(TINY, teacher="taught"))
    others = load_data(dataclasses.replace(TINY, train_samples=60), None)
    trained = load_network(finished)
    spec = dataclasses.replace(trained.spec, classes=("0", "1"))
    with pytest.raises(
        UserError, match=r"teacher: received samples to train on with classes .*; expected \('0', '1'\)"
    ):
        Trainer(TINY, *others, teacher=Teacher(trained.net, spec, 1, 0.9))
    out = ["--out", str(tmp_path / "run"), "--epochs", "1"]
    for name, words in (
        ("cifar10", "no recipe cifar10 for two CPU cores; expected the folder of a run"),
        ("cifar10-tbso-t2", "no recipe cifar10-tbso-t2 for two CPU cores"),
        (str(finished / "config.json"), "config.json is a file; expected the folder of a run, or a recipe"),
        (str(tmp_path), f"teacher: {tmp_path} has no checkpoint of a finished epoch"),
    ):
        assert cli.main(["train", "digits", "--teacher", name, *out]) == 2
        assert words in capfd.readouterr().err
    assert cli.main(["train", "digits", "--teacher", str(tmp_path / "run"), *out]) == 2
    assert "which is --out too" in capfd.readouterr().err
    assert cli.main(["train", "digits", "--teacher-share", "0.5", *out]) == 2
    assert "--teacher-share: it has an effect only with --teacher" in capfd.readouterr().err


def test_both_are_checked_before_the_first_is_trained(recipes: None, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, teacher="small-teacher", train_samples=10**6)
    with pytest.raises(UserError, match="train_samples: received 1000000"):
        train.check_ready(config)
    own = dataclasses.replace(TINY, teacher="small-teacher", loss="nowhere:loss")
    for check in (train.check_ready, lambda config: train.train(config, tmp_path / "run")):
        with pytest.raises(UserError, match="nowhere"):
            check(own)
    assert not (tmp_path / "run" / "teacher").exists()
    train.check_ready(dataclasses.replace(TINY, teacher="small-teacher"))


def test_in_a_stage_of_smaller_images_it_sees_whole_ones(finished: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, epochs=2, teacher=str(finished), stages=({"epochs": 1, "image_size": 6},))
    trained, data = load_network(finished), load_data(config, None)
    trainer = Trainer(config, *data, teacher=Teacher(trained.net, trained.spec, trained.time_steps, 1.0))
    seen = {"teacher": [], "network": []}
    for name, net in (("teacher", trainer.teacher.net), ("network", trainer.net)):
        net.register_forward_pre_hook(lambda _, inputs, name=name: seen[name].append(inputs[0].clone()))
    trainer.train_epoch()
    trainer.finish_epoch()  # which estimates BatchNorm's statistics, and measures
    assert {tuple(images.shape[1:]) for images in seen["teacher"]} == {(1, 8, 8)}
    assert {tuple(images.shape[1:]) for images in seen["network"]} == {(1, 6, 6)}
    by_pillow = [np.asarray(Image.fromarray(image).resize((6, 6), Image.Resampling.BILINEAR)) for image in whole(seen)]
    torch.testing.assert_close(seen["network"][0].flatten(0, 1).numpy(), np.stack(by_pillow), atol=1e-5, rtol=1e-5)
    seen["network"].clear()
    trainer.train_epoch()
    assert {tuple(images.shape[1:]) for images in seen["network"]} == {(1, 8, 8)}
    # A whole run of it, its statistics and its evaluation included.
    assert train.train(config, tmp_path / "run")["epochs"] == 2


def whole(seen: dict[str, list[torch.Tensor]]) -> np.ndarray:
    return seen["teacher"][0].flatten(0, 1).numpy()


def test_samples_of_another_shape_are_refused(finished: Path) -> None:
    trained = load_network(finished)
    small = dataclasses.replace(trained.spec, shape=(1, 6, 6))
    data = load_data(TINY, None)
    with pytest.raises(UserError, match=r"with shape \(1, 8, 8\); expected \(1, 6, 6\)"):
        Trainer(TINY, *data, teacher=Teacher(trained.net, small, 1, 0.9))


def indices_alone(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.nll_loss(logits.log_softmax(1), labels)


@pytest.mark.parametrize("fields", [{"teacher": "small-teacher"}, {"mixup": 0.2}])
def test_a_loss_of_ones_own_must_take_distributions(recipes: None, fields: dict, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, epochs=1, **fields)
    cross_entropy = torch.nn.functional.cross_entropy
    assert train.train(config, tmp_path / "run", loss=cross_entropy)["epochs"] == 1
    with pytest.raises(UserError, match="fails on the logits and distributions over the classes, as mixup and a teach"):
        train.train(config, tmp_path / "other", loss=indices_alone)
    assert not (tmp_path / "other" / "teacher").exists()


def test_its_memory_counts(finished: Path) -> None:
    config = dataclasses.replace(TINY, teacher=str(finished))
    world = bsnn.train.World()
    with_one, _ = build_trainer(config, None, world, 0, None, teacher=finished)
    without, _ = build_trainer(dataclasses.replace(config, teacher=""), None, world, 0, None)
    held = sum(tensor.nbytes for tensor in load_network(finished).net.state_dict().values())
    assert with_one.standing_bytes() - without.standing_bytes() == held > 0
