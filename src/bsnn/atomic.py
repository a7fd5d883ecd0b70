"""Files that are either whole or not there."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bsnn.errors import UserError

PARTIAL = ".partial"


def check_writable(path: Path, *, making_folders: bool = False) -> None:
    """Refuses a file that could not be written, before the work whose result it shall hold.

    Args:
        path: The file.
        making_folders: Whether folders that are missing will be made.

    Raises:
        UserError: If it cannot be written.
    """
    folder = path.parent
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; expected the name of a file. Choose another place.")
        while making_folders and not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); choose another place.") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Words a failure to write, such as a full disk, for the user."""
    try:
        yield
    except OSError as error:
        remedy = "allow it" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else "make room"
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); {remedy} or choose another place. What was there "
            "before is intact."
        ) from error


def write_file(path: Path, content: bytes) -> None:
    """Replaces a file by new content, or leaves it as it was: written beside it, flushed to the disk and renamed.

    Raises:
        UserError: If it cannot be written.
    """
    with writing(path):
        _replace(path, content)


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Replaces files by new contents, all or none of them; makes folders that are missing.

    Raises:
        UserError: If one of them cannot be written.
    """
    try:
        for path, content in contents.items():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                _write_beside(path, content)
        for path in contents:
            with writing(path):
                os.replace(_beside(path), path)
    finally:
        for path in contents:
            with suppress(OSError):
                _beside(path).unlink()
    for folder in dict.fromkeys(path.parent for path in contents):
        _flush_folder(folder)


def _replace(path: Path, content: bytes) -> None:
    try:
        _write_beside(path, content)
        os.replace(_beside(path), path)
    except BaseException:
        with suppress(OSError):
            _beside(path).unlink()
        raise
    _flush_folder(path.parent)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def _write_beside(path: Path, content: bytes) -> None:
    with open(_beside(path), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
