"""A bare Cortex-M4: the linker's bytes are those that were computed, and qemu computes the golden vectors."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sounds import spotter

import bsnn
from bsnn.data.spec import DataSpec
from bsnn.deploy.codec import read
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.schema import Artifact

COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not installed")


def make(folder: Path, goal: str) -> str:
    done = subprocess.run(["make", "-C", folder, goal], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def sections(file: Path) -> dict[str, int]:
    """Bytes of each section."""
    listing = subprocess.run(["arm-none-eabi-size", "-A", file], check=True, capture_output=True, text=True).stdout
    return {name: int(size) for name, size in re.findall(r"^(\.\S+)\s+(\d+)", listing, re.MULTILINE)}


def sizes(program: Path, *names: str) -> int:
    """Bytes of some symbols."""
    symbols = subprocess.run(["arm-none-eabi-nm", "-S", program], check=True, capture_output=True, text=True).stdout
    found = re.findall(rf"^\S+ (\S+) . (?:{'|'.join(names)})$", symbols, re.MULTILINE)
    return sum(int(size, 16) for size in found)


def residual(path: Path) -> Path:
    torch.manual_seed(0)
    net = bsnn.models.resnet18(num_classes=3, in_channels=2, width=0.0625)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(4, 2, 33, 33), 3)
    bsnn.export(net, path, input_shape=(2, 33, 33), time_steps=3)
    return path


def camera(path: Path) -> Path:
    spec = DataSpec("frames", "event", ("a", "b"), (2, 2, 10, 12), (0.5,) * 2, (0.5,) * 2, 8.0, {"sensor": (10, 12)})
    bsnn.export(bsnn.models.vgg((8, "pool", 8), num_classes=2, in_channels=2), path, spec=spec, time_steps=2)
    return path


MODELS: dict[str, Callable[[Path], Artifact]] = {
    "digits": lambda _: read(bsnn.zoo.path("digits")),
    "residual": lambda path: read(residual(path)),
    "sounds": spotter,
    "events": lambda path: read(camera(path)),
}


@pytest.fixture(scope="module", params=list(MODELS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("cortex_m")
    result = export_c(MODELS[request.param](folder / "model.bsnn"), folder / "c")
    folder = folder / "c"
    make(folder / "cortex-m", "network.elf")
    return result, folder / "cortex-m" / "network.elf"


def test_ram_is_what_the_linker_places(built: tuple[dict[str, Any], Path]) -> None:
    result, program = built
    placed = sections(program)
    assert placed[".bss"] + placed.get(".data", 0) - sizes(program, "rounds") == result["ram_bytes"]


def test_constants_are_what_the_compiler_makes(built: tuple[dict[str, Any], Path]) -> None:
    result, program = built
    flags = ["-mcpu=cortex-m4", "-mthumb", "-Os", "-fdata-sections"]
    compiled, constants = program.with_name("source.o"), 0
    for source in (
        file for name in ("model.c", "sound.c", "listen.c", "events.c") if (file := program.parents[1] / name).exists()
    ):
        subprocess.run([COMPILER, *flags, "-c", source, "-o", compiled], check=True)
        found = sections(compiled)
        constants += sum(-(-size // 4) * 4 for name, size in found.items() if name.startswith(".rodata"))
    assert constants == result["constant_bytes"]
    assert result["flash_bytes"] == result["constant_bytes"] + result["code_bytes"]


def test_code_is_what_was_measured(built: tuple[dict[str, Any], Path]) -> None:
    """Compilers differ a little; the table was made with version 12.2."""
    result, program = built
    own = sizes(
        program, "reset", "print_number", "call_host", "count_round", "ticks", "check_hearing", "check_listening"
    )
    assert result["code_bytes"] == pytest.approx(sections(program)[".text"] - own, rel=0.08)


def test_a_threshold_is_code_too(tmp_path: Path) -> None:
    digits, counted, built = read(bsnn.zoo.path("digits")), [], []
    for name, artifact in (("without", digits), ("with", digits.rejecting(1.5))):
        counted.append(export_c(artifact, tmp_path / name)["code_bytes"])
        compiled = tmp_path / name / "model.o"
        flags = ["-mcpu=cortex-m4", "-mthumb", "-Os", "-ffunction-sections"]
        subprocess.run([COMPILER, *flags, "-c", tmp_path / name / "model.c", "-o", compiled], check=True)
        built.append(sum(size for section, size in sections(compiled).items() if section.startswith(".text")))
    assert 0 <= (counted[1] - counted[0]) - (built[1] - built[0]) <= 48


@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"{EMULATOR} is not installed")
def test_the_golden_vectors_on_the_device(built: tuple[dict[str, Any], Path]) -> None:
    output = make(built[1].parent, "run")
    assert "wrong outputs: 0\n" in output
    if built[1].parent.with_name("sound.c").exists():
        assert "wrong inputs: 0\n" in output
        assert "wrong words: 0\n" in output
        assert int(re.findall(r"instructions per sound: (\d+)", output)[0]) < 10_000_000
    assert int(re.findall(r"instructions per prediction: (\d+)", output)[0]) > 100_000
