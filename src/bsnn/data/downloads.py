"""Fetches the data sets whose owners allow it, checks them, and says what to do where that cannot work.

pooch downloads, verifies and caches. The checksums are the ones that owners publish or other libraries rely
on (MD5 for most): they guard against damage, and nothing that is downloaded is ever run.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsnn.data.archive import extract
from bsnn.data.cache import cache_folder
from bsnn.errors import UserError
from bsnn.extras import need

_KRIZ = "https://www.cs.toronto.edu/~kriz/"
# Where the university has moved such pages to; tried when the address above fails.
_MOVED = {_KRIZ: "https://cave.cs.toronto.edu/kriz/"}
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_SPEECH = "https://storage.googleapis.com/download.tensorflow.org/data/"
_FIGSHARE = "https://ndownloader.figshare.com/files/"


@dataclass(frozen=True)
class _Origin:
    """Where a set comes from: address and checksum of each file, or how to `ask` for it."""

    page: str
    files: dict[str, tuple[str, str]]
    unpack: bool = False
    ask: str = ""


_ORIGINS = {
    "cifar10": _Origin(
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        {
            "cifar-10-binary.tar.gz": (
                _KRIZ + "cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            )
        },
    ),
    "cifar100": _Origin(
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        {
            "cifar-100-python.tar.gz": (
                _KRIZ + "cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
            )
        },
    ),
    "mnist": _Origin(
        "https://yann.lecun.com/exdb/mnist/",
        {
            name: (_MNIST + name, f"md5:{digest}")
            for name, digest in {
                "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
            }.items()
        },
    ),
    "fashion_mnist": _Origin(
        "https://github.com/zalandoresearch/fashion-mnist",
        {
            name: (_FASHION + name, f"md5:{digest}")
            for name, digest in {
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            }.items()
        },
    ),
    "speech_commands": _Origin(
        "https://www.tensorflow.org/datasets/catalog/speech_commands",
        {
            "speech_commands_v0.02.tar.gz": (
                _SPEECH + "speech_commands_v0.02.tar.gz",
                "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
            )
        },
        unpack=True,
    ),
    "dvs_cifar10": _Origin(
        "https://figshare.com/articles/dataset/CIFAR10-DVS_New/4724671",
        {
            f"{name}.zip": (f"{_FIGSHARE}{number}", f"md5:{digest}")
            for name, number, digest in (
                ("airplane", 7712788, "0afd5c4bf9ae06af762a77b180354fdd"),
                ("automobile", 7712791, "8438dfeba3bc970c94962d995b1b9bdd"),
                ("bird", 7712794, "a9c207c91c55b9dc2002dc21c684d785"),
                ("cat", 7712812, "52c63c677c2b15fa5146a8daf4d56687"),
                ("deer", 7712815, "b6bf21f6c04d21ba4e23fc3e36c8a4a3"),
                ("dog", 7712818, "f379ebdf6703d16e0a690782e62639c3"),
                ("frog", 7712842, "cad6ed91214b1c7388a5f6ee56d08803"),
                ("horse", 7712851, "e7cbbf77bec584ffbf913f00e682782a"),
                ("ship", 7712836, "41c7bd7d6b251be82557c6cce9a7d5c9"),
                ("truck", 7712839, "89f3922fd147d9aeff89e76a2b0b70a7"),
            )
        },
        unpack=True,
    ),
    "nmnist": _Origin(
        "https://www.garrickorchard.com/datasets/n-mnist",
        {},
        ask="No address with a checksum is known for it: download Train.zip and Test.zip by hand and "
        "unpack them so that Train/0 to Train/9 and Test/0 to Test/9 lie in that folder",
    ),
    "imagenet": _Origin(
        "https://image-net.org/download.php",
        {},
        ask="Its owner asks for an account: download it by hand and lay it out as train/<class>/*.JPEG and "
        "val/<class>/*.JPEG in that folder",
    ),
}


def download(name: str, cache: str | Path | None = None) -> Path:
    """Downloads what the cache does not have of a data set, and returns its folder there.

    Args:
        name: `cifar10`, `cifar100`, `mnist`, `fashion_mnist`, `speech_commands` or `dvs_cifar10`.
        cache: The cache folder; see `cache_folder`.

    Example:
        >>> download("imagenet", cache="data")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: imagenet cannot be downloaded ... lay it out as ...
    """
    if name not in _ORIGINS:
        raise UserError(f"no data set is called {name!r}; there are {', '.join(sorted(_ORIGINS))}.")
    origin = _ORIGINS[name]
    folder = cache_folder(cache) / name
    if not origin.files:
        if folder.is_dir() and any(folder.iterdir()):
            return folder
        raise UserError(
            f"{name} cannot be downloaded into {folder}. {origin.ask}, or give the folder where you have it "
            f"(see {origin.page})."
        )
    for file, (address, checksum) in origin.files.items():
        unpacked = folder / file.removesuffix(".tar.gz").removesuffix(".zip")
        if origin.unpack and unpacked.is_dir():
            continue
        path = _fetch(name, origin, file, address, checksum, folder)
        if origin.unpack:
            extract(path, unpacked)
    return folder


def _fetch(name: str, origin: _Origin, file: str, address: str, checksum: str, folder: Path) -> Path:
    pooch, requests = need("pooch"), need("requests")
    pooch.get_logger().setLevel("WARNING")
    terminal = sys.stderr.isatty()
    downloader = pooch.HTTPDownloader(progressbar=terminal, timeout=60)
    reasons = []
    for place in (address, *(address.replace(old, new) for old, new in _MOVED.items() if old in address)):
        try:
            return Path(pooch.retrieve(place, checksum, file, folder, downloader=downloader))
        except (requests.RequestException, OSError, ValueError) as error:
            reasons.append(f"{place}: {_reason(error)}")
    raise UserError(
        f"{name}: could not download {file} ({'; '.join(reasons)}). Download it yourself (see {origin.page}) "
        f"and put it at {folder / file}, or give the folder where you have the data."
    )


def _reason(error: Any) -> str:
    """Shortens what the network library says in a page to a few words."""
    requests = need("requests")
    if isinstance(error, requests.HTTPError):
        return f"refused with status {error.response.status_code}"
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return "no connection"
    if isinstance(error, ValueError) and "hash" in str(error):
        return "its checksum is wrong"
    return str(error)
