"""Your own data: one folder per class, of images, sounds or event recordings.

What the files are is found out by looking at them: the kind by their endings, the channels and the size of
images by their headers, the sensor of recordings by their events.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from bsnn.data.audio import NUM_MELS, SOUND_ENDINGS
from bsnn.data.cache import in_memory, remember, remember_measures
from bsnn.data.dataset import ArrayDataset, FileDataset, Kind
from bsnn.data.events import EVENT_ENDINGS, EVENT_SCALE, NMNIST_SENSOR, decode_events, read_events
from bsnn.data.groups import check_apart, grouped_split
from bsnn.data.images import IMAGE_ENDINGS, decode_image, image_head
from bsnn.data.speech import SPEAKER, is_speech_commands, sound_decoder
from bsnn.data.tree import (
    check_classes,
    choose,
    class_files,
    flat,
    inside,
    refuse_archives,
    seeded_split,
    split_folders,
    walk,
)
from bsnn.errors import UserError

_ENDINGS: dict[Kind, tuple[str, ...]] = {
    "image": IMAGE_ENDINGS,
    "sound": SOUND_ENDINGS,
    "event": EVENT_ENDINGS,
}
# Images that differ in size, or are larger than this, are resized to it.
_IMAGE_SIZE = 64
_EVENT_SIZE = 48
_LARGEST_CAMERA = 2048
# The headers of this many images decide on channels and size.
_HEADS = 20_000


def folder(
    root: str | Path,
    split: str = "train",
    size: int | None = None,
    time_steps: int = 10,
    sensor: tuple[int, int] | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    group: str = "",
) -> ArrayDataset | FileDataset:
    """Reads your own data from folders of classes: images, sounds or event recordings.

    Args:
        root: One folder per class; or folders `train` and `val` or `test` (or all three) with one folder per class in
            each.
        split: `train`, `val` or `test`. If only one of `val` and `test` exists, both names refer to it. Without
            such folders, a fifth of each class is held out, drawn by `seed`.
        size: Rows and columns of a sample. By default, images keep their size if all share one of at most 64 × 64,
            and otherwise become 64 × 64; recordings keep their proportions and become at most 48 rows or columns.
            Sounds are 32 × 32, or of 16 to 40 mel bands and frames.
        time_steps: T, the number of frames of a recording.
        sensor: Rows and columns of the camera, for recordings that do not state them. By default it is just large
            enough for every event of the `.npz` files, and likewise of `.bin` files if most do not fit 34 × 34.
        seed: Seed of the split, if there are no folders for it.
        cache: Where decoded samples are kept; see `cache_folder`.
        group: Keeps files that belong together, such as those of one speaker, in one split: `folder` for the folder
            below the class, or the number of a part of the file name, such as `2` for `jackson` in `7_jackson_32.wav`.
            Whole groups are then held out. Your own split is checked.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name, color in (("dark", 30), ("light", 220)):
        ...         (Path(root) / name).mkdir()
        ...         for number in range(5):
        ...             Image.new("L", (28, 28), color + number).save(Path(root) / name / f"{number}.png")
        ...     data = folder(root, "train", cache=root + "/_cache")
        >>> data.kind, data.classes, len(data), data.shape
        ('image', ('dark', 'light'), 8, (1, 28, 28))
    """
    more = {"cache": cache, "seed": seed, "sensor": sensor, "group": group}
    return in_memory(folder_files(Path(root), split, size, time_steps, **more), cache)


def is_split_at_random(root: Path) -> bool:
    """Whether a folder of your own data has no folders of splits."""
    return not split_folders(inside(root))


def folder_splits(root: Path) -> tuple[str, ...]:
    """Names the splits that `folder` can give."""
    return tuple(split_folders(root)) or ("train", "test")


def folder_files(
    root: Path,
    split: str = "train",
    size: int | None = None,
    time_steps: int = 10,
    *,
    cache: str | Path | None = None,
    seed: int = 0,
    sensor: tuple[int, int] | None = None,
    group: str = "",
) -> FileDataset:
    """The same as `folder`, decoded whenever a sample is read."""
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder; give a folder with one folder per class in it.")
    root = inside(root)
    if size is not None and size < 1:
        raise UserError(f"a size of {size} pixels; expected 1 or more.")
    if time_steps < 1:
        raise UserError(f"{time_steps} time steps; expected 1 or more.")
    if is_speech_commands(root) and group != SPEAKER:
        raise UserError(
            f"{root}: this is Speech Commands, whose speakers must not be in two splits. Read it by its own name "
            f"(speech_commands, or a recipe such as speech-commands-small), or split it by speaker: --group {SPEAKER}."
        )
    kind, splits = _find(root, seed, group)
    found = choose(root, splits, split)
    names, first = tuple(splits["train"]), next(iter(splits["train"]))
    if len(names) < 2:
        raise UserError(
            f"{root}: one class only, {first!r}; expected a folder for each of two or more classes. If "
            f"your classes lie deeper, give {root / first}."
        )
    for other, classes in splits.items():
        check_classes(root, other, classes, names)
    everything = [path for classes in splits.values() for files in classes.values() for path in files]
    if kind == "image":
        head = remember(decode_image, size, everything, lambda: _image_shape(everything, size), cache)
        shape, scale = tuple(head), 255.0
        decode = partial(decode_image, size=shape[1:], channels=shape[0])
    elif kind == "sound":
        (shape, decode), scale = sound_decoder(NUM_MELS if size is None else size), 1.0
    else:
        height, width = sensor or remember(decode_events, "sensor", everything, lambda: _sensor(everything), cache)
        rows, columns = _frame_size(height, width) if size is None else (size, size)
        shape, scale = (time_steps, 2, rows, columns), EVENT_SCALE
        decode = partial(decode_events, time_steps=time_steps, sensor=(height, width), size=(rows, columns))
    channels = shape[-3]
    paths, labels = flat(splits["train"], names)
    # Spectrograms span [0, 1] and are centered like Speech Commands; what other data spans is measured.
    center = (0.5,) * channels
    train = FileDataset("folder", kind, names, labels, shape, center, center, scale, paths, decode)
    if kind != "sound":
        train = remember_measures(train, cache)
    paths, labels = flat(found, names)
    return replace(train, paths=paths, labels=labels)


def _find(root: Path, seed: int, group: str) -> tuple[Kind, dict[str, dict[str, list[Path]]]]:
    folders = split_folders(root)
    kind, grouped = folder_kind(root), {"grouped": group == "folder"}
    if folders:
        splits = {name: class_files(path, _ENDINGS[kind], **grouped) for name, path in folders.items()}
        if group:
            check_apart(splits, group)
        return kind, splits
    classes = class_files(root, _ENDINGS[kind], **grouped)
    return kind, grouped_split(root, classes, group, seed) if group else seeded_split(root, classes, seed)


def folder_kind(root: Path) -> Kind:
    """Finds what the files below `root` are; images next to sounds would be taken for one of the two."""
    endings = Counter(path.suffix.lower() for path in walk(root) if path.parent != root)
    counts: dict[Kind, int] = {kind: sum(endings[ending] for ending in known) for kind, known in _ENDINGS.items()}
    there: list[Kind] = [kind for kind, count in counts.items() if count]
    if len(there) > 1:
        words = " and ".join(f"{counts[kind]:,} {kind} files" for kind in there)
        raise UserError(f"{root}: {words} together; put one kind of data into one folder.")
    if not there and any(path.suffix.lower() in sum(_ENDINGS.values(), ()) for path in walk(root)):
        raise UserError(
            f"{root}: files lie directly in this folder, so their classes are unknown; put each class into a "
            "folder of its own."
        )
    if not there:
        refuse_archives(root)
        known = ", ".join(ending for group in _ENDINGS.values() for ending in group)
        seen = ", ".join(ending or "no ending" for ending, _ in endings.most_common(5)) or "no files"
        raise UserError(
            f"{root}: no data here (found {seen}); expected one folder per class with files of {known} in it."
        )
    return there[0]


def _image_shape(paths: list[Path], size: int | None) -> tuple[int, int, int]:
    """Channels, rows and columns that suit all images."""
    step = max(1, -(-len(paths) // _HEADS))
    heads = [image_head(path) for path in paths[::step]]
    channels = max(channel for _, channel in heads)
    sizes = {sides for sides, _ in heads}
    if size is not None:
        return channels, size, size
    if len(sizes) == 1 and step == 1 and max(next(iter(sizes))) <= _IMAGE_SIZE:
        return channels, *next(iter(sizes))
    return channels, _IMAGE_SIZE, _IMAGE_SIZE


def _frame_size(height: int, width: int) -> tuple[int, int]:
    """As images do, frames keep their proportions: the longer side becomes at most 48."""
    scale = min(1, _EVENT_SIZE / max(height, width))
    return max(round(height * scale), 1), max(round(width * scale), 1)


def _sensor(paths: list[Path]) -> tuple[int, int]:
    """The camera of all recordings: as their format says, or as large as their events need."""
    endings = {path.suffix.lower() for path in paths}
    if len(endings) > 1:
        raise UserError(
            f"{paths[0].parent.parent}: {' and '.join(sorted(endings))} files together, which are of "
            "different cameras; give sensor=(rows, columns), or use one format."
        )
    if endings == {".bin"}:
        corners = [_corner(path, (256, 256)) for path in paths]
        beyond = sum(row > NMNIST_SENSOR[0] or column > NMNIST_SENSOR[1] for row, column in corners)
        # One recording beyond the N-MNIST camera is damaged; most of them are of another camera.
        return _largest(paths, corners) if 2 * beyond > len(paths) else NMNIST_SENSOR
    # A format that does not state its camera needs one that is large enough for every event.
    return read_events(paths[0]).sensor or _largest(paths, [_corner(path, None) for path in paths])


def _corner(path: Path, sensor: tuple[int, int] | None) -> tuple[int, int]:
    events = read_events(path, sensor)
    if sensor is None and events.sensor is not None:
        return events.sensor
    return int(events.y.max()) + 1, int(events.x.max()) + 1


def _largest(paths: list[Path], corners: list[tuple[int, int]]) -> tuple[int, int]:
    rows, columns = (max(sides) for sides in zip(*corners, strict=True))
    for path, corner in zip(paths, corners, strict=True):
        if max(corner) > _LARGEST_CAMERA:
            raise UserError(
                f"{path}: events reach row {corner[0] - 1:,} and column {corner[1] - 1:,}; no event camera "
                "is that large. The file is damaged, or x and y are not pixels."
            )
    return rows, columns
