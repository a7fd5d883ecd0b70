"""Processes that tests start: none outlives its test, and nothing waits for one without a limit."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Below the limit of a test, so that what the process has printed is seen.
_LIMIT = 240.0


@contextmanager
def running(command: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a process, on one thread, and kills it with all that it has started when the block is left.

    It can import what lies in this folder, as a test can.
    """
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=variables, start_new_session=True)
    try:
        yield process
    finally:
        _kill(process)
        process.communicate()


def _kill(process: subprocess.Popen[str]) -> None:
    for pid in [*descendants(process.pid), process.pid] if process.poll() is None else []:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Waits for the end of a process; gives its standard output and standard error."""
    try:
        return process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        _kill(process)
        output, errors = process.communicate()
        raise AssertionError(f"no end within {_LIMIT:.0f} seconds; output {output!r}, errors {errors!r}") from None


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits until a condition holds or the process has ended."""
    deadline = time.monotonic() + _LIMIT
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline, f"nothing happened within {_LIMIT:.0f} seconds"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, those that they have started, and so on."""
    below = children(pid)
    return [*below, *(further for child in below for further in descendants(child))]
