"""The programs in examples/ run, and learn what they say they learn."""

import dataclasses
import json
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import bsnn
from bsnn import cli

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# What each prints last as a percentage, at least.
LEARNED = {
    "digits": 90, "own_network": 90, "own_data": 90, "own_rule": 55, "own_neuron": 55, "own_trace": 65, "callbacks": 90,
    "many_processes": 90, "stream": 65, "device": 65,
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNED)
def test_an_example_runs_and_learns(name: str, capfd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BSNN_CACHE", str(tmp_path))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    output = capfd.readouterr().out
    found = re.findall(r"test accuracy ([\d.]+)%|([\d.]+)% of the unlabeled", output)
    assert float("".join(found[-1])) >= LEARNED[name], output


def test_the_readme_lists_every_example() -> None:
    listed = re.findall(r"^\| `(\w+)\.py`", (EXAMPLES / "README.md").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert set(LEARNED) <= set(listed)


# What `bsnn train digits` is given to train with a part that an example defines; what of it the report shows; whether
# the network can be deployed.
OWN_PARTS = {
    "own_network": (["--model", "own_network:build"], "own_network:build", True),
    "own_rule": (["--optimizer", "own_rule:Patient", "--gamma", "0.5", "--plan", "4,4"], "Patient", True),
    "own_neuron": (["--neuron", "own_neuron:Refractory", "--plan", "4,4"], "own_neuron:Refractory", False),
    "own_trace": (["--gradient", "own_trace:Slow", "--plan", "4,4"], "own_trace:Slow", True),
}


@pytest.mark.parametrize("name", OWN_PARTS)
def test_the_command_line_takes_a_part_of_the_users_own(name: str, tmp_path: Path, capfd, monkeypatch) -> None:
    options, shown, deployable = OWN_PARTS[name]
    monkeypatch.chdir(EXAMPLES)
    small = ["--train-samples", "64", "--batch-size", "32", "--epochs", "1"]
    run = str(tmp_path / "run")
    command = ["train", "digits", *options, *small, "--out", run]
    assert cli.main([*command, "--json"]) == 0
    trained = json.loads(capfd.readouterr().out)["test_accuracy"]
    assert cli.main([*command, "--resume"]) == 0
    assert cli.main(["report", run]) == 0
    assert shown in (tmp_path / "run" / "report.html").read_text()
    capfd.readouterr()
    assert cli.main(["evaluate", run, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["test_accuracy"] == trained
    again = tmp_path / "again.bsnn"
    assert cli.main(["export", run, "--out", str(again)]) == (0 if deployable else 2)
    assert again.exists() == deployable == (tmp_path / "run" / "model.bsnn").exists()


def test_the_loggers_of_the_callback_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, list[Any]] = {"wandb": [], "mlflow": []}
    wandb, mlflow = types.ModuleType("wandb"), types.ModuleType("mlflow")
    run = types.SimpleNamespace(log=lambda values, step: logged["wandb"].append((step, values)))
    vars(wandb)["init"] = lambda project, config: (logged["wandb"].append(config), run)[1]
    vars(mlflow)["log_params"] = logged["mlflow"].append
    vars(mlflow)["log_metrics"] = lambda values, step: logged["mlflow"].append((step, values))
    for module in (wandb, mlflow):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    example = runpy.run_path(str(EXAMPLES / "callbacks.py"))
    config = dataclasses.replace(bsnn.recipe("digits"), plan=(4, 4), train_samples=64, epochs=2)
    bsnn.train.train(config, tmp_path, callbacks=[example["WeightsAndBiases"](), example["MLflow"]()])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    numbers = [{key: value for key, value in line.items() if isinstance(value, int | float)} for line in lines]
    assert {"test_accuracy", "train_loss", "flip_ratio"} <= set(numbers[0])
    for name in ("wandb", "mlflow"):
        assert logged[name] == [dataclasses.asdict(config), (1, numbers[0]), (2, numbers[1])]
