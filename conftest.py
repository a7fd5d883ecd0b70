"""Names that the docstring examples use without importing, and one seed for every test."""

import functools
import itertools

import pytest


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
