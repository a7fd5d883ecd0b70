"""The pages are true: their programs run, their commands parse, and their links and paths lead somewhere."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import bsnn
from bsnn import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "src/bsnn/kernels/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page: Path, language: str) -> list[str]:
    """The text between fences that name a language, or none."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [block for named, block in fences if named == language]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page; in the reference also the public names, as in the site."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    names = {f"bsnn.{name}" for name in bsnn.__all__} if page.parent.name == "reference" else set()
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | names


# tests/train runs those of docs/training.md together with its commands.
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page.stem != "training"], ids=lambda page: page.stem
)
def test_every_program_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(block, str(page), "exec"), names)
        if "result" in names:
            assert names["result"].accuracy > 0.9


def test_a_flip_rule_of_your_own_trains_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "extending.md"
    (program,) = (block for block in blocks(page, "python") if "FlipOptimizer" in block)
    (command,) = re.findall(r"`bsnn (train .* --optimizer .*?)`", page.read_text())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rules.py").write_text(program)
    assert cli.main([*command.split(), "--epochs", "1", "--train-samples", "100", "--plan", "4,4"]) == 0


@every_page
def test_every_command_parses(page: Path) -> None:
    lines = [line for language in ("", "console") for block in blocks(page, language) for line in block.splitlines()]
    # What follows two spaces explains the command.
    commands = [re.split(r"  +", line)[0] for line in lines if line.startswith("bsnn ")]
    commands += re.findall(
        r"`(bsnn (?:train|export|predict|inspect|evaluate|report|reproduce|bench) [^`|]*?)`", page.read_text()
    )
    for command in commands:
        if "--help" not in command:
            cli.parser().parse_args(shlex.split(command, comments=True)[1:])


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)(.*?)\)|<img src=\"(.*?)\"", page.read_text()):
        path, _, anchor = "".join(link).partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@every_page
def test_every_path_exists(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|benchmarks|examples|docs)/[\w/.]*)`", page.read_text())
    named += re.findall(r"python (benchmarks/\w+\.py)", page.read_text())
    if page.stem == "design":
        named += [
            f"src/bsnn/{path}" for path in re.findall(r"`(\w+/[\w/]*\.py)`", page.read_text()) if "tests/" not in path
        ]
    assert [path for path in named if not (ROOT / path).exists()] == []
