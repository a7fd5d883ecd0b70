"""The exported C: compiles without a warning, and gives the engine's integers, on this machine and on others."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.formats._c_text import comment, string
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.inspection import inspect

# Compilers, what runs their programs here, and what links them.
COMPILERS = {
    "gcc": ("", ""),
    "clang": ("", ""),
    "arm-linux-gnueabihf-gcc": ("qemu-arm", "-static"),
    "riscv64-linux-gnu-gcc": ("qemu-riscv64", "-static"),
}


def check(folder: Path, compiler: str) -> str:
    runner, link = COMPILERS[compiler]
    for program in (compiler, runner or "make", "make"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    command = ["make", "-C", str(folder), "check", f"CC={compiler}", f"RUN={runner}", f"LDFLAGS={link}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_digits_model_on_each_machine(compiler: str, tmp_path: Path) -> None:
    images = bsnn.data.digits("test").samples[:3]
    result = export_c(read(bsnn.zoo.path("digits")), tmp_path / "c", images)
    output = check(tmp_path / "c", compiler)
    labels = bsnn.data.digits("test").labels[:3]
    assert re.findall(r"vector \d: (\d), as expected", output) == [str(label) for label in labels]
    assert "0 of 3 vectors wrong" in output
    assert f"{result['ram_bytes']} bytes of memory" in output
    found = inspect(read(bsnn.zoo.path("digits")))
    assert all(found[key] == result[key] for key in ("weight_bytes", "flash_bytes", "ram_bytes"))
    assert result["weight_bytes"] < result["flash_bytes"] < 256 * 1024
    assert result["ram_bytes"] < 64 * 1024


def test_every_op_survives_the_export(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = bsnn.models.resnet18(num_classes=3, in_channels=2, width=0.0625)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(4, 2, 37, 37), 3)
    classes = ["a", 'quote " and \\', "ünï??="]
    bsnn.export(net, tmp_path / "model.bsnn", input_shape=(2, 37, 37), time_steps=3, classes=classes)
    export_c(read(tmp_path / "model.bsnn"), tmp_path / "c")
    output = check(tmp_path / "c", "gcc")
    assert "0 of 4 vectors wrong" in output


def test_a_changed_weight_is_noticed(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    export_c(read(bsnn.zoo.path("digits")), tmp_path, bsnn.data.digits("test").samples[:1])
    source = (tmp_path / "model.c").read_text()
    changed, number = re.subn(r"(multiplier0\[\d+\] = \{\n)-?\d+", r"\g<1>1", source)
    assert number == 1
    (tmp_path / "model.c").write_text(changed)
    done = subprocess.run(["make", "-C", str(tmp_path), "check"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "WRONG" in done.stdout


def test_the_library_part_needs_nothing_but_memory_functions(tmp_path: Path) -> None:
    export_c(read(bsnn.zoo.path("digits")), tmp_path)
    for name in ("engine.c", "engine.h", "convolution.h", "count.h", "count_width.h", "words.h", "model.c", "model.h"):
        text = (tmp_path / name).read_text()
        assert not re.search(r"\b(malloc|calloc|free|printf|fopen|abort|exit)\s*\(", text), name


def test_names_become_strings_of_c() -> None:
    assert string('a"\\?é') == '"a\\042\\134\\077\\303\\251"'


def test_a_name_cannot_leave_itscomment() -> None:
    assert comment("x *\\ int evil; /* */") == "x ?? int evil? ?? ??"


def test_bytes_become_the_same_integers_in_c(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    made = read(bsnn.zoo.path("digits"))
    export_c(made, tmp_path)
    command = ["gcc", "-std=c99", "-shared", "-fPIC", "model.c", "engine.c", "-o", "model.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    raw, found = np.arange(64, dtype=np.uint8).reshape(8, 8, 1) % 17, np.zeros((8, 8, 1), np.int16)
    library = ctypes.CDLL(str(tmp_path / "model.so"))
    library.bsnn_from_bytes(ctypes.c_void_p(raw.ctypes.data), ctypes.c_void_p(found.ctypes.data))
    assert np.array_equal(np.moveaxis(found, -1, 0), made.input.from_bytes(np.moveaxis(raw, -1, 0)))


def test_where_one_may_not_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(bsnn.UserError, match="cannot be written"):
        export_c(read(bsnn.zoo.path("digits")), tmp_path / "file" / "c", np.zeros((1, 1, 8, 8), np.uint8))
