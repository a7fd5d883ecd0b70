"""A bare Cortex-M4: the linker's bytes are those that were computed, and qemu computes the golden vectors."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.formats.c import export_c

COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
HERE = Path(__file__).with_name("cortex_m")
FLAGS = ("-mcpu=cortex-m4", "-mthumb", "-Os", "-std=gnu99", "-ffunction-sections", "-fdata-sections")
pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not installed")


def sections(file: Path) -> dict[str, int]:
    """Bytes of each section."""
    listing = subprocess.run(["arm-none-eabi-size", "-A", file], check=True, capture_output=True, text=True).stdout
    return {name: int(size) for name, size in re.findall(r"^(\.\S+)\s+(\d+)", listing, re.MULTILINE)}


def build(folder: Path) -> Path:
    """The program that runs the golden vectors, and model.o."""
    program = folder / "network.elf"
    sources = [folder / "model.c", folder / "engine.c", HERE / "start.c"]
    link = ["-T", HERE / "memory.ld", "-nostartfiles", "-Wl,--gc-sections", "-lc", "-lgcc", "-o", program]
    subprocess.run([COMPILER, *FLAGS, f"-I{folder}", *sources, *link], check=True)
    subprocess.run([COMPILER, *FLAGS, f"-I{folder}", "-c", sources[0], "-o", folder / "model.o"], check=True)
    return program


def code(program: Path) -> int:
    """Bytes of code, without that of start.c."""
    symbols = subprocess.run(["arm-none-eabi-nm", "-S", program], check=True, capture_output=True, text=True).stdout
    own = re.findall(r"^\S+ (\S+) . (?:reset|print_number|call_host)$", symbols, re.MULTILINE)
    return sections(program)[".text"] - sum(int(size, 16) for size in own)


def residual(path: Path) -> Path:
    torch.manual_seed(0)
    net = bsnn.models.resnet18(num_classes=3, in_channels=2, width=0.0625)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(4, 2, 33, 33), 3)
    bsnn.export(net, path, input_shape=(2, 33, 33), time_steps=3)
    return path


@pytest.fixture(scope="module", params=["digits", "residual"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("cortex_m")
    digits = request.param == "digits"
    result = export_c(read(bsnn.digits_model() if digits else residual(folder / "model.bsnn")), folder)
    return result, build(folder)


def test_ram_is_what_the_linker_places(built: tuple[dict[str, Any], Path]) -> None:
    result, program = built
    placed = sections(program)
    assert placed[".bss"] + placed.get(".data", 0) == result["ram_bytes"]


def test_constants_are_what_the_compiler_makes(built: tuple[dict[str, Any], Path]) -> None:
    result, program = built
    found = sections(program.with_name("model.o"))
    constants = sum(-(-size // 4) * 4 for name, size in found.items() if name.startswith(".rodata"))
    assert constants == result["constant_bytes"]
    assert result["flash_bytes"] == result["constant_bytes"] + result["code_bytes"]


def test_code_is_what_was_measured(built: tuple[dict[str, Any], Path]) -> None:
    """Compilers differ a little; the table was made with version 12.2."""
    result, program = built
    assert result["code_bytes"] == pytest.approx(code(program), rel=0.08)


@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"{EMULATOR} is not installed")
def test_the_golden_vectors_on_the_device(built: tuple[dict[str, Any], Path]) -> None:
    machine = ["-M", "mps2-an386", "-display", "none", "-monitor", "none", "-serial", "none"]
    host = ["-semihosting-config", "enable=on,target=native", "-icount", "shift=0"]
    command = [EMULATOR, *machine, *host, "-kernel", str(built[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "wrong 0\n" in done.stdout + done.stderr
