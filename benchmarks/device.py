"""What networks take on a bare Cortex-M4: RAM and flash by the linker, and instructions per prediction under qemu.

    python benchmarks/device.py

Needs arm-none-eabi-gcc and qemu-system-arm. Networks are untrained, with random statistics, and inputs are random;
trained networks may fire more or less, which changes the instructions. The digits model that ships with the package is
run on test images. Nothing depends on the machine but the version of the compiler. Writes results/device.json.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import bsnn
from bsnn.data.dataset import Kind
from bsnn.data.spec import DataSpec
from bsnn.deploy.codec import read
from bsnn.deploy.formats.c import export_c

RESULTS = Path(__file__).parent / "results" / "device.json"
PLAN = (32, "pool", 64, "pool", 128, "pool", 256)


class Case(NamedTuple):
    """A network, and what it takes."""

    net: nn.Module
    kind: Kind
    shape: tuple[int, ...]
    time_steps: int


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return {
        "speech-commands-small": Case(bsnn.models.vgg(PLAN, in_channels=1), "sound", (1, 32, 32), 4),
        "cifar10-narrow, T = 4": Case(bsnn.models.vgg(PLAN), "image", (3, 32, 32), 4),
        "events of 2 × 48 × 48, T = 10": Case(bsnn.models.vgg(PLAN, in_channels=2), "event", (10, 2, 48, 48), 10),
        "vgg11": Case(bsnn.models.vgg11(), "image", (3, 32, 32), 4),
        "resnet18, a quarter of the width": Case(bsnn.models.resnet18(width=0.25), "image", (3, 32, 32), 4),
    }


def measure(model: Path, samples: np.ndarray | None = None) -> dict[str, Any]:
    """Exports a model file, builds it and runs it."""
    with tempfile.TemporaryDirectory() as folder:
        figures = export_c(read(model), Path(folder), samples)
        program = Path(folder) / "cortex-m"
        counted = {}
        for level in ("-Os", "-O2"):
            command = ["make", "-B", "-C", str(program), "run", f"CFLAGS={level}"]
            output = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ).stdout
            assert "wrong outputs: 0" in output
            counted[level] = int(re.findall(r"instructions per prediction: (\d+)", output)[0])
            linked = int(re.findall(r"\.bss\s+(\d+)", output)[0]) - 4  # the program's own counter
            assert linked == figures["ram_bytes"]
    keys = ("ram_bytes", "input_bytes", "stream_ram_bytes", "flash_bytes", "constant_bytes", "code_bytes")
    return {key: figures[key] for key in keys} | {"instructions": counted}


def main() -> None:
    networks = {"digits": measure(bsnn.zoo.path("digits"), bsnn.data.digits("test").samples[:8])}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases().items():
            with bsnn.estimating_statistics(case.net):
                bsnn.predict(case.net, torch.randn(4, *case.shape[-3:]), 2)
            channels = case.shape[-3]
            scale = {"sound": 1.0, "image": 255.0, "event": 8.0}[case.kind]
            spec = DataSpec(name, case.kind, (), case.shape, (0.4,) * channels, (0.25,) * channels, scale)
            path = Path(folder) / "model.bsnn"
            bsnn.export(case.net, path, spec=spec, time_steps=case.time_steps)
            networks[name] = measure(path)
            print(name, networks[name], flush=True)
    version = subprocess.run(["arm-none-eabi-gcc", "--version"], check=True, capture_output=True, text=True).stdout
    result = {
        "command": "python benchmarks/device.py",
        "versions": {"bsnn": bsnn.__version__, "arm-none-eabi-gcc": version.splitlines()[0]},
        "networks": networks,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
