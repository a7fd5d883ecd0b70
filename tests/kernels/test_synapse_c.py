"""The C of a synapse in training stays within its arrays: compiled with a sanitizer, called without torch."""

import ctypes
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CASES = [  # batch, channels, height, width, outs, kernel, stride, padding, dilation, groups
    (2, 64, 5, 4, 64, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (1, 5, 9, 7, 67, (2, 3), (1, 2), (0, 2), (2, 1), 1),
    (2, 12, 4, 3, 130, (3, 1), (1, 1), (1, 0), (1, 1), 2),
    (1, 130, 1, 1, 70, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (1, 3, 1, 6, 600, (5, 1), (2, 1), (2, 0), (1, 1), 1),
]
COMPILER = shutil.which("gcc")


def convolve(x: np.ndarray, weight: np.ndarray, stride, padding, dilation, groups: int) -> np.ndarray:
    """`[B, H, W, C]` with `[O, I, kh, kw]`, one tap after another."""
    x = np.pad(x, ((0, 0), *((p, p) for p in padding), (0, 0)))
    taps, (outs, ins) = weight.shape[2:], weight.shape[:2]
    high, wide = (
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[1:3], taps, stride, dilation, strict=True)
    )
    made = np.zeros((len(x), high, wide, outs))
    for i, j, g in itertools.product(*map(range, taps), range(groups)):
        rows = slice(i * dilation[0], i * dilation[0] + (high - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + (wide - 1) * stride[1] + 1, stride[1])
        part = slice(g * outs // groups, (g + 1) * outs // groups)
        made[..., part] += x[:, rows, columns, g * ins : (g + 1) * ins] @ weight[part, :, i, j].T
    return made


def check_all(path: str) -> None:
    """All cases with a library that was built by hand, for spikes and for means of four."""
    library, random = ctypes.CDLL(path), np.random.default_rng(0)
    for case, unit in itertools.product(CASES, (1, 4)):
        batch, channels, height, width, outs, kernel, stride, padding, dilation, groups = case
        weight = random.choice([-1.0, 1.0], (outs, channels // groups, *kernel))
        bits = np.packbits(weight.ravel() > 0, bitorder="little")
        x = (random.integers(0, unit + 1, (batch, height, width, channels)) / unit).astype(np.float32)
        expected = convolve(x, weight, stride, padding, dilation, groups)
        numbers = (*x.shape[:1], channels, height, width, outs, *expected.shape[1:3], *kernel, *stride)
        table = np.array([*numbers, *padding, *dilation, groups], np.int32)
        sizes, currents = np.zeros(2, np.int64), np.empty(expected.shape, np.float32)
        library.bsnn_synapse_sizes(address(table), address(sizes))
        rows, workspace = np.zeros(sizes[0], np.uint8), np.empty((2, sizes[1]), np.uint8)
        for rank in range(2):
            library.bsnn_rows(address(table), address(bits), address(rows), rank, 2)
        for rank in range(2):
            arrays = map(address, (table, rows, x, currents, workspace))
            assert library.bsnn_currents(*arrays, rank, 2) == 0
        assert np.array_equal(currents, expected)


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.skipif(COMPILER is None, reason="needs gcc")
@pytest.mark.parametrize(
    "flags", [(), ("-march=native",), ("-DBSNN_PORTABLE",)], ids=["baseline", "native", "portable"]
)
def test_never_reads_or_writes_beyond_its_arrays(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert COMPILER
    runtime = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip("gcc has no address sanitizer here")
    package = Path(__file__).parents[2] / "src" / "bsnn"
    command = [COMPILER, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fPIC", "-shared", "-O1", "-g"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover", *flags, f"-I{package / 'csrc'}"]
    command += [str(package / "kernels" / "csrc" / "synapse.c"), "-o", str(tmp_path / "synapse.so")]
    subprocess.run(command, check=True)
    code = f"import test_synapse_c; test_synapse_c.check_all({str(tmp_path / 'synapse.so')!r})"
    environment = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    found = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
