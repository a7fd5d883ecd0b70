"""Stages: what each one trains with, what is carried from one to the next, and that a run resumes anywhere in them."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training_runs import TINY, Killed, assert_same_run, last_state, metrics, run_command, stop_after, uncounted

import bsnn
from bsnn import UserError, cli
from bsnn.train import loop as train, trainer as trainer_module
from bsnn.train.build import load_data
from bsnn.train.config import Config, config_from_json
from bsnn.train.distributed import World
from bsnn.train.fields import written
from bsnn.train.load import evaluate_run, load_network
from bsnn.train.stage_checks import check_last_batches
from bsnn.train.stages import described, stage_at, stages_of
from bsnn.train.trainer import Trainer

STAGED = dataclasses.replace(
    TINY,
    train_samples=96,
    epochs=4,
    time_steps=3,
    sgd_momentum=0.5,
    crop_padding=2,
    cutout=4,
    stages=({"epochs": 1, "time_steps": 1, "image_size": 6}, {"epochs": 2, "time_steps": 2, "batch_size": 16}),
)


@pytest.fixture(scope="module", autouse=True)
def uncounted_memory() -> Iterator[None]:
    """Runs are short, so counting their memory would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "peak_bytes", uncounted)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with three stages."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("staged") / "whole"
    train.train(STAGED, out)
    return out


def trainer_of(config: Config, **options: Any) -> Trainer:
    return Trainer(config, *load_data(config, None), **options)


# What a stage is.


def test_a_run_ends_with_its_own_fields() -> None:
    stages = stages_of(STAGED)
    assert [(s.number, s.start, s.end) for s in stages] == [(1, 0, 1), (2, 1, 3), (3, 3, 4)]
    assert [s.config.time_steps for s in stages] == [1, 2, 3]
    assert [s.config.batch_size for s in stages] == [32, 16, 32]
    assert [s.shrunk_to for s in stages] == [6, 0, 0]
    assert [stage_at(STAGED, epoch).number for epoch in range(6)] == [1, 2, 2, 3, 3, 3]
    assert stages_of(TINY) == [(1, TINY, 0, 0)]


def test_stages_survive_json_and_the_command_line() -> None:
    again = config_from_json(json.loads(json.dumps(dataclasses.asdict(STAGED))))
    assert again == STAGED
    assert hash(again) == hash(STAGED)
    text = "epochs=1,time_steps=1,image_size=6; epochs=2,time_steps=2,batch_size=16"
    assert written(STAGED.stages) == text
    options = cli.parser().parse_args(["train", "digits", "--stages", text.replace("time_steps", "time-steps")])
    assert options.field_stages == STAGED.stages
    assert cli.parser().parse_args(["train", "digits", "--stages", ""]).field_stages == ()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("epochs=1,width=2", "argument --stages: received 'width=2' in 'epochs=1,width=2'; expected FIELD=VALUE"),
        ("epochs=1,epochs=2", "received 'epochs=2' in 'epochs=1,epochs=2'; expected FIELD=VALUE, each field once"),
        ("epochs", "received 'epochs' in 'epochs'; expected FIELD=VALUE"),
        (";", "argument --stages: received ';'; expected stages, such as epochs=18,time_steps=1"),
        ("epochs=x", "argument --stages: epochs in 'epochs=x': received 'x'; expected a whole number"),
        (
            "epochs=1,time_steps=0",
            "stages: stage 1, 'epochs=1,time_steps=0': time_steps: received 0; expected a number",
        ),
        ("epochs=1; epochs=1,gamma=-1", "stages: stage 2, 'epochs=1,gamma=-1.0': gamma: received -1.0"),
        ("epochs=1,beta_schedule=linear", "received 'beta_schedule=linear'; expected one of constant, step, cosine"),
        ("time_steps=1", "stages: received 'time_steps=1' as stage 1; expected its number of epochs"),
        (
            "epochs=1; epochs=1,weight_decay=0.1",
            "stages: weight_decay is 0 in stage 1 and not in a later one; expected",
        ),
        ("epochs=3", "stages: they take 3 of 3 epochs; expected fewer, because the run ends with at least one epoch"),
        ("epochs=0", "stages: stage 1, 'epochs=0': epochs: received 0; expected a number, at least 1"),
        (
            "epochs=1,image_size=9",
            "stages: stage 1: image_size: received 9 for images of 8 × 8; expected square images",
        ),
        (
            "epochs=1; epochs=1,image_size=9",
            "stages: stage 2: image_size: received 9 for images of 8 × 8; expected squ",
        ),
        ("epochs=1,image_size=1", "stages: stage 1 with image_size=1: input: received shape (1, 1, 1, 1)"),
        (
            "epochs=1; epochs=1,cutout=9",
            "stages: stage 2: cutout: received a square of 9 pixels for digits, whose samples are 8 × 8",
        ),
    ],
)
def test_stages_that_cannot_be_are_refused_by_name(stages: str, message: str, tmp_path: Path, capfd) -> None:
    options = ["--epochs", "3", "--plan", "4,pool,4", "--out", str(tmp_path / "run"), "--stages", stages]
    status, line = run_command(capfd, "train", "digits", *options)
    assert status == 2
    assert message in line
    assert not (tmp_path / "run" / "config.json").exists()


_SEQUENCE = ["--gradient", "bptt", "--batchnorm", "sequence"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch-size", "21"], "bsnn: batch_size: received 21 for 64 samples, which leaves a batch of one sample"),
        (["--stages", "epochs=1,batch_size=63"], "bsnn: stages: stage 1: batch_size: received 63 for 64 samples"),
        (["--batch-size", "21", *_SEQUENCE, "--time-steps", "1"], "bsnn: batch_size: received 21 for 64 samples"),
        (
            ["--batch-size", "21", *_SEQUENCE, "--stages", "epochs=1,time_steps=1"],
            "bsnn: stages: stage 1: batch_size: received 21 for 64 samples",
        ),
    ],
)
def test_a_single_sample_is_no_batch_for_batch_norm(options: list[str], message: str, tmp_path: Path, capfd) -> None:
    shared = ["train", "digits", "--train-samples", "64", "--epochs", "2", "--out", str(tmp_path / "run")]
    network = ["--model", "residual", "--plan", "4,max,4,max,4,max,4"]  # which leaves one pixel
    assert cli.main([*shared, *network, *options]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
    assert cli.main([*shared, "--plan", "4,pool,4", *options]) == 0  # which leaves sixteen


def test_several_time_steps_are_more_than_one_sample(tmp_path: Path) -> None:
    network = ["--model", "residual", "--plan", "4,max,4,max,4,max,4", *_SEQUENCE, "--time-steps", "2"]
    options = ["--train-samples", "64", "--epochs", "1", "--batch-size", "21", "--out", str(tmp_path / "run")]
    assert cli.main(["train", "digits", *network, *options]) == 0


def test_looking_for_single_values_leaves_the_network_as_it_was() -> None:
    class Uncopied(bsnn.Sequential):
        def __deepcopy__(self, memo: object) -> object:
            raise TypeError("cannot be copied")

    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), bsnn.BatchNorm2d(4), bsnn.LIF(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    net = Uncopied(*layers, bsnn.BinaryLinear(4, 8), bsnn.BatchNorm1d(8), bsnn.LIF())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    config = dataclasses.replace(TINY, batch_size=3)
    spec = bsnn.data.DataSpec("own", "image", ("a", "b"), (1, 8, 8), (0.0,), (1.0,), 1.0)
    with pytest.raises(UserError, match="received 3 for 4 samples, which leaves a batch of one sample"):
        check_last_batches(net, stages_of(config), spec, 4, World())
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    check_last_batches(net, stages_of(config), spec, 5, World())
    alone = bsnn.Sequential(*layers, bsnn.BinaryLinear(4, 8), bsnn.LIF())
    check_last_batches(alone, stages_of(config), spec, 4, World())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "real", "--stages", "epochs=1,gamma=1"], "--stages: gamma in stage 1: it has an effect only"),
        (["--schedule-span", "stage"], "--schedule-span: it has an effect only with --stages"),
    ],
)
def test_what_has_no_effect_is_refused(options: list[str], message: str, tmp_path: Path, capfd) -> None:
    status, line = run_command(capfd, "train", "digits", *options, "--out", str(tmp_path / "run"))
    assert status == 2
    assert message in line


def test_python_refuses_what_the_command_line_does() -> None:
    with pytest.raises(UserError, match="stages: stage 1 changes width; a stage can change epochs, time_steps"):
        Config(stages=({"epochs": 1, "width": 2},))
    with pytest.raises(UserError, match="stage 1 has image_size=64; expected at most that of the whole run, 32"):
        Config(dataset="folder", image_size=32, stages=({"epochs": 1, "image_size": 64},))


def test_recordings_of_events_keep_their_frames() -> None:
    samples = np.zeros((4, 3, 2, 8, 8), np.float32)
    data = bsnn.data.ArrayDataset("dvs", "event", ("a", "b"), np.arange(4) % 2, samples, (0.0,) * 2, (1.0,) * 2, 1.0)
    config = dataclasses.replace(TINY, time_steps=3, batch_size=2, stages=({"epochs": 1, "time_steps": 1},))
    with pytest.raises(
        UserError, match=r"stage 1 has time_steps=1, and dvs holds event recordings.* cut into 3 frames"
    ):
        Trainer(config, data, data)
    config = dataclasses.replace(config, stages=({"epochs": 1, "image_size": 4},))
    with pytest.raises(UserError, match="image_size: received 4 for dvs, which holds samples of kind event"):
        Trainer(config, data, data)


# What a stage trains with.


def test_batches_of_a_stage_are_its_own() -> None:
    trainer = trainer_of(STAGED)
    found = []
    for _ in range(STAGED.epochs):
        trainer.train_epoch()
        augment = trainer.train_loader.augment
        assert augment is not None
        inputs, _ = next(trainer.train_loader.epoch(0))
        found.append((tuple(inputs.shape), trainer.frames, augment.crop_padding, augment.cutout))
        trainer.finish_epoch()
    # Of 8 pixels, crop padding is 2 and Cutout 4; of 6 pixels, 1.5 (rounded to 2) and 3.
    first, middle = ((32, 1, 6, 6), 1, 2, 3), ((16, 1, 8, 8), 2, 2, 4)
    assert found == [first, middle, middle, ((32, 1, 8, 8), 3, 2, 4)]
    assert trainer.batches == trainer.total_batches == 3 + 2 * 6 + 3


def test_a_stage_that_changes_nothing_changes_no_bit(tmp_path: Path) -> None:
    plain = dataclasses.replace(TINY, train_samples=96)
    runs = []
    for name, stages in (("plain", ()), ("staged", ({"epochs": 1}, {"epochs": 1, "time_steps": TINY.time_steps}))):
        train.train(dataclasses.replace(plain, stages=stages), tmp_path / name)
        runs.append([{k: v for k, v in line.items() if k != "stage"} for line in metrics(tmp_path / name)])
    assert runs[0] == runs[1]
    assert [line["stage"] for line in metrics(tmp_path / "staged")] == [1, 2, 3]


def rates(config: Config) -> list[dict[str, float]]:
    """What the schedules set before each batch of a run."""
    trainer = trainer_of(config)
    found: list[dict[str, float]] = []

    def note() -> None:
        assert trainer.flip is not None
        group, real = trainer.flip.param_groups[0], trainer.optimizers[-1].param_groups[0]
        names = {"beta": "one_minus_beta1", "beta2": "one_minus_beta2", "gamma": "gamma"}
        found.append({"lr": real["lr"], **{short: group[name] for short, name in names.items()}})

    trainer._train_batch = lambda *_: (note(), [s.step() for s in trainer.schedules], _count(trainer))  # type: ignore
    for _ in range(config.epochs):
        trainer.train_epoch()
        trainer.epoch, trainer.batch = trainer.epoch + 1, 0
    return found


def _count(trainer: Trainer) -> None:
    trainer.batch += 1
    trainer.batches += 1


SCHEDULED = dataclasses.replace(
    TINY, train_samples=96, batch_size=32, epochs=4, learning_rate=0.5, one_minus_beta1=0.25, gamma=0.125
)


def test_schedules_reach_over_the_run() -> None:
    stages = ({"epochs": 1, "batch_size": 48, "learning_rate": 1.0}, {"epochs": 1, "time_steps": 1})
    found = rates(dataclasses.replace(SCHEDULED, stages=stages, gamma_schedule="inverse_sqrt", warmup=0.25))
    # Epochs of 2, 3, 3 and 3 batches; the place in the run is counted in epochs, 1/√k in updates.
    places = [k / 2 for k in range(2)] + [1 + k / 3 for k in range(9)]
    cosine = [0.5 * (1 + math.cos(math.pi * place / 4)) for place in places]
    assert [line["beta"] for line in found] == pytest.approx([0.25 * c for c in cosine])
    assert [line["gamma"] for line in found] == pytest.approx([0.125 / math.sqrt(k + 1) for k in range(11)])
    # Warm-up is over a quarter of the run, one epoch: of 2 batches of the first stage, of 3 behind it.
    warm = [1 / 3, 2 / 3] + [1.0] * 9
    base = [1.0] * 2 + [0.5] * 9
    assert [line["lr"] for line in found] == pytest.approx(
        [b * w * c for b, w, c in zip(base, warm, cosine, strict=True)]
    )


def test_schedules_of_a_stage_begin_with_it() -> None:
    stages = ({"epochs": 2, "one_minus_beta1": 0.5, "beta_schedule": "constant", "beta2_schedule": "cosine"},)
    found = rates(dataclasses.replace(SCHEDULED, one_minus_beta2=0.125, stages=stages, schedule_span="stage"))
    cosine = [0.5 * (1 + math.cos(math.pi * k / 6)) for k in range(6)]
    assert [line["lr"] for line in found] == pytest.approx([0.5 * c for c in cosine * 2])
    assert [line["beta"] for line in found] == pytest.approx([0.5] * 6 + [0.25 * c for c in cosine])
    assert [line["beta2"] for line in found] == pytest.approx([0.125 * c for c in cosine] + [0.125] * 6)


# What is carried from one stage to the next.


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "tbso"},
        {"optimizer": "bso", "momentum_bits": 8},
        {"optimizer": "sigma", "gamma": 2.0, "real_optimizer": "adamw"},
        {"weights": "real", "gradient": "bptt"},
    ],
)
def test_everything_else_is_carried_over(changes: dict) -> None:
    config = dataclasses.replace(STAGED, **{"sgd_momentum": 0.0} if "real_optimizer" in changes else {}, **changes)
    trainer = trainer_of(config)
    trainer.train_epoch()
    trainer.finish_epoch()
    kept = {"net": trainer.net, "optimizers": list(trainer.optimizers)}
    before = trainer.state()
    trainer._enter(trainer.stages[1])
    after = trainer.state()
    assert (trainer.net, trainer.optimizers) == (kept["net"], kept["optimizers"]), "what callbacks hold stays in use"
    assert all(torch.equal(before["net"][name], after["net"][name]) for name in before["net"])
    for old, new in zip(before["optimizers"], after["optimizers"], strict=True):
        for index, entry in old["state"].items():
            for name, value in entry.items():
                same = torch.equal(value, new["state"][index][name]) if isinstance(value, torch.Tensor) else None
                assert name == "second_moment" or same or value == new["state"][index][name], name


def test_the_decay_of_a_stage_is_that_of_the_weights_alone() -> None:
    stages = ({"epochs": 1, "weight_decay": 0.1}, {"epochs": 1, "weight_decay": 0.0})
    trainer = trainer_of(dataclasses.replace(TINY, epochs=3, weight_decay=0.2, stages=stages))
    for stage, wanted in zip(trainer.stages, (0.1, 0.0, 0.2), strict=True):
        if stage.number > 1:
            trainer._enter(stage)
        weights, others = trainer.optimizers[-1].param_groups
        assert (weights["weight_decay"], others["weight_decay"]) == (wanted, 0.0)


def test_second_moments_when_t_changes() -> None:
    trainer = trainer_of(dataclasses.replace(STAGED, bias_correction=True))
    flip = trainer.flip
    assert isinstance(flip, bsnn.optim.TBSO)
    parameter = flip.param_groups[0]["params"][0]
    flip.state[parameter]["second_moment"][:] = 8.0
    flip.state[parameter]["filled"][:] = 0.5
    trainer._enter(trainer.stages[1])
    # From T = 1 to 2 the loss of a time step, and with it the gradients, are halved: their squares are a quarter.
    assert flip.state[parameter]["second_moment"].tolist() == [2.0, 2.0]
    assert flip.state[parameter]["filled"].tolist() == [0.5, 0.5]
    assert flip.second_moment(parameter).tolist() == [4.0, 4.0]
    assert flip.param_groups[0]["time_steps"] == flip.time_steps == 2
    flip.state[parameter]["second_moment"][1] = 6.0
    trainer._enter(trainer.stages[2])
    assert flip.state[parameter]["second_moment"].tolist() == pytest.approx([2 * 4 / 9, 6 * 4 / 9, 6 * 4 / 9])


def test_the_first_update_of_a_stage_flips_no_half_of_the_weights(whole: Path) -> None:
    lines = metrics(whole)
    assert lines[0]["flip_ratio"] > lines[1]["flip_ratio"] > lines[3]["flip_ratio"] > 0


class Timed(bsnn.optim.BSO):
    """A rule that tells time steps apart and does not say how to go on with others."""

    time_steps = 1


def test_a_rule_that_cannot_follow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the flip rule .*:Timed tells time steps apart without saying"):
        train.train(STAGED, tmp_path / "rule", optimizer=Timed)

    def mine(net: Any) -> list:
        binary, real = bsnn.split_parameters(net)
        return [bsnn.optim.TBSO(binary, time_steps=3), torch.optim.SGD(real, lr=0.1)]

    with pytest.raises(UserError, match="made an optimizer with time_steps=3; expected that of the first stage"):
        train.train(STAGED, tmp_path / "function", optimizer=mine)
    config = dataclasses.replace(STAGED, stages=({"epochs": 1, "learning_rate": 1.0},))
    with pytest.raises(UserError, match="a stage changes learning_rate, and the optimizers are those of your own"):
        train.train(config, tmp_path / "rate", optimizer=mine)


# Stop and resume.


@pytest.mark.parametrize("batches", [1, 3, 4, 9, 15, 17])
def test_a_killed_run_ends_with_the_same_bits(
    batches: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Epochs have 3, 6, 6 and 3 batches: 3 and 15 lie exactly between two stages.
    out = tmp_path / "run"
    stop_after(monkeypatch, batches)
    with pytest.raises(Killed):
        train.train(STAGED, out, checkpoint_minutes=0)
    monkeypatch.undo()
    assert last_state(out)["place"][2] == batches
    torch.manual_seed(99)
    train.train(STAGED, out, resume=True)
    assert_same_run(whole, out)


# What comes of the run.


def test_a_finished_run_is_that_of_its_last_stage(whole: Path, capfd) -> None:
    trained = load_network(whole)
    assert (trained.time_steps, trained.spec.shape, trained.config) == (3, (1, 8, 8), STAGED)
    assert evaluate_run(whole)["test_accuracy"] == metrics(whole)[-1]["test_accuracy"]
    out = whole / "model.bsnn"
    assert cli.main(["export", str(whole), "--out", str(out)]) == 0
    assert bsnn.load(out).time_steps == 3
    assert cli.main(["report", str(whole)]) == 0
    page = (whole / "report.html").read_text()
    assert "stage 1 of 3: epochs 1 to 1, time_steps=1, image_size=6" in page
    assert "--stages" in page
    assert "warning" not in capfd.readouterr().err


def test_an_early_stage_is_measured_as_it_was_trained(tmp_path: Path, monkeypatch, capfd) -> None:
    out = tmp_path / "run"
    stop_after(monkeypatch, 4)
    with pytest.raises(Killed):
        train.train(STAGED, out)
    monkeypatch.undo()
    capfd.readouterr()
    trained = load_network(out)
    assert (trained.time_steps, trained.spec.shape) == (1, (1, 6, 6))
    assert "has finished 1 of 4 epochs; its network is that of stage 1 of 3: epochs 1 to 1" in capfd.readouterr().err
    assert evaluate_run(out)["test_accuracy"] == metrics(out)[0]["test_accuracy"]


def test_a_model_file_of_an_early_stage_does_not_outlive_it(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "run"
    stop_after(monkeypatch, 4)
    with pytest.raises(Killed):
        train.train(STAGED, out)
    monkeypatch.undo()
    (out / "model.bsnn").write_bytes(b"of stage 1")
    train.train(STAGED, out, resume=True)
    assert not (out / "model.bsnn").exists()


def test_the_banner_names_every_value_that_changes() -> None:
    config = dataclasses.replace(STAGED, epochs=3, stages=({"epochs": 1, "image_size": 6}, {"epochs": 1}))
    assert described(config) == [
        "stage 1 of 3: epochs 1 to 1, image_size=6",
        "stage 2 of 3: epochs 2 to 2, images at full size",
        "stage 3 of 3: epochs 3 to 3, images at full size",
    ]


def test_the_result_is_chosen_among_the_epochs_of_the_last_stage(tmp_path: Path) -> None:
    changes = {"validation_samples": 40, "select": "validation", "early_stopping": 1, "learning_rate": 0.0}
    stages = ({"epochs": 3, "image_size": 6},)
    config = dataclasses.replace(TINY, train_samples=40, epochs=8, **changes, stages=stages, gamma=1e9)
    result = train.train(config, tmp_path / "run")
    # Nothing is learned, so nothing gets better; only the last stage may end early.
    assert (result["selected_epoch"], result["epochs"]) == (4, 5)


def test_a_callback_may_end_a_run_in_an_early_stage(tmp_path: Path) -> None:
    class Stop:
        def on_epoch(self, trainer: Trainer, line: Any) -> None:
            trainer.stop("enough")

    config = dataclasses.replace(STAGED, validation_samples=40, select="validation")
    result = train.train(config, tmp_path / "run", callbacks=[Stop()])
    assert (result["epochs"], result["stopped"]) == (1, "enough")
    assert evaluate_run(tmp_path / "run")["test_accuracy"] == result["test_accuracy"]
    assert train.train(config, tmp_path / "run", resume=True)["finished_before"]
