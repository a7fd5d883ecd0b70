import signal
import sys
import time

import processes

_SHOW = "import signal as s; print(s.getsignal(s.SIGINT) is s.default_int_handler, s.getsignal(s.SIGTERM) is s.SIG_DFL)"


def test_children_can_be_interrupted_however_the_tests_were_started() -> None:
    with processes.running([sys.executable, "-c", _SHOW]) as process:
        assert processes.finish(process) == ("True True\n", "")


def test_nothing_outlives_its_block() -> None:
    wait = "import time; time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}]); {wait}"
    with processes.running([sys.executable, "-c", code]) as process:
        processes.wait_for(lambda: len(processes.children(process.pid)) == 1, process)
        (child,) = processes.children(process.pid)
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while child in processes.children(1):  # where orphans go; one that is being killed is there for a moment
        assert time.monotonic() < deadline
        time.sleep(0.01)
