"""Opens archives from others: no member leaves the folder, no link is followed, no size is without limit."""

import errno
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from bsnn.errors import UserError

MAX_BYTES = 64 * 2**30
MAX_MEMBERS = 2_000_000
# Longer than any path; heads can be nested, so that many are in memory at once.
_MAX_HEAD_BYTES = 2**16
ENDINGS = (".tar.gz", ".tgz", ".tar", ".zip")


class _Member(NamedTuple):
    name: str
    size: int
    open: Callable[[], IO[bytes]]


class _TarInfo(tarfile.TarInfo):
    """A member's head, refused if it is a bomb: tarfile reads a long name whole, however long it says it is."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        plain = self.type in (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE) and self.type != tarfile.GNUTYPE_SPARSE
        if (not plain and self.size > _MAX_HEAD_BYTES) or self.type == tarfile.GNUTYPE_SPARSE:
            raise UserError(
                f"{archive.name}: a head of {self.size:,} bytes, or one of a sparse file; refused as a bomb. Download "
                "the archive again, or extract it yourself if you trust it."
            )
        return super()._proc_member(archive)  # pyright: ignore[reportAttributeAccessIssue]


def is_archive(path: Path) -> bool:
    """Says whether there is such a file, by its name an archive that can be opened here.

    Example:
        >>> is_archive(Path("no_such_file.tar.gz")), is_archive(Path(__file__))
        (False, False)
    """
    return path.name.lower().endswith(ENDINGS) and path.is_file()


def read_members(path: Path, wanted: Iterable[str], max_bytes: int = 2**30) -> dict[str, bytes]:
    """Reads the members whose last name part is wanted, without writing anything to the disk.

    Args:
        path: A `.tar`, `.tar.gz` or `.zip` file.
        wanted: Names such as `data_batch_1`, whatever folder they are in.
        max_bytes: How large the content may be, all files together.
    """
    names = set(wanted)
    found: dict[str, bytes] = {}
    with _members(path, max_bytes, MAX_MEMBERS) as members:
        for member in members:
            name = PurePosixPath(member.name).name
            if name not in names:
                continue
            if name in found:
                raise UserError(f"{path}: holds {name} twice; expected the original archive, download it again.")
            with member.open() as stream:
                # The size above is the archive's claim; what is read is bounded by it.
                content = stream.read(member.size + 1)
            if len(content) != member.size:
                raise UserError(f"{path}: {member.name} is not the {member.size:,} bytes that the archive says.")
            found[name] = content
    return found


def extract(path: Path, folder: Path, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS) -> Path:
    """Extracts an archive into a new folder: all of it, or nothing.

    Args:
        path: A `.tar`, `.tar.gz` or `.zip` file.
        folder: Where to; must not exist.
        max_bytes: How large the content may be, all files together.
        max_members: How many members there may be.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already; remove it to extract {path} again.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", suffix=".part", dir=folder.parent))
    try:
        with _members(path, max_bytes, max_members) as members:
            for member in members:
                target = part / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with member.open() as stream, target.open("xb") as file:
                    shutil.copyfileobj(stream, file)
                if target.stat().st_size != member.size:
                    raise UserError(f"{path}: {member.name} is not the {member.size:,} bytes that the archive says.")
        part.rename(folder)
    except (FileExistsError, NotADirectoryError) as error:
        name = Path(str(error.filename)).name
        raise UserError(f"{path}: holds {name} twice; download the archive again.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


@contextmanager
def _members(path: Path, max_bytes: int, max_members: int) -> Iterator[Iterator[_Member]]:
    """Opens an archive and gives its plain files, each checked before a byte of it is read."""
    try:
        if path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                yield _bounded(path, _zip_members(path, archive), max_bytes, max_members)
        else:
            with tarfile.open(path, tarinfo=_TarInfo) as archive:
                yield _bounded(path, _tar_members(path, archive), max_bytes, max_members)
    except UserError:
        raise
    # The standard library raises nearly anything for an archive that is cut off, garbled or encrypted.
    except Exception as error:
        if not is_damage(error):
            raise
        raise UserError(f"{path}: not a whole archive ({error}); download it again.") from error


def is_damage(error: Exception) -> bool:
    """Says whether an error is about a file's content; a missing file or a full disk is no damage.

    Example:
        >>> is_damage(EOFError()), is_damage(FileNotFoundError(errno.ENOENT, "no such file"))
        (True, False)
    """
    return not isinstance(error, OSError) or error.errno in (None, errno.EINVAL)


def _bounded(path: Path, members: Iterator[_Member], max_bytes: int, max_members: int) -> Iterator[_Member]:
    total = 0
    for count, member in enumerate(members, 1):
        total += member.size
        if total > max_bytes or count > max_members:
            raise UserError(
                f"{path}: holds more than {max_bytes:,} bytes or {max_members:,} files; refused as a bomb. "
                "Download it again, or extract it yourself if you trust it."
            )
        yield member


def _tar_members(path: Path, archive: tarfile.TarFile) -> Iterator[_Member]:
    for info in archive:
        name = _safe_name(path, info.name)
        if info.isdir():
            continue
        if not info.isreg():
            raise UserError(
                f"{path}: {info.name} is a link or a device; only plain files are extracted. Download the "
                "archive again, or extract it yourself if you trust it."
            )

        def open_member(info: tarfile.TarInfo = info) -> IO[bytes]:
            stream = archive.extractfile(info)
            assert stream is not None, "extractfile gives a stream for every regular member"
            return stream

        yield _Member(name, info.size, open_member)


def _zip_members(path: Path, archive: zipfile.ZipFile) -> Iterator[_Member]:
    for info in archive.infolist():
        name = _safe_name(path, info.filename)
        if info.is_dir():
            continue
        kind = (info.external_attr >> 16) & 0o170000
        if kind not in (0, 0o100000):
            raise UserError(f"{path}: {info.filename} is a link or a device; only plain files are extracted.")
        yield _Member(name, info.file_size, lambda info=info: archive.open(info))


def _safe_name(path: Path, name: str) -> str:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    drive = bool(parts) and ":" in parts[0]
    if ".." in parts or drive or (parts and parts[0].startswith("/")) or "\0" in name:
        raise UserError(
            f"{path}: {name!r} points outside of the folder it is extracted to; the archive is malicious or "
            "damaged. Nothing was extracted."
        )
    return "/".join(parts)
