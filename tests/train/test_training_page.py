"""The commands and the programs in docs/training.md run."""

import re
import shlex
from pathlib import Path

import pytest

from bsnn import cli


# torch's own, from importing its compiler and from tracing
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
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
    runnable = (
        ["train", "digits"],
        ["evaluate", "runs/first"],
        ["evaluate", "runs/held-out"],
        ["report", "runs/first"],
        ["recipes"],
    )
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
    made = {"first", "tuned", "grid", "python", "sigma", "adamw", "residual", "held-out", "staged", "growing", "taught"}
    assert {p.name for p in (tmp_path / "runs").iterdir()} == made
