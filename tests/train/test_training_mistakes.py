"""Commands that cannot work are refused in one line that says what to do."""

from pathlib import Path

import pytest
from training_runs import TINY_OPTIONS, last_state, run_command

import bsnn
from bsnn import cli
from bsnn.train.run import RunDirectory


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "{finished}"], "holds a run already; go on with --resume, or choose another --out"),
        (["--out", "{finished}", "--resume", "--seed", "3"], "the run there was started with --seed 0 (now 3)"),
        (
            ["--out", "{finished}", "--resume", "--dataset", "cifar10"],
            "the run there trains on digits, not on cifar10; give the recipe and the --dataset that it was",
        ),
        (["--plan", "4"], "plan: received 4; expected channels of two layers or more"),
        (["--plan", "0,4"], "argument --plan: received '0,4'; expected channels, with pool (of vgg), max"),
        (
            ["--dataset", "folder", "--data", "{finished}", "--image-size", "1000000"],
            "training needs about 128,000.0 GB",
        ),
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
        (["--plan", "32,x"], "argument --plan: received '32,x'; expected channels, with pool (of vgg), max"),
        (
            ["--gradient", "bp"],
            "gradient: received 'bp'; expected one of ottt, ndot, sltt, bptt, bptt-full, or module:Name for your own",
        ),
        (
            ["--model", "vgg12"],
            "model: received 'vgg12'; expected one of vgg11, resnet18, resnet18-released, vgg, residual, or module:",
        ),
        (["--train-samples", "2000"], "train_samples: received 2000; expected at most the 1438 there are to train on"),
        (["--select", "validation"], "select: received validation without held-out samples; set validation_samples"),
        (["--early-stopping", "3"], "early_stopping: received 3 without held-out samples; set validation_samples"),
        (["--final-test", "no"], "final_test: received no without held-out samples; set validation_samples"),
        (["--select", "test", "--validation-samples", "9"], "which keep the test set for the end; expected validation"),
        (["--cutout", "9"], "cutout: received a square of 9 pixels for digits, whose samples are 8 × 8; expected one"),
        (["--leak", "2"], "leak: received 2.0; expected a number, 0 to 1"),
        (["--learning-rate", "-0.1"], "learning_rate: received -0.1; expected a number, at least 0"),
        (["--no-such-field", "2"], "unrecognized arguments: --no-such-field 2"),
        (["--init-from", "/nowhere"], "init_from: /nowhere does not exist; expected a run directory or a checkpoint"),
        (["--init-from", "{finished}/config.json"], "config.json: received"),
        (["--init-from", "{finished}", "--plan", "8,8"], "init_from: expected the same network; it holds another"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, finished: Path, tmp_path: Path, capfd) -> None:
    given = [option.format(finished=finished) for option in options]
    out = [] if "--out" in given else ["--out", str(tmp_path / "run")]
    status, error = run_command(capfd, "train", "digits", *TINY_OPTIONS, *given, *out)
    assert status == 2
    assert message in error
    assert not (tmp_path / "run").exists()


def test_an_unknown_recipe_and_a_folder_without_a_run(tmp_path: Path, capfd) -> None:
    assert run_command(capfd, "train", "cifar") == (
        2,
        "bsnn: recipe: received 'cifar'; expected one of those that `bsnn recipes` lists.",
    )
    status, message = run_command(capfd, "evaluate", str(tmp_path))
    assert status == 2
    assert "has no checkpoint of a finished epoch; expected the folder of a run" in message
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


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--optimizer", "bso", "--bias-correction", "yes"], "--bias-correction"),
        (["--optimizer", "sigma", "--gamma", "2", "--eps", "1e-3"], "--eps"),
    ],
)
def test_a_setting_that_the_rule_does_not_take_is_refused(options: list[str], option: str, tmp_path, capsys) -> None:
    assert cli.main(["train", "digits", *options, "--out", str(tmp_path / "run")]) == 2
    assert f"bsnn: {option}: the flip rule {options[1]} does not take it" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
