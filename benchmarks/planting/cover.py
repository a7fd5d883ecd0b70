"""Which tests run which lines: the suite, file by file, under coverage.py with one context per test.

The processes that a test starts are measured too, if they end by themselves. A file's record is used again as long as
neither the test file nor any source file that its tests run has changed.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from planting.tree import Ended, Tree, digest, run_tests

_SETTINGS = """[run]
source = {source}
data_file = {data}
parallel = true
sigterm = true
context = ${{PYTEST_CURRENT_TEST-}}
"""
# Python runs it at the start of every process that finds it in its path.
_IN_EVERY_PROCESS = "import coverage\ncoverage.process_startup()\n"


@dataclass
class Cover:
    """Seconds of each test that passes, and the tests that run each line of each file."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Adds the record of a test file."""
        self.failed |= record["failed"]
        self.seconds |= {name: spent for name, spent in record["seconds"].items() if name not in record["failed"]}
        for path, lines in record["lines"].items():
            for line, numbers in lines.items():
                names = {record["tests"][number] for number in numbers}
                self.lines[path][int(line)] |= names - record["failed"].keys()

    def tests_of(self, path: str, first: int, last: float) -> set[str]:
        """The tests that run one of these lines."""
        return {name for line, names in self.lines[path].items() if first <= line <= last for name in names}


class _Contexts:
    """A plugin of pytest that tells coverage.py which test runs."""

    def __init__(self, settings: Path) -> None:
        import coverage

        self._coverage = coverage.Coverage(config_file=str(settings), context=None)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        result = yield
        self._coverage.switch_context("")
        return result

    def finish(self) -> None:
        self._coverage.stop()
        self._coverage.save()


def measure(tree: Tree, work: Path, folders: list[str], *, only: list[str] | None = None) -> Cover:
    """The cover of all test files, or of some, and of the examples in docstrings."""
    records = work / "cover"
    records.mkdir(parents=True, exist_ok=True)
    cover = Cover()
    sources = [path for folder in folders for path in (tree.path / folder).rglob("*.py")]
    examples = [path for path in sources if ">>> " in path.read_text()]
    found = [*tree.path.glob("tests/**/test_*.py"), *examples]
    files = sorted(str(path.relative_to(tree.path)) for path in found)
    for number, file in enumerate(files, 1):
        if only and not any(file.startswith(part) for part in only):
            continue
        kept = records / f"{file.replace('/', '.')}.json"
        record = json.loads(kept.read_text()) if kept.exists() else None
        if record is None or not _still_true(record, tree, file):
            record, ended = _measure(tree, work, folders, file)
            kept.write_text(json.dumps(record))
            print(
                f"[{number}/{len(files)}] {file}: {len(record['seconds'])} tests in {ended.seconds:.0f} s", flush=True
            )
            for name, why in record["failed"].items():
                print(f"  not used, {name}: {why}", flush=True)
        cover.add(record)
    return cover


def _still_true(record: dict[str, Any], tree: Tree, file: str) -> bool:
    """Also if the lines of a source file that its tests run have moved, the record is of no use."""
    used = {file: record["digest"], **record["sources"]}
    return all((tree.path / path).exists() and _digest(tree, path) == value for path, value in used.items())


def _digest(tree: Tree, path: str) -> str:
    return digest((tree.path / path).read_bytes())


def _measure(tree: Tree, work: Path, folders: list[str], file: str) -> tuple[dict[str, Any], Ended]:
    data = work / "data"
    data.mkdir(exist_ok=True)
    for old in data.iterdir():
        old.unlink()
    settings = data / "settings"
    source = ",".join(str(tree.path / folder) for folder in folders)
    settings.write_text(_SETTINGS.format(source=source, data=data / "coverage"))
    (data / "sitecustomize.py").write_text(_IN_EVERY_PROCESS)
    import coverage

    # coverage.py itself may lie outside of the virtual environment.
    paths = os.pathsep.join([str(data), str(Path(coverage.__file__).parents[1])])
    ended = run_tests(
        tree,
        [file],
        limit=1800,
        options=(),
        environment={"COVERAGE_PROCESS_START": str(settings), "PYTHONPATH": paths},
        around=lambda: _Contexts(settings),
    )
    report = ended.report
    if ended.status not in (0, 1):
        report["failed"][file] = f"pytest ended with {ended.status}: {ended.output[-300:]!r}"
    tests = sorted(report["seconds"])
    lines = _lines(data, tree, {name: number for number, name in enumerate(tests)})
    return {
        "digest": _digest(tree, file),
        "sources": {path: _digest(tree, path) for path in lines},
        "seconds": report["seconds"],
        "failed": report["failed"],
        "tests": tests,
        "lines": lines,
    }, ended


def _lines(data: Path, tree: Tree, numbers: dict[str, int]) -> dict[str, dict[int, list[int]]]:
    import coverage

    found: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path in data.glob("coverage.*"):
        part = coverage.CoverageData(str(path))
        try:
            part.read()
        except coverage.exceptions.DataError:  # a process that was killed
            continue
        for measured in part.measured_files():
            name = str(Path(measured).relative_to(tree.path))
            for line, contexts in part.contexts_by_lineno(measured).items():
                tests = {context.rpartition(" (")[0] if context.endswith(")") else context for context in contexts}
                found[name][line] |= {numbers[test] for test in tests if test in numbers}
    return {name: {line: sorted(of) for line, of in lines.items() if of} for name, lines in found.items()}
