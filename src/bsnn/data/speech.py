"""Google Speech Commands, version 0.01 or 0.02: one folder per word, and the official lists of held-out files."""

import hashlib
import os
from functools import partial
from pathlib import Path

from bsnn.data.audio import HOP, NUM_MELS, NUM_SAMPLES, decode_sound
from bsnn.data.cache import in_memory
from bsnn.data.dataset import ArrayDataset, Decode, FileDataset
from bsnn.data.downloads import download
from bsnn.data.tree import class_files, flat, folders_below, split_folders
from bsnn.errors import UserError

SPEAKER = "1"
"""The group of its files that a speaker is: the part of a name before `_nohash_`."""
_SIZES = 16, 40  # with fewer frames some samples would be in none, with more they would not end with the sound
_LISTS = {"val": "validation_list.txt", "test": "testing_list.txt"}
# Some systems write endings in capitals.
_WAV = ".[Ww][Aa][Vv]"


def speech_commands(
    root: str | Path | None = None, split: str = "train", cache: str | Path | None = None, size: int = NUM_MELS
) -> ArrayDataset | FileDataset:
    """Reads Speech Commands as mel-spectrograms of 32 × 32, or of another size, in [0, 1].

    Args:
        root: The folder with one folder per word; None downloads version 0.02.
        split: `train`, `val` or `test`: what `validation_list.txt` and `testing_list.txt` name, and the rest.
            Without the lists, files are split by the rule that made them, which keeps a speaker in one split.
        cache: Where decoded spectrograms are kept; see `cache_folder`.
        size: Mel bands, and frames; 16 to 40.

    Example:
        >>> speech_commands("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such folder; give the folder of speech_commands.
    """
    place = download("speech_commands", cache) / "speech_commands_v0.02" if root is None else Path(root)
    return in_memory(speech_commands_files(place, split, size), cache)


def sound_decoder(size: int) -> tuple[tuple[int, int, int], Decode]:
    """The shape of a sound's spectrogram, and how to decode it.

    Args:
        size: Mel bands, and frames.

    Example:
        >>> sound_decoder(20)[0]
        (1, 20, 20)
    """
    if not _SIZES[0] <= size <= _SIZES[1]:
        raise UserError(f"a size of {size} for sounds; expected {_SIZES[0]} to {_SIZES[1]} mel bands and frames.")
    # Frames lie a little less than a second / size apart, so that there are as many as bands.
    hop = HOP * NUM_MELS // size
    assert 1 + NUM_SAMPLES // hop == size
    return (1, size, size), decode_sound if size == NUM_MELS else partial(decode_sound, bands=size, hop=hop)


def speech_commands_files(root: Path, split: str, size: int = NUM_MELS) -> FileDataset:
    """The same as `speech_commands`, decoded whenever a sample is read."""
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder; give the folder of speech_commands.")
    if split not in ("train", "val", "test"):
        raise UserError(f"speech_commands has no split {split!r}; choose train, val or test.")
    words = _words(root)
    classes = class_files(words, (".wav",))
    names = tuple(classes)
    splits = _splits(root, words, classes)
    chosen = {name: files for name in names if (files := [path for path in classes[name] if splits[path] == split])}
    if not chosen:
        raise UserError(
            f"{root}: no file belongs to the {split} split of Speech Commands; complete the folder or its lists, or "
            f"read it as your own data, split by speaker: --group {SPEAKER}."
        )
    paths, labels = flat(chosen, names)
    shape, decode = sound_decoder(size)
    return FileDataset("speech_commands", "sound", names, labels, shape, (0.5,), (0.5,), 1.0, paths, decode)


def is_speech_commands(root: Path) -> bool:
    """Says whether words lie here with its lists, its noise or its file names, and are not split by the user.

    As plain sounds, speakers would be in both splits.
    """
    words, marks = _words(root), (*_LISTS.values(), "_background_noise_")
    if not any(words.glob(f"[!._]*/*{_WAV}")) or split_folders(words):
        return False
    return any((root / name).exists() for name in marks) or any(words.glob(f"*/*_nohash_*{_WAV}"))


def _words(root: Path) -> Path:
    """The folder of the words: some copies have one, `audio`, beside the lists."""
    below = folders_below(root)
    beside = len(below) == 1 and any((root / name).is_file() for name in _LISTS.values())
    return below[0] if beside and not any(below[0].glob(f"*{_WAV}")) else root


def official_split(path: Path) -> str:
    """The rule that made the official lists: a hash of the speaker's name decides, 10 % each to val and test.

    Example:
        >>> official_split(Path("left/0a7c2a8d_nohash_0.wav"))
        'train'
    """
    speaker = path.name.partition("_nohash_")[0].removesuffix(".wav")
    place = int(hashlib.sha1(os.fsencode(speaker), usedforsecurity=False).hexdigest(), 16) % 2**27
    percent = place * 100 / (2**27 - 1)
    return "val" if percent < 10 else "test" if percent < 20 else "train"


def _splits(root: Path, words: Path, classes: dict[str, list[Path]]) -> dict[Path, str]:
    paths = [path for files in classes.values() for path in files]
    lists = {split: root / name for split, name in _LISTS.items() if (root / name).is_file()}
    if not lists:
        return {path: official_split(path) for path in paths}
    splits: dict[Path, str] = dict.fromkeys(paths, "train")
    for split, path in lists.items():
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            word, _, file = line.strip().partition("/")
            if not word:
                continue
            if not file or not file.lower().endswith(".wav"):
                raise UserError(f"{path}: line {number} is {line[:80]!r}; expected word/file.wav.")
            named = words / word / file
            # Lists are official and whole; a folder may hold some of the words only.
            if word in classes and named not in splits:
                raise UserError(f"{named}: named in line {number} of {path.name}, and missing; complete the folder.")
            if splits.get(named, "train") not in ("train", split):
                raise UserError(f"{named}: named in both lists; a file belongs to one split. Restore the lists.")
            if named in splits:
                splits[named] = split
    return splits
