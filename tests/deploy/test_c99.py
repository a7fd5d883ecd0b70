"""The exported C: compiles without a warning, and gives the engine's integers, on this machine and on others."""

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sounds import spotter

import bsnn
from bsnn.data.spec import DataSpec
from bsnn.deploy.codec import read
from bsnn.deploy.engine import Engine
from bsnn.deploy.footprint import of_byte
from bsnn.deploy.formats._c_text import comment, string
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.inspection import inspect

# Compilers, what runs their programs here, and what links them.
COMPILERS = {
    "gcc": ("", ""),
    "clang": ("", ""),
    "arm-linux-gnueabihf-gcc": ("qemu-arm", "-static"),
    "riscv64-linux-gnu-gcc": ("qemu-riscv64", "-static"),
    # Its programs for processors with an operating system speak to qemu by semihosting.
    "arm-none-eabi-gcc": ("qemu-arm", "-mcpu=cortex-a7 --specs=rdimon.specs"),
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
    assert re.findall(r"vector \d: (\d), as expected", output) == [str(label) for label in labels] * 2
    assert "0 of 3 vectors wrong" in output
    assert "stream: 0 of 3 vectors wrong" in output
    assert f"{result['flash_bytes']} bytes of flash, {result['ram_bytes']} bytes of RAM" in output
    found = inspect(read(bsnn.zoo.path("digits")))
    assert all(found[key] == result[key] for key in result if key not in ("path", "bytes", "layers", "no_events"))
    assert all(layer.items() <= line.items() for layer, line in zip(result["layers"], found["layers"], strict=True))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_from_samples_to_outputs_on_each_machine(compiler: str, tmp_path: Path) -> None:
    export_c(spotter(tmp_path / "model.bsnn"), tmp_path / "c")
    assert check(tmp_path / "c", compiler).count("0 of 4 vectors wrong") == 2


def test_every_op_survives_the_export(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = bsnn.models.resnet18(num_classes=3, in_channels=2, width=0.0625)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(4, 2, 37, 37), 3)
    classes = ["a", 'quote " and \\', "ünï??="]
    bsnn.export(net, tmp_path / "model.bsnn", input_shape=(2, 37, 37), time_steps=3, classes=classes)
    export_c(read(tmp_path / "model.bsnn"), tmp_path / "c")
    output = check(tmp_path / "c", "gcc")
    assert output.count("0 of 4 vectors wrong") == 2


@pytest.mark.parametrize(("kind", "time_steps", "by_steps"), [("event", 3, False), ("image", 60, True)])
def test_frames_of_events_and_many_time_steps(kind: Any, time_steps: int, by_steps: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = bsnn.models.vgg((8, "pool", 12), num_classes=3, in_channels=2)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(4, 2, 9, 7), 3)
    shape = (time_steps, 2, 9, 7) if kind == "event" else (2, 9, 7)
    spec = DataSpec("frames", kind, ("a", "b", "c"), shape, (0.2, 0.3), (0.5, 0.4), 4.0)
    bsnn.export(net, tmp_path / "model.bsnn", spec=spec, time_steps=time_steps)
    artifact = read(tmp_path / "model.bsnn")
    result = export_c(artifact, tmp_path / "c")
    assert result["by_steps"] == by_steps
    # Bytes of all frames that have to be there: of events one for each time step.
    assert result["input_bytes"] == 2 * 9 * 7 * (time_steps if kind == "event" else 1)
    assert check(tmp_path / "c", "gcc").count("0 of 4 vectors wrong") == 2


def test_golden_vectors_that_do_not_fit(tmp_path: Path) -> None:
    digits = read(bsnn.zoo.path("digits"))
    with pytest.raises(bsnn.UserError, match="received float32; expected bytes"):
        export_c(digits, tmp_path, np.zeros((1, 1, 8, 8), np.float32))
    with pytest.raises(bsnn.UserError, match="received 2 frames; expected 1"):
        export_c(digits, tmp_path, np.zeros((2, 1, 1, 8, 8), np.uint8))


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
    for name in ("engine.c", "engine.h", "count.h", "count_width.h", "words.h", "model.c", "model.h", "stream.c"):
        text = (tmp_path / name).read_text()
        assert not re.search(r"\b(malloc|calloc|free|printf|fopen|abort|exit)\s*\(", text), name


HEADERS = {
    "image": (4.0, "Bytes, raw, from 0 to 4, normalized as they are read: (raw / 4 - mean) / std with a mean of 0.25"),
    "event": (4.0, "Bytes, events per pixel and frame times 4, from 0 to 255, normalized as they are read: (raw"),
    "sound": (1.0, "and a std of 0.5 per channel, times 16384, rounded; raw is from 0 to 1"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_the_header_says_what_an_input_is(kind: Any, tmp_path: Path) -> None:
    scale, text = HEADERS[kind]
    shape = {"image": (1, 9, 7), "event": (2, 1, 9, 7), "sound": (1, 32, 32)}[kind]
    spec = DataSpec("own", kind, ("a", "b"), shape, (0.25,), (0.5,), scale)
    net = bsnn.models.vgg((4, 4), num_classes=2, in_channels=1)
    bsnn.export(net, tmp_path / "model.bsnn", spec=spec, time_steps=2)
    export_c(read(tmp_path / "model.bsnn"), tmp_path / "c")
    header = (tmp_path / "c" / "model.h").read_text()
    assert text in header
    for words in (
        "rows from the top" if kind != "sound" else "mel bands from the lowest",
        "is reentrant",
        'extern "C"',
    ):
        assert words in header


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_the_header_serves_c_plus_plus(tmp_path: Path) -> None:
    """A program in C++ links with the C, and starts with memory that holds anything."""
    images = bsnn.data.digits("test").samples[:1]
    export_c(read(bsnn.zoo.path("digits")), tmp_path, images)
    (tmp_path / "own.cpp").write_text(
        '#include "model.h"\n#include "golden.h"\n#include <string.h>\nint main() {\n'
        "    int64_t outputs[BSNN_CLASSES];\n    memset(outputs, 0x5a, sizeof outputs);\n"
        "    bsnn_predict(golden_inputs[0], outputs);\n"
        "    return memcmp(outputs, golden_outputs[0], sizeof outputs) != 0;\n}\n"
    )
    for command in ("gcc -c -std=c99 model.c engine.c", "g++ -Wall -Wextra -Werror own.cpp model.o engine.o -o own"):
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    subprocess.run(["./own"], cwd=tmp_path, check=True)


def test_names_become_strings_of_c() -> None:
    assert string('a"\\?é') == '"a\\042\\134\\077\\303\\251"'


def test_a_name_cannot_leave_itscomment() -> None:
    assert comment("x *\\ int evil; /* */") == "x ?? int evil? ?? ??"


def test_the_whole_test_set_gives_the_engine_s_integers(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    made, images = read(bsnn.zoo.path("digits")), bsnn.data.digits("test").samples
    export_c(made, tmp_path)
    command = ["gcc", "-O2", "-std=c99", "-shared", "-fPIC", "model.c", "engine.c", "-o", "model.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "model.so"))
    inputs, found = np.ascontiguousarray(np.moveaxis(images, 1, -1)), np.zeros((len(images), 10), np.int64)
    classes = [
        library.bsnn_predict(ctypes.c_void_p(one.ctypes.data), ctypes.c_void_p(row.ctypes.data))
        for one, row in zip(inputs, found, strict=True)
    ]
    assert np.array_equal(found, Engine(made).outputs(images))
    assert classes == found.argmax(1).tolist()


def test_bytes_become_the_integers_that_the_engine_makes_of_them() -> None:
    spec = replace(
        read(bsnn.zoo.path("digits")).input, shape=(2, 16, 16), multiplier=(3000, 9), offset=(-70000, 7), shift=3
    )
    table, raw = of_byte(spec), np.arange(256, dtype=np.uint8).reshape(1, 16, 16).repeat(2, 0)
    assert np.array_equal(table.reshape(raw.shape), spec.from_bytes(raw))


def test_files_of_the_user_s_own_are_left_alone(tmp_path: Path) -> None:
    """An export replaces an earlier one, also after it was built, and no other folder."""
    digits, out = read(bsnn.zoo.path("digits")), tmp_path / "c"
    out.mkdir()
    export_c(digits, out)
    before = (out / "model.c").read_text()
    (out / "network").touch()
    (out / "model.c").write_text(before + "/* changed */")
    export_c(digits, out)
    assert (out / "model.c").read_text() == before
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "Makefile").write_text("all:")
    for name in ("README.md", "model.c"):
        with pytest.raises(
            bsnn.UserError, match=r"holds other files, and no earlier export; expected a new or an empty"
        ):
            export_c(digits, tmp_path / "own")
        (tmp_path / "own" / name).write_text("mine")
    assert (tmp_path / "own" / "Makefile").read_text() == "all:"


def test_where_one_may_not_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(bsnn.UserError, match="cannot be written"):
        export_c(read(bsnn.zoo.path("digits")), tmp_path / "file" / "c", np.zeros((1, 1, 8, 8), np.uint8))


def test_files_that_only_an_earlier_export_needed_are_gone(tmp_path: Path) -> None:
    """The Makefile compiles the front end if it is there, so that of another network would be taken."""
    out, alone = tmp_path / "c", tmp_path / "alone"
    for name in ("speech", "nmnist", "digits"):
        export_c(read(bsnn.zoo.path(name)), out)
    (out / "own.c").write_text("mine")
    export_c(read(bsnn.zoo.path("digits")), out)
    export_c(read(bsnn.zoo.path("digits")), alone)
    ours, expected = ({file.relative_to(folder) for file in folder.rglob("*")} for folder in (out, alone))
    assert ours == expected | {Path("own.c")}


def test_an_export_that_fails_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "c"
    export_c(read(bsnn.zoo.path("speech")), out)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    (out / "main.c").unlink()
    (out / "main.c").mkdir()
    with pytest.raises(bsnn.UserError, match=r"main\.c cannot be written \(Is a directory\)"):
        export_c(read(bsnn.zoo.path("digits")), out)
    del before[out / "main.c"]
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
