"""Checkpoints that are either whole or refused: safetensors and JSON in one checksummed file, no pickle.

    8 bytes   magic "BSNNCKPT"
    32 bytes  SHA-256 of all that follows
    rest      a safetensors file; its metadata holds under "tree" the JSON of everything that is not a tensor

A file is written beside its final place, flushed to the disk and renamed, so that a crash leaves the one before.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors, save as save_tensors
from torch import Tensor

from bsnn.atomic import PARTIAL, write_file, writing
from bsnn.errors import UserError

_MAGIC = b"BSNNCKPT"
_TENSOR = "tensor:"
_NAME = re.compile(r"batch-(\d{9})\.ckpt")


class DamagedCheckpoint(UserError):
    """A file that is not a whole checkpoint."""


def _split(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for a tree of dicts, lists and plain values; its tensors go aside, under their path."""
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach().cpu().contiguous()
        return _TENSOR + path
    if isinstance(tree, dict):
        # Optimizers number their parameters: JSON would turn those keys into text, so keep pairs.
        pairs = [[key, _split(value, f"{path}/{key}", tensors)] for key, value in tree.items()]
        return {"dict": pairs}
    if isinstance(tree, list | tuple):
        return {"list": [_split(value, f"{path}/{index}", tensors) for index, value in enumerate(tree)]}
    if isinstance(tree, str):
        return {"text": tree}
    if tree is None or isinstance(tree, bool | int | float):
        return tree
    raise TypeError(f"{path}: {type(tree).__name__} does not belong into a checkpoint")


def _join(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, str):
        return tensors[tree.removeprefix(_TENSOR)]
    if isinstance(tree, dict):
        ((kind, content),) = tree.items()
        if kind == "dict":
            return {key: _join(value, tensors) for key, value in content}
        return content if kind == "text" else [_join(value, tensors) for value in content]
    return tree


def encode(tree: Any) -> bytes:
    """The file content of a tree of dicts, lists, tensors and plain values."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_split(tree, "", tensors))
    payload = save_tensors(tensors, metadata={"tree": text})
    return _MAGIC + hashlib.sha256(payload).digest() + payload


def load(path: Path) -> Any:
    """Reads a file of what `encode` made, onto the CPU.

    Raises:
        DamagedCheckpoint: If any byte differs from what was written, or some are missing.
        UserError: If reading is not permitted.
    """
    try:
        content = path.read_bytes()
    except PermissionError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give yourself permission.") from error
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({error.strerror}).") from error
    digest, payload = content[8:40], content[40:]
    if content[:8] != _MAGIC or hashlib.sha256(payload).digest() != digest:
        raise DamagedCheckpoint(
            f"{path}: received {len(content)} bytes that are not a complete checkpoint; expected one of bsnn train."
        )
    try:
        length = int.from_bytes(payload[:8], "little")
        header = json.loads(payload[8 : 8 + length])
        return _join(json.loads(header["__metadata__"]["tree"]), load_tensors(payload))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DamagedCheckpoint(f"{path}: its checksum is right but its content is not ({error}).") from error


class Checkpoints:
    """The checkpoints of one run: the last few and the best.

    Args:
        folder: Where they are.
        keep: How many of the last ones to keep, so that a damaged one costs an epoch and not the run.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder = folder
        self.keep = keep

    @property
    def best(self) -> Path:
        """Where the checkpoint of the best epoch is, if there is something to choose it by."""
        return self.folder / "best.ckpt"

    def _numbered(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        found = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), path) for match, path in found if match)

    def save(self, batches: int, tree: Any, *, best: bool = False) -> None:
        """Writes the state after so many batches and removes what is not needed any more."""
        content = encode(tree)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        # The best one first: a run that is killed in between writes both again.
        if best:
            write_file(self.best, content)
        write_file(self.folder / f"batch-{batches:09d}.ckpt", content)
        # Newer ones were damaged and passed over; partial ones are what a killed process left.
        numbered = self._numbered()
        newer = [path for number, path in numbered if number > batches]
        older = [path for number, path in numbered if number <= batches]
        with writing(self.folder):
            for path in [*newer, *older[: -self.keep], *self.folder.glob(f"*{PARTIAL}")]:
                path.unlink()

    def newest_first(self) -> list[Path]:
        """All checkpoints to go on from: the numbered ones, the last one first, then the best."""
        return [path for _, path in reversed(self._numbered())] + ([self.best] if self.best.exists() else [])

    def load_newest(self, usable: Callable[[Any], bool] = lambda state: True) -> tuple[Any, list[str]]:
        """The newest checkpoint that is whole and usable, and a warning for each damaged one that was passed over.

        The state is None if there is no such checkpoint.

        Args:
            usable: Whether to take a state, or to look on for an older one.

        Raises:
            DamagedCheckpoint: If there are some and none is whole.
        """
        warnings: list[str] = []
        whole = False
        for path in self.newest_first():
            try:
                state = load(path)
            except DamagedCheckpoint as error:
                warnings.append(f"{error} The one before is used.")
                continue
            if usable(state):
                return state, warnings
            whole = True
        if warnings and not whole:
            raise DamagedCheckpoint(
                f"{self.folder}: received {len(warnings)} checkpoints and all are damaged; expected a whole one. "
                "Start afresh with another --out."
            )
        return None, warnings


def random_state() -> dict[str, Tensor]:
    """The state of torch's random numbers, on every device in use."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state |= {f"cuda{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, Tensor]) -> None:
    """Goes on with the random numbers where `random_state` was called."""
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda{index}" in state:
                torch.cuda.set_rng_state(state[f"cuda{index}"], index)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
