"""What networks take on a bare Cortex-M4: RAM and flash by the linker, and instructions per prediction under qemu.

    python benchmarks/device.py                         the table of docs/deploy.md; writes results/device.json
    python benchmarks/device.py MODEL [--data DIR]      your own model file, run or shipped model; prints one line

Needs arm-none-eabi-gcc and qemu-system-arm (Debian: gcc-arm-none-eabi, qemu-system-arm). qemu runs with
`-icount shift=0`, so that an instruction takes one nanosecond of its clock, which SysTick counts. These are
instructions, not cycles, of which a processor takes more. Networks of the table are untrained, with random statistics,
and inputs are random; trained networks may fire more or less, which changes the instructions. The digits model that
ships with the package is run on test images, and MODEL too if the folder of its data is given. Nothing depends on the
machine but the version of the compiler.
"""

import argparse
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
from bsnn.deploy.files import held_out_samples
from bsnn.deploy.formats.c import export_c
from bsnn.zoo.cards import find

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
            # At -O2 a compiler may align more, by a word or two.
            assert linked == figures["ram_bytes"] if level == "-Os" else 0 <= linked - figures["ram_bytes"] <= 8
    keys = ("ram_bytes", "input_bytes", "stream_ram_bytes", "flash_bytes", "constant_bytes", "code_bytes")
    return {key: figures[key] for key in keys} | {"instructions": counted}


def measure_own(model: str, data: str | None) -> dict[str, Any]:
    """A model of the user's own, on samples of its test set if there are any."""
    place = find(model)
    path = place / "model.bsnn" if place.is_dir() else place
    samples = held_out_samples(bsnn.load(path), data, 8) if data or model == "digits" else None
    return {"model": model, "inputs": "random" if samples is None else "test samples"} | measure(path, samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="measure this model file, run or shipped model only")
    parser.add_argument("--data", metavar="DIR", help="where the data of the model is")
    options = parser.parse_args()
    if options.model:
        print(json.dumps(measure_own(options.model, options.data)))
        return
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
