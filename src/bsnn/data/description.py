"""Says what is in a data set, and draws a sheet of its samples."""

import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.data.audio import sound_seconds
from bsnn.data.cache import in_memory
from bsnn.data.damage import with_all_damaged
from bsnn.data.dataset import Dataset, FileDataset, measure
from bsnn.data.events import NMNIST_SENSOR, read_events
from bsnn.data.finder import find, own
from bsnn.data.folders import is_split_at_random
from bsnn.data.groups import mixed_groups
from bsnn.data.images import image_head
from bsnn.data.tree import walk
from bsnn.errors import UserError
from bsnn.extras import need

_SHOWN_CLASSES = 10
_SHOWN_SAMPLES = 8
_DECODED = 2000
_NAME_LENGTH = 40
# N-MNIST's format does not say its camera, and where it is not known, any will do.
_ANY_CAMERA = (4096, 4096)


def describe(root: str | Path, plot: str | Path | None = None, group: str = "") -> dict[str, Any]:
    """Describes the data set in a folder: kind, classes, counts, shape, mean, standard deviation and more.

    Every file is decoded, as training would, so that damaged ones are found here, and all are named; of a set that is
    too large for memory at most 2,000 training files are decoded.

    Args:
        root: A folder in any of the layouts that `bsnn.data` reads.
        plot: A file to draw a sheet of samples to, `.png`, `.pdf` or `.svg`.
        group: How files of your own are grouped; see `folder`.

    Example:
        >>> describe("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such file or folder.
    """
    if plot is not None:
        _check_plot(plot)
    source = find(root)
    if group and source.name == "speech_commands":
        source = own(Path(root).expanduser())  # some of its words, which its own split may leave without a test set
    if group and source.name != "folder":
        raise UserError(f"group: received {group!r} for {source.name}, which has its own split; expected none.")
    settings = {"group": group} if group else {}
    try:
        splits = {split: source.open(split, **settings) for split in source.splits}
        train = splits["train"]
        for data in splits.values():
            if isinstance(data, FileDataset):
                in_memory(data)  # and kept in the cache folder, where training finds them
        mean, deviation = measure(train, _DECODED)
    except UserError as error:
        camera = NMNIST_SENSOR if source.name == "nmnist" else _ANY_CAMERA
        raise with_all_damaged(error, Path(root).expanduser(), camera) from error
    result: dict[str, Any] = {
        "name": source.name,
        "kind": train.kind,
        "classes": list(train.classes),
        "counts": {split: len(data) for split, data in splits.items()},
        "class_counts": {split: _class_counts(data) for split, data in splits.items()},
        "shape": list(train.shape),
        "dtype": str(train.read(0).dtype),
        "scale": train.scale,
        "mean": [round(value, 6) for value in mean],
        "std": [round(value, 6) for value in deviation],
    }
    if isinstance(train, FileDataset):
        random = source.name == "folder" and not group and is_split_at_random(Path(root).expanduser())
        found = mixed_groups(train, splits["test"]) if random else ""
        result["warnings"] = [found] if found else []
        result["sizes"] = _sizes(train)
        read = {path for data in splits.values() if isinstance(data, FileDataset) for path in data.paths}
        passed = (path for path in walk(Path(root).expanduser()) if path not in read)
        result["ignored"] = dict(Counter(path.suffix.lower() or "no ending" for path in passed).most_common())
    if plot is not None:
        contact_sheet(train, plot)
        result["plot"] = str(plot)
    return result


def describe_text(result: dict[str, Any]) -> str:
    """Words a description for a person.

    Example:
        >>> print(describe_text({
        ...     "name": "folder", "kind": "image", "classes": ["a", "b"], "counts": {"train": 3},
        ...     "class_counts": {"train": {"a": 1, "b": 2}}, "shape": [1, 8, 8], "dtype": "uint8",
        ...     "scale": 255.0, "mean": [0.5], "std": [0.25],
        ...     "sizes": {"unit": "pixels", "smallest": [8, 8], "largest": [20, 30]},
        ...     "ignored": {".heic": 9},
        ... }))
        data       folder, image
        classes    2: a, b
        train      3 samples, 1 to 2 a class
        shape      1 × 8 × 8, uint8, divided by 255
        mean       0.5000
        deviation  0.2500
        sizes      8 × 8 to 20 × 30 pixels
        ignored    9 .heic
    """
    classes = result["classes"]
    names = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
    rows = [("data", f"{result['name']}, {result['kind']}"), ("classes", f"{len(classes)}: {names}")]
    for split, count in result["counts"].items():
        fewest, most = (
            min(result["class_counts"][split].values()),
            max(result["class_counts"][split].values()),
        )
        each = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        rows.append((split, f"{count:,} samples, {each} a class"))
    shape = " × ".join(str(side) for side in result["shape"])
    rows.append(("shape", f"{shape}, {result['dtype']}, divided by {result['scale']:g}"))
    rows.append(("mean", ", ".join(f"{value:.4f}" for value in result["mean"])))
    rows.append(("deviation", ", ".join(f"{value:.4f}" for value in result["std"])))
    if "sizes" in result:
        ends = (" × ".join(f"{side:,}" for side in result["sizes"][end]) for end in ("smallest", "largest"))
        rows.append(("sizes", f"{' to '.join(ends)} {result['sizes']['unit']}"))
    if result.get("ignored"):
        rows.append(("ignored", ", ".join(f"{count:,} {ending}" for ending, count in result["ignored"].items())))
    if "plot" in result:
        rows.append(("plot", result["plot"]))
    rows += [("warning", text) for text in result.get("warnings", ())]
    return "\n".join(f"{name:<11}{text}" for name, text in rows)


def contact_sheet(data: Dataset, path: str | Path, seed: int = 0) -> None:
    """Draws samples of each class: images, spectrograms, or one row of frames per recording.

    Args:
        data: The data set; at most its first ten classes are drawn.
        path: The file, `.png`, `.pdf` or `.svg`.
        seed: Seed for the choice of samples.
    """
    _check_plot(path)
    rng = np.random.default_rng(seed)
    rows = []
    for label in np.unique(data.labels)[:_SHOWN_CLASSES]:
        members = np.flatnonzero(data.labels == label)
        name = data.classes[label].encode("utf-8", "replace").decode()
        shown = name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 3]}..."
        rows.append((shown, _row(data, rng.permutation(members))))
    columns = max(len(tiles) for _, tiles in rows)
    # The margin grows with the names, in inches of 8-point letters.
    margin = max(len(name) for name, _ in rows) * 0.07 + 0.5
    sides = (columns * 0.9 + margin, len(rows) * 0.95 + 0.5)
    figure = need("matplotlib.figure").Figure(sides, layout="constrained")
    figure.suptitle(_title(data), fontsize=10)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for (name, tiles), line in zip(rows, grid, strict=True):
        line[0].text(
            -0.15, 0.5, name, transform=line[0].transAxes, ha="right", va="center", fontsize=8, parse_math=False
        )
        for tile, axes in zip(tiles, line, strict=False):
            axes.set_axis_off()
            if data.kind == "sound":
                axes.imshow(tile, origin="lower", cmap="magma", vmin=0, vmax=1)
            else:
                axes.imshow(tile, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # A letter that the font does not have is drawn as a box, which says as much.
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        figure.savefig(path, dpi=110)


def _check_plot(path: str | Path) -> None:
    if Path(path).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UserError(f"{path}: a contact sheet is drawn as .png, .pdf or .svg; choose such a name.")


def _row(data: Dataset, members: np.ndarray) -> list[np.ndarray]:
    """The images of one class: several samples, or the frames over time of one recording."""
    if data.kind == "event":
        frames = data.read(int(members[0])).astype(np.float64)
        darker, brighter = (frames / max(frames.max(), 1)).transpose(1, 0, 2, 3)
        # Brighter is red, darker is blue, nothing is white.
        return list(np.stack([1 - darker, 1 - np.maximum(darker, brighter), 1 - brighter], axis=-1))
    samples = [data.read(int(index)) / data.scale for index in members[:_SHOWN_SAMPLES]]
    return [sample[0] if len(sample) == 1 else sample.transpose(1, 2, 0) for sample in samples]


def _title(data: Dataset) -> str:
    meaning = {
        "image": "samples",
        "sound": "mel-spectrograms, time to the right, high bands on top",
        "event": "one recording a row, frames over time, red brighter and blue darker",
    }[data.kind]
    return f"{data.name}: {meaning}"


def _class_counts(data: Dataset) -> dict[str, int]:
    counts = np.bincount(data.labels, minlength=len(data.classes))
    return {name: int(count) for name, count in zip(data.classes, counts, strict=True)}


def _sizes(data: FileDataset) -> dict[str, Any]:
    """The smallest and the largest of the files as they are, before they are brought to one shape."""
    chosen = data.paths[:: -(-len(data) // _DECODED)]
    if data.kind == "image":
        unit, sizes = "pixels", [image_head(path)[0] for path in chosen]
    elif data.kind == "sound":
        unit, sizes = "seconds", [(round(sound_seconds(path), 3),) for path in chosen]
    else:
        unit, sizes = "events", [(read_events(path, _ANY_CAMERA).t.size,) for path in chosen]
    smallest, largest = min(sizes, key=math.prod), max(sizes, key=math.prod)
    return {"unit": unit, "smallest": list(smallest), "largest": list(largest)}
