import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bsnn import UserError, cli
from bsnn.paper.recipes import recipe
from bsnn.train import sweep

TINY = dataclasses.replace(recipe("digits"), plan=(4, 4), train_samples=64, batch_size=32, epochs=1)
OPTIONS = ["--plan", "4,4", "--train-samples", "64", "--batch-size", "32", "--epochs", "1"]


def test_a_grid_is_trained_once_and_tabulated(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sweep"
    grid = ["--sweep", "gamma=1e-7,5e-7", "--sweep", "one-minus-beta1=1e-3,1e-2"]
    command = ["train", "digits", *OPTIONS, *grid, "--out", str(out)]

    # Stopped in the third point, as by Ctrl-C.
    original, calls = sweep.train, iter(range(10))

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(sweep, "train", interrupted)
    assert cli.main(command) == 130
    assert len(json.loads((out / "sweep.json").read_text())["points"]) == 2
    monkeypatch.undo()

    capsys.readouterr()
    assert cli.main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("epoch 1/1") == 2, "the two that were finished are not trained again"
    result = json.loads(captured.out)
    assert json.loads((out / "sweep.json").read_text()) == result
    points = [(p["gamma"], p["one_minus_beta1"]) for p in result["points"]]
    assert points == [(1e-7, 1e-3), (1e-7, 1e-2), (5e-7, 1e-3), (5e-7, 1e-2)]
    for point in result["points"]:
        run = Path(point["run"])
        assert run == out / f"gamma={point['gamma']},one_minus_beta1={point['one_minus_beta1']}"
        config = json.loads((run / "config.json").read_text())["config"]
        assert (config["gamma"], config["one_minus_beta1"]) == (point["gamma"], point["one_minus_beta1"])
        recorded = json.loads((run / "metrics.jsonl").read_text())
        assert recorded["test_accuracy"] == point["test_accuracy"]

    assert cli.main(command) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    table = (out / "sweep.md").read_text()
    assert captured.out == f"{table}\nin {out} (sweep.json, sweep.md)\n"
    assert table.splitlines()[0] == "| gamma | one_minus_beta1 | test accuracy | minutes |"
    assert len(table.splitlines()) == 6


def test_a_point_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, mse_share=1.0, weights="real")
    result = sweep.sweep(config, {"learning_rate": [1e38, 0.1]}, tmp_path)
    first, second = result["points"]
    assert first["test_accuracy"] is None
    assert "is not finite" in first["error"]
    assert second["test_accuracy"] > 0
    assert "| 1e+38         | diverged " in (tmp_path / "sweep.md").read_text()


def test_values_of_every_type(tmp_path: Path) -> None:
    assert cli.train.grid_line("plan=32,pool,64;8") == ("plan", [(32, "pool", 64), (8,)])
    assert cli.train.grid_line("flip=yes,no") == ("flip", [True, False])
    assert cli.train.grid_line("time_steps=2,4,6") == ("time_steps", [2, 4, 6])
    assert cli.train.grid_line("gradient=ottt") == ("gradient", ["ottt"])


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("gama=1", "--sweep: received 'gama=1'; expected FIELD=V1,V2,... with a field of the recipe"),
        ("gamma", "--sweep: received 'gamma'; expected FIELD=V1"),
        ("epochs=1,x", "--sweep epochs: received 'x'; expected a whole number"),
        ("time_steps=1,0", "time_steps: received 0; expected a number, 1 to 65536"),
        ("gradient=ottt,bp", "gradient: received 'bp'; expected one of"),
    ],
)
def test_mistakes_are_found_before_training(grid: str, message: str, tmp_path: Path, capsys) -> None:
    assert cli.main(["train", "digits", *OPTIONS, "--sweep", grid, "--out", str(tmp_path / "s")]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "s").exists()
    with pytest.raises(UserError, match="received 'gama'; expected a field"):
        sweep.sweep(TINY, {"gama": [1]}, tmp_path)
