"""Tests of the Triton kernels, which its interpreter runs on CPU tensors: TRITON_INTERPRET=1 pytest tests/gpu."""

import importlib.util
import os

import pytest

FOUND = importlib.util.find_spec("triton") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = ""
    if not FOUND:
        reason = "Triton is not installed"
    elif os.environ.get("TRITON_INTERPRET") != "1":
        reason = "runs apart, with TRITON_INTERPRET=1, because Triton reads that when it is imported"
    for item in items:
        if reason and item.path.parent.name == "gpu" and item.path.name != "test_ahead_of_time.py":
            item.add_marker(pytest.mark.skip(reason=reason))
