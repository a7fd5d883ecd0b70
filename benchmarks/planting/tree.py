"""A copy of the repository that faults are planted in, and pytest in a child process of its own that runs there.

The parent has imported torch and pytest but never `bsnn`, so that a child, which is a fork, starts at once and imports
the library, with its fault, afresh. Processes that tests start see the fault too.
"""

import ctypes
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Of a child, in pages; a limit of its address space would be in the way of the address sanitizer.
_MOST_PAGES = 8 * 2**30 // os.sysconf("SC_PAGESIZE")
# What the library and its tests import; half a minute that no child spends again.
_PACKAGES = (
    "torch._dynamo", "torch.distributed", "torch.utils.tensorboard", "scipy.io", "scipy.signal", "PIL.Image",
    "safetensors.torch", "soundfile", "matplotlib.figure", "tqdm", "requests", "pooch",
)  # fmt: skip


def preload() -> None:
    """Imports, once, what every child needs."""
    for name in _PACKAGES:
        with suppress(ImportError):
            importlib.import_module(name)


def digest(content: bytes) -> str:
    """A short name of some content."""
    return hashlib.sha256(content).hexdigest()[:16]


def end_with_parent() -> None:
    """Called in a child: an interrupted run leaves nothing behind that goes on alone."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


class Tree:
    """A copy of every file of the repository that Git knows or would add, and of the libraries in C."""

    def __init__(self, path: Path) -> None:
        self.path = path
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
        libraries = [str(library.relative_to(ROOT)) for library in ROOT.glob("src/bsnn/**/*.so")]
        if not libraries:
            sys.exit("no C libraries are in src/bsnn, so the tests of C would be skipped; run `make .venv/.ready`")
        names += libraries
        shutil.rmtree(path, ignore_errors=True)
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name)
        (path / ".venv").symlink_to(sys.prefix)
        # A child writes no bytecode, so all of it is written now.
        subprocess.run([sys.executable, "-m", "compileall", "-q", "src", "tests"], cwd=path, check=True)

    @contextmanager
    def planted(self, name: str, source: str) -> Iterator[None]:
        """The tree with another source in one file. Its time is far from the true one, so that no bytecode fits it."""
        path = self.path / name
        content, time_of = path.read_bytes(), path.stat().st_mtime
        try:
            path.write_text(source)
            os.utime(path, (time_of, time_of + 10_000))
            yield
        finally:
            path.write_bytes(content)
            os.utime(path, (time_of, time_of))


@dataclass(frozen=True)
class Ended:
    """How a child ended: pytest's exit status, or None if it was killed; and what its tests reported."""

    status: int | None
    report: dict[str, Any]
    output: str
    seconds: float


class Reporter:
    """A plugin of pytest: runs the tests that are wanted, in their order, and reports failures and durations."""

    def __init__(self, wanted: list[str] | None, path: Path) -> None:
        self.wanted, self.path = wanted, path
        self.report: dict[str, Any] = {"seconds": {}, "failed": {}, "ran": []}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """A fault may change which cases a test has; one that is gone is not run."""
        if self.wanted is not None:
            place = {name: number for number, name in enumerate(self.wanted)}
            items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes each phase of each test."""
        seconds = self.report["seconds"]
        seconds[report.nodeid] = round(seconds.get(report.nodeid, 0.0) + report.duration, 3)
        if report.failed:
            self._failed(report.nodeid, report.longrepr)
        if report.skipped:
            self.report["failed"].setdefault(report.nodeid, "skipped")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a module that cannot be imported."""
        if report.failed:
            self._failed(report.nodeid, report.longrepr)

    def _failed(self, name: str, why: Any) -> None:
        crash = getattr(why, "reprcrash", None)
        text = (crash.message if crash else str(why)).strip()
        self.report["failed"].setdefault(name, text.splitlines()[0][:300] if text else "")

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Written before each test: a child that is killed has said which test it was in."""
        self.report["ran"].append(item.nodeid)
        self.path.write_text(json.dumps(self.report))

    def pytest_sessionfinish(self) -> None:
        """Writes the whole report."""
        self.path.write_text(json.dumps(self.report))


def run_tests(
    tree: Tree,
    files: list[str],
    *,
    tests: list[str] | None = None,
    limit: float,
    options: tuple[str, ...] = ("-x",),
    environment: dict[str, str] | None = None,
    around: Callable[[], Any] = lambda: None,
) -> Ended:
    """Runs test files, or some tests of them, in a child process.

    Args:
        tree: Where to run.
        files: Test files, relative to the tree.
        tests: Which of their tests to run, in which order; all by default.
        limit: Seconds until the child is killed, with all that it has started.
        options: For pytest.
        environment: Variables for the child and for what it starts.
        around: Called in the child before pytest; may return a plugin.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bsnn-faults-", ignore_cleanup_errors=True) as folder:
        report, log = Path(folder, "report.json"), Path(folder, "log")
        child = os.fork()
        if not child:
            _run_in_child(tree, files, tests, options, environment or {}, around, Path(folder))
        status = _wait(child, started + limit)
        found: dict[str, Any] = {"seconds": {}, "failed": {}, "ran": []}
        with suppress(OSError, ValueError):
            found = json.loads(report.read_text())
        output = log.read_text(errors="replace") if log.exists() else ""
    return Ended(status, found, output, time.monotonic() - started)


def _run_in_child(
    tree: Tree,
    files: list[str],
    tests: list[str] | None,
    options: tuple[str, ...],
    environment: dict[str, str],
    around: Callable[[], Any],
    folder: Path,
) -> None:
    status = 70
    try:
        os.setsid()
        end_with_parent()
        with open(folder / "log", "wb") as log, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.chdir(tree.path)
        paths = [str(tree.path / "src"), environment.pop("PYTHONPATH", "")]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join(filter(None, reversed(paths))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder),
            **environment,
        }
        tempfile.tempdir = None
        sys.dont_write_bytecode = True
        benchmarks = {str(ROOT / "benchmarks"), str(ROOT / "src")}
        sys.path[:] = [str(tree.path / "src"), *(path for path in sys.path if path not in benchmarks)]
        plugins = [Reporter(tests, folder / "report.json"), *filter(None, [around()])]
        arguments = ["-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "tests"), *options, *files]
        status = int(pytest.main(arguments, plugins=plugins))
        for plugin in plugins[1:]:
            plugin.finish()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _wait(child: int, deadline: float) -> int | None:
    """The exit status of a child (negative: the signal that ended it), or None if it took too long or too much."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _kill(_descendants_in_session(child))
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline or _pages(child) > _MOST_PAGES:
            _kill([*_descendants(child), child])
            os.waitpid(child, 0)
            return None
        time.sleep(0.05)


def _pages(process: int) -> int:
    """What a process holds in memory."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return 0


def _kill(processes: list[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, int, int]]:
    """Every process: its number, its parent's, its session's."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, _, session, *_ = stat.read_text().rpartition(")")[2].split()
            yield int(stat.parent.name), int(parent), int(session)


def _descendants(process: int) -> list[int]:
    below = [number for number, parent, _ in _processes() if parent == process]
    return [*below, *(further for child in below for further in _descendants(child))]


def _descendants_in_session(leader: int) -> list[int]:
    """What a child has left behind."""
    return [number for number, _, session in _processes() if session == leader and number != leader]
