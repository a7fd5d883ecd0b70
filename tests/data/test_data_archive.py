import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from data_files import put

from bsnn import UserError
from bsnn.data.archive import extract, read_members


def tar(path: Path, *members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, link
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, *members: tuple[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


@pytest.mark.parametrize("make", [tar, zipped])
def test_extracts_files_at_any_depth(tmp_path, make):
    archive = make(tmp_path / f"a.{'zip' if make is zipped else 'tar.gz'}", ("x/y/b.txt", b"b"), ("./a.txt", b"a"))
    folder = extract(archive, tmp_path / "out")
    assert (folder / "x/y/b.txt").read_bytes() == b"b"
    assert (folder / "a.txt").read_bytes() == b"a"
    assert read_members(archive, ["b.txt", "none"]) == {"b.txt": b"b"}
    with pytest.raises(UserError, match="exists already"):
        extract(archive, tmp_path / "out")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:/evil", "a/.."])
@pytest.mark.parametrize("make", [tar, zipped])
def test_members_that_point_outside_are_refused(tmp_path, make, name):
    archive = make(tmp_path / f"a.{'zip' if make is zipped else 'tar.gz'}", ("good", b"1"), (name, b"2"))
    with pytest.raises(UserError, match="points outside") as caught:
        extract(archive, tmp_path / "deep" / "out")
    assert str(archive) in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [archive.name, "deep"]
    with pytest.raises(UserError, match="points outside"):
        read_members(archive, ["evil"])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    archive = tar(tmp_path / "a.tar.gz", ("link", b""), kind=kind, link="/etc/passwd")
    with pytest.raises(UserError, match="is a link or a device"):
        extract(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_in_zip_files_are_refused(tmp_path):
    archive = zipped(tmp_path / "a.zip", ("link", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777)
    with pytest.raises(UserError, match="is a link or a device"):
        extract(archive, tmp_path / "out")


def test_bombs_are_refused_before_they_go_off(tmp_path):
    bomb = zipped(tmp_path / "bomb.zip", ("zeros", bytes(10_000_000)))
    assert bomb.stat().st_size < 20_000
    with pytest.raises(UserError, match="refused as a bomb"):
        extract(bomb, tmp_path / "out", max_bytes=1_000_000)
    with pytest.raises(UserError, match="more than 1,000,000 bytes"):
        read_members(bomb, ["zeros"], max_bytes=1_000_000)
    many = tar(tmp_path / "many.tar.gz", *((f"{number}", b"") for number in range(20)))
    with pytest.raises(UserError, match="10 files; refused as a bomb"):
        extract(many, tmp_path / "out", max_members=10)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_bomb_in_a_long_name_is_refused(tmp_path, kind):
    bomb = tar(tmp_path / "bomb.tar.gz", ("name", bytes(5_000_000)), kind=kind)
    assert bomb.stat().st_size < 20_000
    for read in (lambda: extract(bomb, tmp_path / "out"), lambda: read_members(bomb, ["a"])):
        with pytest.raises(UserError, match=r"bomb.tar.gz: a head of 5,000,000 bytes"):
            read()


def test_long_names_are_read(tmp_path):
    name = "/".join(["a_long_folder"] * 20)
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=form) as archive:
            info = tarfile.TarInfo(f"{name}/batch")
            info.size = 2
            archive.addfile(info, io.BytesIO(b"ok"))
        assert read_members(tmp_path / "a.tar", ["batch"]) == {"batch": b"ok"}


def test_the_whole_of_an_archive_is_bounded(tmp_path):
    archive = tar(tmp_path / "a.tar.gz", *((f"{number}", bytes(900)) for number in range(5)))
    with pytest.raises(UserError, match="more than 4,000 bytes"):
        read_members(archive, ["0"], max_bytes=4000)


def test_a_member_twice_is_refused(tmp_path):
    archive = tar(tmp_path / "a.tar.gz", ("same", b"1"), ("same", b"2"))
    with pytest.raises(UserError, match="twice"):
        extract(archive, tmp_path / "out")
    with pytest.raises(UserError, match="holds same twice"):
        read_members(archive, ["same"])


def test_damaged_archives_are_refused(tmp_path):
    whole = zipped(tmp_path / "whole.zip", ("a", bytes(range(256)) * 40)).read_bytes()
    flipped = bytearray(whole)
    flipped[60] ^= 0xFF
    for name, content in (
        ("cut.zip", whole[:-30]),
        ("flip.zip", bytes(flipped)),
        ("none.tar.gz", b"\x1f\x8b"),
    ):
        with pytest.raises(UserError, match=rf"{name}: not a whole archive"):
            extract(put(tmp_path / name, content), tmp_path / "out")
    assert not (tmp_path / "out").exists()
