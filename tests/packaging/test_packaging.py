"""What is published: a source archive that builds from itself, and a wheel that runs with NumPy alone."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import bsnn
from bsnn.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
NOT_SOURCE = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
IMPORT_NAMES = {"pillow": "PIL"}


def build(what: str, source: Path, out: Path) -> Path:
    """Calls the build backend as pip does, without a network."""
    code = f"import sys, setuptools.build_meta as backend; backend.build_{what}(sys.argv[1])"
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-W", "ignore", "-c", code, str(out)]
    done = subprocess.run(command, cwd=source, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel from the source archive."""
    place = tmp_path_factory.mktemp("packaging")
    shutil.copytree(ROOT / "src", place / "tree" / "src", ignore=NOT_SOURCE)
    for name in INPUTS:
        shutil.copy(ROOT / name, place / "tree")
    (place / "sdist").mkdir()
    with tarfile.open(build("sdist", place / "tree", place / "sdist")) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    (place / "wheel").mkdir()
    return build("wheel", unpacked, place / "wheel")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert re.fullmatch(rf"bsnn-{re.escape(bsnn.__version__)}-py3-none-\w+\.whl", wheel.name)
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {name for name in names if ".dist-info/" not in name and not name.endswith(".so")}
    tree = [
        path for path in (ROOT / "src" / "bsnn").rglob("*") if path.is_file() and path.suffix not in (".so", ".pyc")
    ]
    assert ours == {path.relative_to(ROOT / "src").as_posix() for path in tree}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_runs_with_numpy_alone(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (site / name).symlink_to(installed / name)
    digits = bsnn.data.digits("test")
    np.save(tmp_path / "images.npy", digits.samples[:5])
    for command, key in (
        (["predict", "digits", "images.npy"], "predictions"),
        (["inspect", "digits"], "layers"),
        (["export", "digits", "--format", "wasm"], "golden_vectors"),
    ):
        done = subprocess.run(
            [sys.executable, "-S", "-m", "bsnn", *command, "--json"],  # without the packages that are installed here
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        result = json.loads(done.stdout)[key]
        if key == "predictions":
            assert [line["label"] for line in result] == [str(label) for label in digits.labels[:5]]


def test_need_knows_the_package_of_every_extra() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        names = [re.match(r"[\w-]+", line)[0] for line in listed[extra] if not line.startswith("bsnn[")]  # pyright: ignore
        assert sorted(packages) == sorted(IMPORT_NAMES.get(name, name) for name in names)
