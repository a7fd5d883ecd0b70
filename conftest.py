"""What every test and docstring example starts from: a seed, the usual signals, and names that need no import."""

import functools
import importlib.util
import itertools
import signal

import pytest

# Their docstrings cannot be read where Triton is missing.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/bsnn/kernels/triton/_*.py"]


def pytest_configure() -> None:
    """Lets the processes that tests start be interrupted, however this one was started.

    A shell starts background jobs, and some CI systems start everything, with SIGINT ignored. Children inherit what is
    ignored or blocked, but a handler, even one that does nothing, becomes the default in them.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGALRM})


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # two threads that share a busy core wait for each other, a hundred times slower


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict[str, object]) -> None:
    import torch

    import bsnn

    doctest_namespace.update(bsnn=bsnn, torch=torch, nn=torch.nn, functools=functools, itertools=itertools)
