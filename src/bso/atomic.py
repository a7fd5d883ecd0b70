"""Files that are either whole or not there."""

import os
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"


def replace_file(path: Path, content: bytes) -> None:
    """Replaces a file by new content, or leaves it as it was: written beside it, flushed to the disk and renamed.

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
