"""The Arduino library of the C export: its layout, and its example with a few lines in place of Arduino's core."""

import shutil
import subprocess
from pathlib import Path

import pytest

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.formats.c import export_c

CORE = """
#include <stddef.h>
#include <stdint.h>
struct Port {
    void begin(unsigned long) {}
    void print(const char *text);
    void print(unsigned long number) { print(number ? "some" : "no"); }
    void println(const char *text) { print(text); print("\\n"); }
};
extern Port Serial;
unsigned long micros();
void delay(unsigned long);
void setup();
void loop();
"""
HOST = """
#include "Arduino.h"
#include <stdio.h>
Port Serial;
void Port::print(const char *text) { fputs(text, stdout); }
unsigned long micros() { return 0; }
void delay(unsigned long) {}
int main() { setup(); loop(); return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("c")
    export_c(read(bsnn.zoo.path("digits")), folder, bsnn.data.digits("test").samples[:3])
    (folder / "arduino" / "Arduino.h").write_text(CORE)
    return folder / "arduino"


def build(library: Path, prefix: str, *flags: str) -> None:
    """Compiles all sources and the sketch as Arduino does: C as C, and the sketch as C++ behind Arduino.h."""
    compiler = f"{prefix}g++"
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    shared = [*flags, "-Os", "-Wall", "-Wextra", "-Werror", "-c"]
    sources = [path.name for path in (library / "src").glob("*.c")]
    subprocess.run([f"{prefix}gcc", "-std=gnu11", *shared, *sources], cwd=library / "src", check=True)
    sketch = ["-I", "../../src", "-I", "../..", "-include", "Arduino.h", "-x", "c++", "golden.ino", "-o", "golden.o"]
    subprocess.run([compiler, *shared, *sketch], cwd=library / "examples" / "golden", check=True)


def test_the_sketch_compiles_for_a_cortex_m(library: Path) -> None:
    build(library, "arm-none-eabi-", "-mcpu=cortex-m4", "-mthumb")


def test_the_sketch_finds_the_golden_outputs(library: Path) -> None:
    build(library, "")
    (library / "host.cpp").write_text(HOST)
    objects = [*(library / "src").glob("*.o"), library / "examples" / "golden" / "golden.o"]
    subprocess.run(["g++", "-I", library, library / "host.cpp", *objects, "-o", library / "program"], check=True)
    done = subprocess.run([library / "program"], check=True, capture_output=True, text=True)
    labels = bsnn.load("digits").predict(bsnn.data.digits("test").samples[:3])
    assert done.stdout.splitlines() == [f"{label}, as expected, no microseconds" for label in labels]


def test_its_properties_and_files(library: Path) -> None:
    lines = (line.partition("=") for line in (library / "library.properties").read_text().splitlines())
    found = {name: value for name, _, value in lines}
    assert (found["name"], found["includes"], found["architectures"]) == ("bsnn digits", "bsnn_model.h", "*")
    assert found["sentence"] == "A binary spiking network: 10 classes from 1 x 8 x 8."
    assert all(found[name] for name in ("version", "author", "maintainer", "category", "url", "paragraph"))
    for name in ("engine.c", "model.c", "model.h", "stream.c"):
        assert (library / "src" / name).read_text() == (library.parent / name).read_text()
    # An AVR keeps constants in RAM.
    assert "__AVR__" in (library / "src" / "bsnn_model.h").read_text()
