"""The cache folder, and samples decoded once into it.

What is kept there is made again when it is deleted, and is found by what it was made from: the files' names,
sizes and times, and the settings of the decoder.
"""

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.data.dataset import ArrayDataset, FileDataset, measured
from bsnn.extras import need

# A set larger than this streams from its files.
MEMORY_LIMIT = 4 * 2**30
# Part of each key: raise it when a decoder gives other values, and every set is decoded again.
_VERSION = 2


def cache_folder(cache: str | Path | None = None) -> Path:
    """The folder for downloads and decoded samples: the argument, else `BSNN_CACHE`, else `~/.cache/bsnn`.

    Example:
        >>> cache_folder("here").name
        'here'
    """
    if cache is not None:
        return Path(cache).expanduser()
    named = os.environ.get("BSNN_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bsnn"


def in_memory(data: FileDataset, cache: str | Path | None = None) -> FileDataset | ArrayDataset:
    """Decodes a set of files once, if it fits in memory, and keeps the result in the cache folder.

    Args:
        data: The files; a set above `MEMORY_LIMIT` is given back as it is, to stream.
        cache: The cache folder; see `cache_folder`.
    """
    samples = decoded(data, cache)
    if samples is None:
        return data
    rest = data.mean, data.std, data.scale, data.decode, data.paths
    return ArrayDataset(data.name, data.kind, data.classes, data.labels, samples, *rest)


def decoded(data: FileDataset, cache: str | Path | None = None) -> np.ndarray | None:
    """All samples of a set of files, from the cache folder or from the files; None if they do not fit in memory."""
    dtype = data.read(0).dtype
    if len(data) * int(np.prod(data.shape)) * dtype.itemsize > MEMORY_LIMIT:
        return None
    path = cache_folder(cache) / "decoded" / f"{data.name}-{_key(data.decode, data.shape, data.paths)}.npy"
    samples = _cached(path, (len(data), *data.shape), dtype)
    if samples is None:
        samples = np.empty((len(data), *data.shape), dtype)
        for index, sample in enumerate(_progress(_decode(data), len(data), data.name)):
            samples[index] = sample
        _write(path, lambda part: np.save(part, samples))
    return samples


def _decode(data: FileDataset, ahead: int = 64) -> Iterator[np.ndarray]:
    """Yields every sample in order, decoded by threads, never more than `ahead` waiting to be taken."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        indices = iter(range(len(data)))
        waiting = [pool.submit(data.read, index) for index in islice(indices, ahead)]
        try:
            while waiting:
                yield waiting.pop(0).result()
                waiting += [pool.submit(data.read, index) for index in islice(indices, 1)]
        finally:
            pool.shutdown(cancel_futures=True)


def _progress(samples: Iterable[np.ndarray], total: int, name: str) -> Iterable[np.ndarray]:
    # With `disable=None`, tqdm draws only on a terminal.
    return need("tqdm").tqdm(samples, f"decoding {name}", total, unit=" samples", disable=None, leave=False)


def remember(
    what: Callable[..., Any], settings: Any, paths: list[Path], find: Callable[[], Any], cache: str | Path | None = None
) -> Any:
    """Finds something out about files, once: the cache folder remembers it for as long as the files do not change.

    Args:
        what: The decoder it is for.
        settings: What else it depends on.
        paths: The files.
        find: Finds it out; gives what JSON can hold.
        cache: The cache folder; see `cache_folder`.
    """
    path = cache_folder(cache) / "found" / f"{_key(what, settings, paths)}.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        found = find()
    _write(path, lambda part: part.write_text(json.dumps(found)))
    return found


def remember_measures(data: FileDataset, cache: str | Path | None = None) -> FileDataset:
    """Returns the set with its measured mean and standard deviation."""
    mean, std = remember(data.decode, data.shape, data.paths, lambda: measured(data), cache)
    return replace(data, mean=tuple(mean), std=tuple(std))


def _key(decode: Callable[..., Any], rest: Any, paths: list[Path]) -> str:
    """Names all that decoded samples depend on: the decoder, its settings, each file as it is."""
    function, settings = (decode.func, decode.keywords) if isinstance(decode, partial) else (decode, {})
    words = f"{_VERSION} {function.__module__} {function.__qualname__} {sorted(settings.items())} {rest}\n"
    digest = hashlib.sha256(words.encode())
    for path in paths:
        status = path.stat()
        digest.update(os.fsencode(path.resolve()) + f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:20]


def _cached(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
    try:
        samples = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None  # Not there, or damaged: it is made again.
    return samples if samples.shape == shape and samples.dtype == dtype else None


def _write(path: Path, save: Callable[[Path], Any]) -> None:
    """Writes under another name first, so that an interrupted write never looks like a finished one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, suffix=".part") as part:
            save(Path(part) / path.name)
            os.replace(Path(part) / path.name, path)
    except OSError as error:
        # A full or read-only disk costs the next start some time, not this run.
        warnings.warn(f"decoded samples were not kept in {path.parent}: {error}", RuntimeWarning, stacklevel=3)
