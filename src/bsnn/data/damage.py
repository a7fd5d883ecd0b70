"""All files of a folder that cannot be read, where reading a data set stops at the first."""

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from bsnn.data.audio import SOUND_ENDINGS, read_sound
from bsnn.data.events import EVENT_ENDINGS, read_events
from bsnn.data.images import IMAGE_ENDINGS, decode_image
from bsnn.data.tree import walk
from bsnn.errors import UserError
from bsnn.extras import need

_NAMED = 10
# Reading more takes too long to wait for.
_READ = 20_000


def with_all_damaged(error: UserError, root: Path, camera: tuple[int, int]) -> UserError:
    """The error about the first damaged file, or one that names the others too.

    Args:
        error: What reading the data said.
        root: The folder of the data. Beyond its first 20,000 files none is looked at.
        camera: Rows and columns of recordings whose format does not state them.
    """
    readers: dict[str, Callable[[Path], Any]] = {
        **dict.fromkeys(IMAGE_ENDINGS, partial(decode_image, size=(1, 1), channels=3)),
        **dict.fromkeys(SOUND_ENDINGS, read_sound),
        **dict.fromkeys(EVENT_ENDINGS, partial(read_events, sensor=camera)),
    }
    known = (path for path in walk(root) if path.suffix.lower() in readers) if root.is_dir() else ()
    paths = sorted(islice(known, _READ))
    bad: dict[Path, UserError] = {}
    for path in need("tqdm").tqdm(paths, "reading all files", unit=" files", disable=None, leave=False):
        try:
            readers[path.suffix.lower()](path)
        except UserError as reason:
            bad[path] = reason
    # Otherwise it was about something else, such as classes without files.
    if len(bad) < 2 or not any(str(error).startswith(f"{path}:") for path in bad):
        return error
    names = ", ".join(str(path.relative_to(root)) for path in islice(bad, _NAMED))
    more = f" and {len(bad) - _NAMED:,} more" * (len(bad) > _NAMED)
    return UserError(
        f"{root}: {len(bad):,} of {len(paths):,} files cannot be read: {names}{more}. Replace or remove them. The "
        f"first is {next(iter(bad.values()))}"
    )
