"""Files that are either whole or absent."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from bsnn.errors import UserError

PARTIAL = ".partial"


def check_writable(path: Path, *, making_folders: bool = False) -> None:
    """Refuses a file that could not be written, before the work whose result it is to hold.

    Args:
        path: The file.
        making_folders: Whether missing folders will be created.

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


def replace_file(path: Path, content: bytes) -> None:
    """Replaces the content of a file, or leaves it as it was.

    The content is written to a file beside it, flushed to the disk and renamed.

    Raises:
        OSError: If it cannot be written.
    """
    temporary = path.with_name(path.name + PARTIAL)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
