"""The files of one run: config.json, metrics.jsonl (one line per epoch), held_out.json, checkpoints/, tensorboard/."""

import dataclasses
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import bsnn
from bsnn.atomic import write_file, writing
from bsnn.data.dataset import Dataset
from bsnn.errors import UserError
from bsnn.train.checkpoint import Checkpoints
from bsnn.train.config import Config, config_from_json
from bsnn.train.metrics import EpochMetrics, Split
from bsnn.train.origin import Origin


class RunDirectory:
    """The files of one run.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")

    @contextmanager
    def owned(self, patience: float = 10.0) -> Iterator[None]:
        """Makes the directory, and keeps other processes from training in it at the same time.

        One that it made and that stays empty, because the training was refused, goes again.

        Args:
            patience: Seconds to wait for another process to end: readers of a killed run live on for a few.
        """
        with writing(self.path):
            if self.path.is_file():
                raise UserError(f"--out: {self.path} is a file; expected a folder, or a name that is free.")
            made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY)
        try:
            self._lock(folder, time.monotonic() + patience)
            yield
        finally:
            os.close(folder)
            if made:
                with suppress(OSError):
                    self.path.rmdir()

    def _lock(self, folder: int, deadline: float) -> None:
        while True:
            try:
                return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"{self.path}: another process is training in it; expected to be alone. Wait for it or stop it."
                    ) from error
                time.sleep(0.2)
            except OSError:
                return None  # a file system without locks

    def start(self, config: Config, data: str | None, origins: Sequence[Origin]) -> None:
        """Writes config.json.

        Args:
            config: The config.
            data: The folder of the data.
            origins: What has computed the run, from which batch on.
        """
        content = {
            "config": dataclasses.asdict(config),
            "data": None if data is None else os.path.abspath(data),
            "computed_by": origins,
            "git_commit": git_commit(),
        }
        write_file(self.path / "config.json", (json.dumps(content, indent=1) + "\n").encode())

    def write_held_out(self, split: Split, samples: Dataset, data: str | None) -> None:
        """Writes to held_out.json which files a split holds, beside those of others, if its samples are files.

        Args:
            split: What its accuracy is called.
            samples: Its samples.
            data: The folder of the data, which paths are relative to.
        """
        paths = getattr(samples, "paths", None)
        if paths is None:
            return
        place, root = self.path / "held_out.json", os.path.abspath(data or "/")
        known = json.loads(place.read_text()) if self._holds(place.name, json.loads) else {}
        known[split] = [os.path.relpath(path, root) for path in paths]
        write_file(place, (json.dumps(known, indent=1) + "\n").encode())

    def restore(self, state: dict[str, Any], data: str | None) -> None:
        """Writes config.json and metrics.jsonl again from a checkpoint if they are gone or damaged."""
        if not self._holds("config.json", lambda text: json.loads(text)["config"]):
            self.start(saved_config(state), data, state["origins"])
        history = state["history"]
        if not self._holds("metrics.jsonl", lambda text: [json.loads(line) for line in text.splitlines()] == history):
            self.write_history(history)

    def _holds(self, name: str, check: Callable[[str], Any]) -> bool:
        try:
            return bool(check((self.path / name).read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write_history(self, history: Sequence[EpochMetrics]) -> None:
        """Writes metrics.jsonl."""
        text = "".join(json.dumps(line) + "\n" for line in history)
        write_file(self.path / "metrics.jsonl", text.encode())


def saved_config(state: dict[str, Any]) -> Config:
    """The config that a checkpoint was trained with."""
    try:
        return config_from_json(state["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the run is of another version of bsnn than this one, {bsnn.__version__} ({error}); go on with the one "
            "that its config.json names."
        ) from error


def default_out(name: str, *, resume: bool = False) -> Path:
    """Where a run goes when no place is given: runs/NAME, or the first free runs/NAME-2, -3, ...

    To resume it is the last of those that are there.
    """
    number, last = 1, Path("runs") / name
    while (path := Path("runs") / (name if number == 1 else f"{name}-{number}")) and (path / "config.json").exists():
        number, last = number + 1, path
    return last if resume else path


def git_commit() -> str | None:
    """The commit of the installed source, if it is a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
