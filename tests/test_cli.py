import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bso
from bso import cli, demo

ROOT = Path(__file__).resolve().parent.parent


def python_blocks(page: str) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    return blocks


def test_the_examples_of_the_readme_run() -> None:
    for block in python_blocks("README.md"):
        exec(compile(block, "README.md", "exec"), {})


def test_the_example_of_an_own_data_set_learns() -> None:
    (block,) = python_blocks("docs/data.md")
    names: dict = {}
    exec(compile(block, "data.md", "exec"), names)
    assert names["result"].accuracy > 0.9


def test_demo_prints_one_line_of_json_and_learns(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(demo, "CONFIG", dataclasses.replace(demo.CONFIG, epochs=3))
    assert cli.main(["demo", "--seed", "1", "--out", str(tmp_path), "--json"]) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    result = json.loads(output)
    assert result["test_accuracy"] > 0.95
    assert result["train_seconds"] > 0
    assert result["model_bytes"] * 20 < result["real_model_bytes"]
    assert result["training_bytes"] * 2 < result["latent_bptt_training_bytes"]
    text = demo.describe_demo(result)
    assert "test accuracy" in text
    assert "firing rates" in text
    assert "confusion matrix" in (tmp_path / "report.html").read_text()


def test_demo_is_reproducible_from_its_seed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(demo, "CONFIG", dataclasses.replace(demo.CONFIG, epochs=1))
    first, second, other = (demo.run_demo(seed, tmp_path) for seed in (3, 3, 4))
    for result in (first, second, other):
        del result["train_seconds"], result["seed"]
    assert first == second != other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["dmeo"], "invalid choice: 'dmeo'"),
        (["demo", "--seed", "x"], "received 'x'; expected a whole number"),
        (["demo", "--seed", "-1"], "received '-1'; expected a whole number"),
        (["demo", "--sed", "1"], "unrecognized arguments"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_errors_of_a_command_become_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(error: BaseException):
        def run(seed: int, out: Path) -> None:
            raise error

        return run

    for error, status in (
        (bso.UserError("what to do"), 2),
        (FileNotFoundError(2, "gone"), 2),
        (KeyboardInterrupt(), 130),
    ):
        monkeypatch.setattr(demo, "run_demo", fail(error))
        assert cli.main(["demo"]) == status
        assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(demo, "run_demo", fail(RuntimeError("a bug")))
    with pytest.raises(RuntimeError):
        cli.main(["demo"])


def test_a_missing_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import bso.cli; sys.exit(bso.cli.main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "bso: the package torch is missing; install it with: pip install 'bso[train]'\n"


def test_importing_bso_does_not_import_torch() -> None:
    code = "import bso, bso.cli, sys; assert 'torch' not in sys.modules; bso.LIF; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_resolves_and_unknown_ones_do_not() -> None:
    for name in bso.__all__:
        assert getattr(bso, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bso.nothing


def test_python_m_bso_is_bso() -> None:
    done = subprocess.run([sys.executable, "-m", "bso", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"bso {bso.__version__}\n"
