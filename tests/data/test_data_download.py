import gc
import hashlib
import io
import threading
import warnings
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from data_files import own_cache, put  # noqa: F401

from bsnn import UserError
from bsnn.data import cache_folder, download, downloads


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: test output is for failures."""


@pytest.fixture
def server(tmp_path):
    """A web server on this machine with an archive that stands for a data set's."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("inside/a.txt", "content")
    put(tmp_path / "web" / "a.zip", buffer.getvalue())
    service = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    thread = threading.Thread(target=service.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{service.server_port}", tmp_path / "web" / "a.zip"
    service.shutdown()
    service.server_close()
    thread.join()
    # The download library leaves the answer to a refused request to the garbage collector, which says so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def origin(monkeypatch: pytest.MonkeyPatch, address: str, checksum: str) -> None:
    known = downloads._Origin("https://example.org", {"a.zip": (address, checksum)}, unpack=True)
    monkeypatch.setitem(downloads._ORIGINS, "own", known)


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_downloads_once_and_unpacks(server, monkeypatch, tmp_path, capfd):
    address, path = server
    origin(monkeypatch, f"{address}/a.zip", digest(path))
    folder = download("own", tmp_path / "cache")
    assert (folder / "a" / "inside" / "a.txt").read_text() == "content"
    path.unlink()
    assert download("own", tmp_path / "cache") == folder
    assert capfd.readouterr().err == ""


def test_a_wrong_checksum_is_refused(server, monkeypatch, tmp_path):
    address, _ = server
    origin(monkeypatch, f"{address}/a.zip", "md5:" + "0" * 32)
    with pytest.raises(UserError, match="checksum is wrong") as caught:
        download("own", tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.zip"))
    assert str(tmp_path / "cache" / "own" / "a.zip") in str(caught.value)


@pytest.mark.parametrize(
    ("place", "reason"), [("missing.zip", "refused with status 404"), ("offline", "no connection")]
)
def test_refused_or_offline_says_which_file_to_put_where(server, monkeypatch, tmp_path, place, reason):
    address, path = server
    # Port 9 of this machine answers nobody.
    where = "http://127.0.0.1:9/a.zip" if place == "offline" else f"{address}/{place}"
    origin(monkeypatch, where, digest(path))
    with pytest.raises(UserError) as caught:
        download("own", tmp_path / "cache")
    message = str(caught.value)
    assert "Download it yourself (see https://example.org) and put it at" in message
    assert f"{where}: {reason}" in message
    assert str(tmp_path / "cache" / "own" / "a.zip") in message
    put(tmp_path / "cache" / "own" / "a.zip", path.read_bytes())
    assert (download("own", tmp_path / "cache") / "a" / "inside" / "a.txt").exists()


@pytest.mark.parametrize(("name", "word"), [("imagenet", "account"), ("nmnist", "Train.zip")])
def test_owners_who_do_not_allow_it(tmp_path, name, word):
    with pytest.raises(UserError, match=word) as caught:
        download(name, tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    put(tmp_path / name / "file", b"")
    assert download(name, tmp_path) == tmp_path / name


def test_a_moved_address_is_tried_next(server, monkeypatch, tmp_path):
    address, path = server
    origin(monkeypatch, f"{address}/old/a.zip", digest(path))
    monkeypatch.setitem(downloads._MOVED, f"{address}/old/", f"{address}/")
    assert (download("own", tmp_path / "cache") / "a" / "inside" / "a.txt").exists()


def test_an_unknown_name_lists_the_known(tmp_path):
    with pytest.raises(UserError, match="there are cifar10, cifar100"):
        download("cifar11", tmp_path)


def test_the_cache_folder_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("BSNN_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    assert cache_folder(tmp_path / "b") == tmp_path / "b"
    monkeypatch.delenv("BSNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert cache_folder() == tmp_path / "c" / "bsnn"


def test_every_origin_has_a_checksum():
    for known in downloads._ORIGINS.values():
        assert known.files or known.ask
        for address, checksum in known.files.values():
            assert address.startswith("https://")
            kind, _, value = checksum.partition(":")
            assert len(value) == {"md5": 32, "sha256": 64}[kind]
