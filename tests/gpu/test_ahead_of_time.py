"""Every kernel becomes machine code for an A100 and an H100, without a GPU, and no register is spilled."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_kernels.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.timeout(600)
def test_kernels_compile_without_spilled_registers() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, SCRIPT, "--check"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
