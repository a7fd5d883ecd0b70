"""Builds the C of inference and of training, if there is a compiler; everything else is in pyproject.toml.

Each becomes plain shared libraries, one per level of instructions, that ctypes loads; none of them is tied to a version
of Python. Without a compiler, or if one of them does not compile, that file is absent: the engine uses the next one, or
NumPy, and training the next one, or torch.
"""

import os
import platform
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

PACKAGE = Path("src", "bsnn")
SHARED = Path("csrc")
# The folder that each library lies in; its sources are in `csrc` there, and in the shared folder.
LIBRARIES = {"engine": Path("deploy", "engine"), "train": Path("kernels")}
# Additions and products are rounded one by one, as torch rounds them.
ROUNDING = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-O3", "-std=c99", *ROUNDING, "-fPIC", "-shared", "-DBSNN_THREADS")
LEVELS = {"baseline": ()}
if platform.machine().lower() in ("x86_64", "amd64"):
    # Tuned for the first processors that had it, the inner loops are one to two percent faster on others, too.
    avx2 = ("-march=x86-64-v3", "-mtune=haswell", "-falign-loops=32")
    LEVELS.update(avx2=avx2, avx512=("-march=x86-64-v4", "-mprefer-vector-width=512"))


class BuildKernel(Command):
    """Compiles the libraries."""

    description = "compile the C libraries (optional)"
    user_options: ClassVar = [("inplace", "i", "write the libraries beside their sources")]
    boolean_options: ClassVar = ["inplace"]
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib = None
        self.inplace = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        package = Path(__file__).parent / PACKAGE
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
        for stem, folder in LIBRARIES.items():
            target = (package if self.editable_mode or self.inplace else Path(self.build_lib, "bsnn")) / folder
            target.mkdir(parents=True, exist_ok=True)
            files = [*map(str, sorted((package / folder / "csrc").glob("*.c"))), str(package / SHARED / "level.c")]
            for level, flags in LEVELS.items():
                library = target / f"_{stem}_{level}.so"
                library.unlink(missing_ok=True)  # a running program keeps the file that it has loaded
                command = [*compiler, *FLAGS, *flags, f"-I{package / SHARED}", *files, "-o", str(library)]
                try:
                    subprocess.run(command, check=True)
                except (OSError, subprocess.CalledProcessError) as error:
                    self.warn(f"the library {library.name} was not built ({error}); bsnn does without it")

    def get_source_files(self) -> list[str]:
        folders = [PACKAGE / SHARED, *(PACKAGE / folder / "csrc" for folder in LIBRARIES.values())]
        return [str(path) for folder in folders for path in sorted(folder.glob("*.[ch]"))]

    def get_outputs(self) -> list[str]:
        built = Path(self.build_lib, "bsnn")
        return [str(path) for stem, folder in LIBRARIES.items() for path in (built / folder).glob(f"_{stem}_*.so")]

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
