import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bsnn import UserError, atomic
from bsnn.atomic import write_file
from bsnn.train import checkpoint
from bsnn.train.checkpoint import Checkpoints, DamagedCheckpoint, encode, load

TREE = {
    "bits": torch.arange(11, dtype=torch.uint8),
    "optimizer": {"state": {0: {"momentum": torch.randn(3, 2), "moments": torch.zeros(2, dtype=torch.float64)}}},
    "empty": [torch.zeros(0), {}, []],
    "plain": [1, 0.1, -0.0, float("inf"), True, None, "text", "tensor:/bits", "é"],
}


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and repr(a) == repr(b)


def test_what_is_saved_is_loaded_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(encode(TREE))
    assert equal(load(path), TREE)
    assert b"pickle" not in path.read_bytes()


def test_what_does_not_belong_into_a_checkpoint_is_refused() -> None:
    with pytest.raises(TypeError, match="/a/0: complex does not belong"):
        encode({"a": [1j]})


def test_any_changed_byte_or_cut_is_refused_by_name(tmp_path: Path) -> None:
    whole = encode(TREE)
    path = tmp_path / "batch-000000007.ckpt"
    rng = np.random.default_rng(0)
    cases = [whole[:length] for length in (0, 1, 7, 8, 39, 40, 48, len(whole) - 1)] + [whole + b"\0", whole * 2]
    cases += [whole[: rng.integers(len(whole))] for _ in range(90)]
    for _ in range(100):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= rng.integers(1, 256)
        cases.append(bytes(changed))
    for content in cases:
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match=r"batch-000000007\.ckpt"):
            load(path)


def test_a_right_checksum_over_wrong_content_is_refused(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "a.ckpt"
    for payload in (b"", b"x" * 100, (2**63).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{}"):
        path.write_bytes(b"BSNNCKPT" + hashlib.sha256(payload).digest() + payload)
        with pytest.raises(DamagedCheckpoint, match=r"a\.ckpt: its checksum is right but its content is not"):
            load(path)


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.load_newest() == (None, [])
    for update in range(1, 6):
        checkpoints.save(update, {"update": update}, best=update == 2)
    names = sorted(path.name for path in checkpoints.folder.iterdir())
    assert names == ["batch-000000004.ckpt", "batch-000000005.ckpt", "best.ckpt"]
    assert checkpoints.load_newest() == ({"update": 5}, [])
    assert load(checkpoints.best) == {"update": 2}


def test_a_damaged_one_is_passed_over_by_name_and_replaced(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for update in (1, 2, 3):
        checkpoints.save(update, {"update": update}, best=update == 1)
    for damaged in (3, 2):
        (tmp_path / f"batch-00000000{damaged}.ckpt").write_bytes(b"cut")
        state, warnings = checkpoints.load_newest()
        assert state == {"update": damaged - 1}
        assert f"batch-00000000{damaged}.ckpt" in warnings[-1]
    (tmp_path / "batch-000000001.ckpt").write_bytes(b"")
    assert checkpoints.load_newest()[0] == {"update": 1}, "the best one is the last resort"
    (tmp_path / "batch-000000009.ckpt.partial").write_bytes(b"what a killed process left")
    checkpoints.save(2, {"update": 2})
    assert sorted(p.name for p in tmp_path.glob("batch*")) == ["batch-000000001.ckpt", "batch-000000002.ckpt"]
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(DamagedCheckpoint, match="3 checkpoints and all are damaged"):
        checkpoints.load_newest()


@pytest.mark.parametrize("fails", ["open", "write", "fsync", "replace"])
def test_a_failed_write_leaves_the_file_as_it_was(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    write_file(path, b"before")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full:
        write = full

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None: ...

    if fails == "open":
        monkeypatch.setattr(atomic, "open", full, raising=False)
    elif fails == "write":
        monkeypatch.setattr(atomic, "open", lambda *_: Full(), raising=False)
    else:
        monkeypatch.setattr(os, fails, full)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be written \(No space left on device\); make room"):
        write_file(path, b"after")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert path.read_bytes() == b"before"


def test_an_interrupt_while_writing_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_file(path, b"before")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"after")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"before")]


def test_a_limit_of_the_system_is_worded_for_the_user(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"update": 1})

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    code = f"""
import signal, torch
from pathlib import Path
from bsnn.train.checkpoint import Checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
Checkpoints(Path({str(tmp_path)!r})).save(2, {{"weights": torch.zeros(1000)}})
"""
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True, check=False)
    assert "batch-000000002.ckpt cannot be written (File too large)" in done.stderr
    assert checkpoints.load_newest() == ({"update": 1}, [])
    assert [path.name for path in tmp_path.iterdir()] == ["batch-000000001.ckpt"]


def test_no_permission_to_read_stops_rather_than_going_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"update": 1})
    checkpoints.save(2, {"update": 2})

    def refused(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(UserError, match=r"batch-000000002\.ckpt cannot be read \(Permission denied\)"):
        checkpoints.load_newest()


def test_a_bad_sector_counts_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"update": 1})
    checkpoints.save(2, {"update": 2})
    read = Path.read_bytes

    def broken(path: Path) -> bytes:
        if "2.ckpt" in path.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", broken)
    state, warnings = checkpoints.load_newest()
    assert state == {"update": 1}
    assert "batch-000000002.ckpt cannot be read (Input/output error)" in warnings[0]


def test_random_numbers_go_on_where_they_were() -> None:
    state = checkpoint.random_state()
    first = torch.rand(3)
    checkpoint.set_random_state(state)
    assert torch.equal(torch.rand(3), first)


def test_random_numbers_of_apples_gpu_go_on_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    restored: list[torch.Tensor] = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.mps, "set_rng_state", restored.append)
    state = checkpoint.random_state()
    checkpoint.set_random_state(state)
    assert [number.tolist() for number in restored] == [[7]]
    monkeypatch.undo()
    checkpoint.set_random_state(state)  # without such a GPU, only the CPU's
