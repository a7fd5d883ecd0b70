"""The C kernel computes what the NumPy path computes, to the bit, on every op, size and level of instructions."""

import ctypes
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from random_networks import NETWORKS, Builder

from bsnn.deploy.codec import encode
from bsnn.deploy.engine import layout, native, plain
from bsnn.deploy.engine.native import Native, libraries
from bsnn.deploy.engine.plain import Plain
from bsnn.deploy.engine.scratch import Target
from bsnn.deploy.engine.weights import weights
from bsnn.deploy.schema import Add, Artifact, Lif, Scale, Synapse, Value
from bsnn.errors import UserError
from bsnn.kernels.libraries import LEVELS

LIBRARIES = [
    pytest.param(name, marks=pytest.mark.skipif(name not in libraries(), reason=f"no kernel {name} here"))
    for name in LEVELS
]


def inputs(artifact: Artifact, steps: int, batch: int) -> np.ndarray:
    channels, height, width = artifact.input.shape
    random = np.random.default_rng(5)
    return random.integers(-2000, 2000, (steps, batch, height, width, channels)).astype(np.int16)


def results(runner, frames: np.ndarray, time_steps: int, pieces: tuple[int, ...] = ()) -> list[np.ndarray]:
    """Outputs, membranes and spikes; the time steps in one call, or in calls of `pieces` steps."""
    artifact, batch = runner.artifact, frames.shape[1]
    shapes = [artifact.values[i + 1].shape for i in artifact.lifs]
    membranes = [np.zeros((batch, h, w, c), np.int32) for c, h, w in shapes]
    total, spikes, begin = np.zeros((batch, len(artifact.classes)), np.int64), [], 0
    for steps in pieces or (time_steps,):
        some = [np.full((steps, *m.shape), 7, np.uint8) for m in membranes]
        part = frames if len(frames) == 1 else frames[begin : begin + steps]
        total = total + runner.run(part, steps, membranes, some)
        begin += steps
        spikes.append(some)
    return [total, *membranes, *(np.concatenate(s) for s in zip(*spikes, strict=True))]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("still", [True, False], ids=["still", "moving"])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_equals_the_plain_path(network, library, still):
    artifact = NETWORKS[network]
    frames = inputs(artifact, 1 if still else 10, batch=2)
    expected = results(Plain(artifact), frames, 10)
    spikes = expected[1 + len(artifact.lifs) :]
    assert all(0.01 < s.mean() < 0.99 for s in spikes), [s.mean() for s in spikes]
    assert_same(results(Native(artifact, 1, library), frames, 10), expected)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_channel_that_fires_counts_in_every_plane(library):
    for channels in range(1, 70):
        numbers = np.ones(channels, np.int32), np.zeros(channels, np.int32)
        weight, pairs = np.ones((channels, 1), np.uint8), ((1, 1), (1, 1), (0, 0), (1, 1))
        layers = (
            Scale("in", (0,), 0, *numbers),
            Lif("spikes", (1,), 0, 1),
            Add("two", (2, 2)),
            Add("three", (3, 2)),
            Synapse("sum", (4,), 1, *pairs, 1, "bits", 0, 0, weight, numbers[0][:1], numbers[1][:1]),
        )
        spec = Builder(0, (channels, 1, 1)).input
        runner = Native(Artifact("own", ("a",), 1, 12, spec, layers, 1.0), 1, library)
        assert runner.run(np.ones((1, 1, 1, 1, channels), np.int16), 1, None).tolist() == [[3 * channels]]


@pytest.mark.skipif(not libraries(), reason="no kernel was built")
class TestFastest:
    @pytest.mark.parametrize("network", ["pooled", "residual", "joined", "groups", "depthwise", "dilation"])
    @pytest.mark.parametrize(("threads", "batch"), [(2, 1), (3, 2), (2, 5), (16, 1)])
    def test_threads_change_nothing(self, network, threads, batch):
        artifact = NETWORKS[network]
        frames = inputs(artifact, 4, batch)
        runner = Native(artifact, threads)
        for _ in range(3):
            assert_same(results(runner, frames, 4), results(Native(artifact, 1), frames, 4))

    @pytest.mark.parametrize("network", ["pooled", "residual", "joined"])
    def test_a_still_input_is_one_that_is_repeated(self, network):
        artifact = NETWORKS[network]
        frames = inputs(artifact, 1, 2)
        runner = Native(artifact, 1)
        assert_same(results(runner, frames, 9), results(runner, np.repeat(frames, 9, axis=0), 9))

    @pytest.mark.parametrize("network", ["pooled", "residual", "joined"])
    def test_step_by_step_is_all_at_once(self, network):
        artifact = NETWORKS[network]
        frames = inputs(artifact, 20, 2)
        runner = Native(artifact, 1)
        assert_same(results(runner, frames, 20, (1, 1, 3, 9, 6)), results(runner, frames, 20))

    @pytest.mark.parametrize("steps", [3, 40])
    @pytest.mark.parametrize("network", ["pooled", "residual", "joined"])
    def test_without_membranes_they_begin_at_zero(self, network, steps):
        artifact = NETWORKS[network]
        frames = inputs(artifact, 1, 2)
        for threads in (1, 4):
            found = Native(artifact, threads).run(frames, steps, None)
            np.testing.assert_array_equal(found, results(Native(artifact, 1), frames, steps)[0])

    def test_misuse_says_what_to_do(self):
        with pytest.raises(UserError, match="numpy"):
            Native(NETWORKS["groups"], 1, "sse9")  # pyright: ignore[reportArgumentType]
        with pytest.raises(UserError, match="threads"):
            Native(NETWORKS["groups"], 0)


@pytest.mark.parametrize(
    ("multiplier", "shift", "offset", "wide"),
    [
        (65537, 2, 0, False),  # 32767 · 65537 + 2 is the last below 2^31
        (65538, 2, 0, True),
        (65537, 2, 2**30 - (32767 * 65537 + 2) // 4 - 1, False),
        (65537, 2, 2**30 - (32767 * 65537 + 2) // 4, True),
    ],
)
def test_products_are_wide_where_32_bits_do_not_hold_them(multiplier, shift, offset, wide):
    numbers = np.array([multiplier], np.int32), np.array([offset], np.int32)
    assert weights(Scale("s", (0,), shift, *numbers), Value("counts", (1, 1, 1), 0, 32767)).wide == wide


def few_rows(seed):
    """Windows that reach far beyond the only row of the input."""
    net = Builder(seed, (1, 1, 2000))
    first = net.lif(net.synapse(0, 64, 1, padding=0, weights="int16", shift=14, multiplier=2**9))
    return net.head(net.average_pool(net.lif(net.synapse(first, 8, kernel=(15, 1), padding=(7, 0))), 1, 1))


def many_steps(seed):
    """Counts whose bits are a small part of the lists that are made of them."""
    net = Builder(seed, (1, 32, 32))
    spikes = net.lif(net.synapse(0, 64, weights="int16", shift=14, multiplier=2**9))
    counts = net.average_pool(spikes, 8, 1)
    return net.head(net.lif(net.synapse(counts, 8, kernel=25, padding=0)))


@pytest.mark.skipif(not libraries(), reason="no kernel was built")
@pytest.mark.parametrize("network", [few_rows(1), many_steps(2), *NETWORKS.values()])
def test_the_workspace_is_not_larger_than_the_values_of_the_network(network):
    made = layout.lay_out(network, False, 16)
    step = sum(value.size * (4 if value.kind == "fixed" else value.high.bit_length()) for value in network.values)
    allowed = 2**22 + 4 * step + 64 * len(encode(network))
    assert made.values_bytes + made.scratch_bytes <= allowed
    frames = inputs(network, 2, 1)
    assert_same(results(Native(network, 1), frames, 2), results(Plain(network), frames, 2))


def test_the_plain_path_unfolds_a_part_of_a_row_at_a_time(monkeypatch):
    net = Builder(1, (1, 2, 2000))
    network = net.head(net.synapse(0, 1, kernel=(2, 1000), padding=0), classes=1, weights="bits")
    frames = inputs(network, 1, 1)
    expected = Plain(network).run(frames, 1, None)
    monkeypatch.setattr(plain, "_BLOCK_BYTES", 2**20)
    runner = Plain(network)
    tracemalloc.start()
    found = runner.run(frames, 1, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22  # all windows of the row: 16 MB
    assert np.array_equal(found, expected)


COMPILER = shutil.which("gcc")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fPIC", "-shared")


def compiled(folder: Path, *flags: str) -> Path:
    assert COMPILER
    library = folder / "engine.so"
    source, shared = Path(native.__file__).with_name("csrc") / "engine.c", Path(native.__file__).parents[2] / "csrc"
    subprocess.run([COMPILER, *STRICT, *flags, f"-I{shared}", str(source), "-o", str(library)], check=True)
    return library


def defines(target: Target) -> list[str]:
    small = ["-DBSNN_SMALL"] if target.small else []
    fields = {"WORD_BITS": target.word_bits, "OFFSET_BITS": target.offset_bits, "OFFSET_SHIFT": target.offset_shift}
    return [*small, *(f"-DBSNN_{name}={value}" for name, value in fields.items())]


def listed(artifact: Artifact, target: Target) -> bool:
    """Whether the target can say where each row of one-bit weights begins."""
    rows = [layer.weight.shape for layer in artifact.layers if isinstance(layer, Synapse) and layer.weights == "bits"]
    return all(
        (number + 1) * row >> target.offset_shift < 1 << target.offset_bits and row % (1 << target.offset_shift) == 0
        for number, row in rows
    )


def check_all(library: Path, target: Target) -> int:
    """All networks that a target can run, with a kernel that was built by hand; says how many."""
    kernel = ctypes.CDLL(str(library))
    networks = [artifact for artifact in NETWORKS.values() if listed(artifact, target)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "libraries", lambda: {"baseline": kernel})
        patch.setattr(native, "TARGETS", {"baseline": target})
        for artifact in networks:
            for frames in (inputs(artifact, 1, 1), inputs(artifact, 3, 1)):
                expected = results(Plain(artifact), frames, 3)
                assert_same(results(Native(artifact, 1), frames, 3), expected)
                assert_same([Native(artifact, 1).run(frames, 3, None)], expected[:1])
    return len(networks)


@pytest.mark.skipif(COMPILER is None, reason="needs gcc")
@pytest.mark.parametrize(
    ("target", "networks"),
    [
        (Target(32), 21),
        (Target(64), 21),
        (Target(32, small=True), 21),
        (Target(64, small=True), 21),
        (Target(32, small=True, offset_bits=16), 19),
        (Target(32, small=True, offset_bits=16, offset_shift=1), 3),
    ],
)
def test_plain_c_for_small_devices(tmp_path, target, networks):
    portable = ["-DBSNN_PORTABLE"] if not target.small else []
    assert check_all(compiled(tmp_path, "-O1", *portable, *defines(target)), target) == networks


@pytest.mark.skipif(COMPILER is None, reason="needs gcc")
@pytest.mark.parametrize(
    ("flags", "target"),
    [
        pytest.param(("-march=native",), Target(vector=64), id="native"),
        pytest.param(("-march=x86-64-v3",), Target(vector=32), marks=LIBRARIES[1].marks, id="avx2"),
        pytest.param(("-DBSNN_PORTABLE",), Target(vector=16), id="portable"),
        pytest.param((), Target(32, small=True), id="small"),
    ],
)
def test_never_reads_or_writes_beyond_its_arrays(tmp_path, flags, target):
    assert COMPILER
    runtime = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip("gcc has no address sanitizer here")
    library = compiled(
        tmp_path, "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover", *flags, *defines(target)
    )
    code = (
        "import test_native; from pathlib import Path; from test_native import Target; "
        f"test_native.check_all(Path({str(library)!r}), {target!r})"
    )
    # Python itself leaks by design; NumPy's arrays come from the malloc that the sanitizer watches.
    environment = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    found = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
