"""The script that counts the instructions of a prediction on a Cortex-M4."""

import json
import shutil
import sys
from pathlib import Path

import pytest

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.footprint import on_device

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import device  # pyright: ignore[reportMissingImports]


@pytest.mark.skipif(
    not (shutil.which("arm-none-eabi-gcc") and shutil.which("qemu-system-arm")), reason="no compiler or emulator for it"
)
def test_anyone_can_count_the_instructions_of_a_model(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["device.py", "digits"])
    device.main()
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["inputs"]) == ("digits", "test samples")
    assert found["ram_bytes"] == on_device(read(bsnn.zoo.path("digits"))).ram_bytes
    small, fast = found["instructions"]["-Os"], found["instructions"]["-O2"]
    # results/device.json says how many there were with other samples of the test set.
    assert 3_000_000 < fast < small < 8_000_000
