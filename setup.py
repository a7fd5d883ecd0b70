"""Builds the C kernels of inference and training, where there is a compiler; all else stands in pyproject.toml.

The kernel becomes plain shared libraries, one for each level of instructions, that ctypes loads; none of them is tied
to a version of Python. Without a compiler, or where one of them does not compile, that file is absent and the engine
takes the next one, or NumPy.
"""

import os
import platform
import shlex
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ENGINE = Path("bsnn", "deploy", "engine")
SOURCES = ("kernel.c", "neurons.c", "winograd.c", "work.c")
HEADERS = ("kernel.h", "count.h", "train.h")
# Additions and products are rounded one by one, as torch rounds them.
ROUNDING = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-O3", "-std=c99", *ROUNDING, "-fPIC", "-shared", "-DBSNN_THREADS")
LEVELS = {"baseline": ()}
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS.update(avx2=("-march=x86-64-v3",), avx512=("-march=x86-64-v4", "-mprefer-vector-width=512"))


class BuildKernel(Command):
    """Compiles the kernel."""

    description = "compile the C kernel (optional)"
    user_options = ()
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        source = Path(__file__).parent / "src" / ENGINE
        target = source if self.editable_mode else Path(self.build_lib) / ENGINE
        target.mkdir(parents=True, exist_ok=True)
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
        for name, flags in LEVELS.items():
            library = target / f"_kernel_{name}.so"
            library.unlink(missing_ok=True)  # a running engine keeps the file that it has loaded
            files = [str(source / name) for name in SOURCES]
            command = [*compiler, *FLAGS, *flags, *files, "-o", str(library)]
            try:
                subprocess.run(command, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                self.warn(f"the kernel {name} was not built ({error}); the engine does without it")

    def get_source_files(self) -> list[str]:
        return [str(Path("src") / ENGINE / name) for name in (*SOURCES, *HEADERS)]

    def get_outputs(self) -> list[str]:
        return [str(path) for path in (Path(self.build_lib) / ENGINE).glob("_kernel_*.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Wheel(bdist_wheel):
    """A wheel for one kind of machine and any version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithLibraries(Distribution):
    """Says that the package is not only Python."""

    def has_ext_modules(self) -> bool:
        return True


build.sub_commands.append(("build_kernel", None))
setup(cmdclass={"build_kernel": BuildKernel, "bdist_wheel": Wheel}, distclass=WithLibraries)
