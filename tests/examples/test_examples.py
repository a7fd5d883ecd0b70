"""The programs in examples/ run, and learn what they say they learn."""

import re
import runpy
from pathlib import Path

import pytest

from bsnn import cli

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# What each prints last as a percentage, at least.
LEARNED = {
    "digits": 90,
    "own_network": 90,
    "own_data": 90,
    "own_rule": 55,
    "many_processes": 90,
    "stream": 65,
    "device": 65,
}


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


def test_the_command_line_trains_reports_and_exports_a_rule_of_the_users_own(
    tmp_path: Path, capfd, monkeypatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    small = ["--plan", "4,4", "--train-samples", "64", "--batch-size", "32", "--epochs", "1"]
    assert (
        cli.main(
            ["train", "digits", "--optimizer", "own_rule:Patient", "--gamma", "0.5", *small, "--out", str(tmp_path)]
        )
        == 0
    )
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "Patient" in (tmp_path / "report.html").read_text()
    assert cli.main(["evaluate", str(tmp_path)]) == 0
    assert cli.main(["export", str(tmp_path), "--out", str(tmp_path / "again.bsnn")]) == 0
