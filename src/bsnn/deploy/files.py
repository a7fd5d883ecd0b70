"""What a deployed network makes of files: pictures, sounds, event recordings and arrays; and of its test set."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.data.accuracy import accuracy
from bsnn.data.dataset import Dataset
from bsnn.data.subset import spread_over_classes
from bsnn.deploy.engine import Engine
from bsnn.deploy.listening import Listening, listen
from bsnn.deploy.schema import InputSpec
from bsnn.deploy.sound import Sound, find_sound, read_samples, sound_of
from bsnn.errors import UserError
from bsnn.extras import need

NONE = "none of these"
"""The label of an input that a network rejects."""

_BATCH = 64


def read_input(path: Path, spec: InputSpec, time_steps: int) -> np.ndarray:
    """Reads one file as an input of a network: the raw numbers of its data, or of sounds the network's own integers.

    Args:
        path: A picture, sound or event recording, whichever the network takes; or an array, `.npy`.
        spec: What the network takes.
        time_steps: T, for events.
    """
    _check_exists(path)
    if path.suffix.lower() == ".npy":
        return _array(path)
    channels, height, width = spec.shape
    if spec.kind == "image":
        if channels not in (1, 3):
            raise UserError(f"{path}: the network takes {channels} channels, which no picture has; give a .npy array.")
        images = need("bsnn.data.images")
        picture = images.decode_image(path, size=(height, width), channels=channels, **spec.decode)
        # Some data sets, such as the digits, have other levels of gray than 256.
        return picture if spec.divisor == 255 else np.rint(picture * (spec.divisor / 255)).astype(np.uint8)
    if spec.kind == "sound":
        sound = sound_of(spec)
        return sound.integers(read_samples(path, sound.front_end.samples))
    sensor = spec.decode.get("sensor")
    decode = partial(need("bsnn.data.events").decode_events, **{**spec.decode, "sensor": sensor and tuple(sensor)})
    return decode(path, time_steps=time_steps, size=(height, width))


def _array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except (ValueError, EOFError) as error:  # NumPy's words advise to unpickle what is no array
        raise UserError(
            f"{path}: not a complete array of numbers; expected a .npy file as np.save writes it."
        ) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uif":
        raise UserError(f"{path}: holds {getattr(array, 'dtype', 'an archive')}; expected one array of numbers.")
    return array


class _Unreadable(list[dict[str, str]]):
    """What could not be read, and why."""

    def add(self, path: Path | str, error: UserError | OSError) -> None:
        reason = f"cannot be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)
        self.append({"input": f"{path}", "reason": reason.removeprefix(f"{path}: ")})


def _files_in(folder: Path, unreadable: _Unreadable) -> list[Path]:
    """All files below a folder, such as one with a folder per class; hidden ones are left out."""
    found, number = [], len(unreadable)
    for place, folders, names in os.walk(folder, onerror=lambda error: unreadable.add(error.filename, error)):
        folders[:] = (name for name in folders if not name.startswith("."))
        found += (Path(place, name) for name in names if not name.startswith(".") and Path(place, name).is_file())
    if not found and len(unreadable) == number:
        unreadable.add(folder, UserError("holds no files; expected at least one input."))
    return sorted(found)


def predict_files(
    engine: Engine, paths: list[Path], settings: Listening | None = None, *, normalized: bool = False
) -> dict[str, Any]:
    """The class of each file, and of each sample of an array `[B, C, H, W]`; and which files cannot be read, and why.

    `files` is the number of all of them.

    Args:
        engine: The network.
        paths: Files, or folders whose files are taken in the order of their names, those of subfolders too.
        settings: Of listening: then the predictions are what is heard in the whole of each sound, and when.
        normalized: Whether arrays hold floats that are normalized as in training.

    Raises:
        UserError: There is only one, and it cannot be read.
    """
    unreadable = _Unreadable()
    found = [file for path in paths for file in (_files_in(path, unreadable) if path.is_dir() else [path])]
    if normalized and found and not any(path.suffix.lower() == ".npy" for path in found):
        raise UserError("--normalized: received no .npy array; pictures, sounds and recordings are normalized here.")
    predictions, files = [], len(found) + len(unreadable)
    for path in found:
        try:
            if settings is None:
                predictions += _predictions(engine, path, normalized)
            else:
                predictions += _heard(engine, path, settings)
        except (UserError, OSError) as error:
            unreadable.add(path, error)
    if files == len(unreadable) == 1:
        raise UserError("{input}: {reason}".format(**unreadable[0]))
    return {"predictions": predictions, "unreadable": list(unreadable), "files": files}


def _predictions(engine: Engine, path: Path, normalized: bool) -> Iterator[dict[str, Any]]:
    """One prediction for each sample in a file."""
    # Arrays are as they are said to be; of a sound file, `read_input` makes the network's own integers.
    given = normalized if path.suffix.lower() == ".npy" else engine.artifact.input.kind == "sound"
    x = read_input(path, engine.artifact.input, engine.time_steps)
    if engine.artifact.input.kind == "event" and x.ndim == 4:
        x = x[:, None]
    try:
        outputs, frames = engine.outputs(x, normalized=given), len(engine.integers(x, normalized=given))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    time_steps = engine.time_steps if frames == 1 else frames
    rejected = engine.rejects(outputs, time_steps)
    for number, row in enumerate(outputs):
        logits = row * engine.artifact.output_scale / time_steps
        shares = np.exp(logits - logits.max())
        best = int(row.argmax())
        found = {
            "input": f"{path}[{number}]" if len(outputs) > 1 else f"{path}",
            "label": engine.classes[best],
            "class": best,
            "share": float(shares[best] / shares.sum()),
            **_middle(engine, path),
            **({"frames": frames} if frames > 1 and engine.artifact.input.kind != "event" else {}),
        }
        yield found | {"label": NONE, "class": None, "nearest": found["label"]} if rejected[number] else found


def _middle(engine: Engine, path: Path) -> dict[str, Any]:
    """How long a sound is, and which part of it was taken, if it is longer than what the network takes."""
    if engine.artifact.input.kind != "sound" or path.suffix.lower() == ".npy":
        return {}
    audio = need("bsnn.data.audio")
    whole, part = audio.sound_seconds(path), sound_of(engine.artifact.input).front_end.samples / audio.SAMPLE_RATE
    return {"seconds": whole, "part": [(whole - part) / 2, (whole + part) / 2]} if whole > part else {}


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise UserError(f"{path}: there is no such file.")


def _heard(engine: Engine, path: Path, settings: Listening) -> list[dict[str, Any]]:
    _check_exists(path)
    if path.suffix.lower() == ".npy":
        raise UserError(f"{path}: an array; expected a sound to listen to. Leave --window out, or give a wav.")
    return [{"input": f"{path}", **word} for word in listen(engine, read_samples(path), settings)]


def held_out_set(engine: Engine, root: str | None, group: str = "") -> Dataset:
    """The test set of the data that a network was trained on, found by the network's name.

    Args:
        engine: The network.
        root: Folder of the data; None for what `bsnn.data` has downloaded.
        group: How its files were grouped in training; see `bsnn.data.folder`.
    """
    spec, name = engine.artifact.input, engine.artifact.name
    square = spec.shape[1] if spec.shape[1] == spec.shape[2] else 0
    settings = {"size": square, "time_steps": engine.time_steps, "group": group}
    data = need("bsnn.data.finder").named(name, "test", root, **settings)
    if tuple(data.classes) != engine.classes or data.shape[-3:] != spec.shape:
        raise UserError(
            f"data: {len(data.classes)} classes of shape {data.shape[-3:]}; the model has {len(engine.classes)} of "
            f"shape {spec.shape}. Give the data that it was trained on."
        )
    return data


def batches(engine: Engine, data: Dataset, size: int = _BATCH) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Inputs, as the engine takes them, and labels of a whole data set, in its order."""
    for start in range(0, len(data), size):
        x = np.stack([data.read(i) for i in range(start, min(start + size, len(data)))])
        yield np.swapaxes(x, 0, 1) if engine.artifact.input.kind == "event" else x, data.labels[start : start + size]


def held_out_samples(engine: Engine, root: str | None, count: int) -> np.ndarray:
    """Samples of the test set, spread over its classes, `[B, C, H, W]`; for events `[T, B, C, H, W]`."""
    x, _ = next(batches(engine, spread_over_classes(held_out_set(engine, root), count), count))
    return x


def golden_samples(engine: Engine, root: str, count: int) -> np.ndarray:
    """Samples of the test set, from which `export_c` makes golden vectors; sounds as 16-bit samples `[B, samples]`.

    Args:
        engine: The network.
        root: Folder of the data.
        count: How many.
    """
    if engine.artifact.input.kind != "sound":
        return held_out_samples(engine, root, count)
    data, length = need("bsnn.data.finder").find(root).open("test"), sound_of(engine.artifact.input).front_end.samples
    if data.kind != "sound" or tuple(data.classes) != engine.classes:
        raise UserError(
            f"{root}: {data.kind}s of {len(data.classes)} classes; expected sounds of those of the model: "
            f"{', '.join(engine.classes)}."
        )
    chosen: Any = spread_over_classes(data, count)
    return np.stack([read_samples(path, length) for path in chosen.paths])


def evaluate_model(engine: Engine, root: str | None, group: str = "") -> dict[str, Any]:
    """Test accuracy of a deployed network, and the share of the test set that it would reject, if it can.

    The accuracy is that of the nearest classes, whether they are rejected or not. Sounds are heard as a device hears
    them, from 16-bit samples and in integers, if their files are known and the model file says how: `front_end` is then
    `integers`, otherwise `floats`, as in training.

    Args:
        engine: The network.
        root: Folder of the data; None for what `bsnn.data` has downloaded, by the network's name.
        group: How its files were grouped in training; see `bsnn.data.folder`.
    """
    data, rejected = held_out_set(engine, root, group), 0
    sound, paths = find_sound(engine.artifact.input), getattr(data, "paths", None)
    as_device = sound is not None and bool(paths)

    def predict(x: np.ndarray) -> np.ndarray:
        nonlocal rejected
        outputs = engine.outputs(x, normalized=as_device)
        rejected += int(engine.rejects(outputs).sum())
        return outputs.argmax(axis=1)

    inputs = _device_batches(sound, paths, data.labels) if sound and paths else batches(engine, data)
    found = accuracy(predict, inputs)
    result = {"test_accuracy": found.accuracy, "samples": found.samples, "kernel": engine.kernel}
    if engine.artifact.input.kind == "sound":
        result["front_end"] = "integers" if as_device else "floats"
    return result if engine.artifact.reject_below is None else result | {"rejected": rejected / found.samples}


def _device_batches(sound: Sound, paths: Sequence[Path], labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The network's own integers of sound files, as a device makes them, and labels."""
    for start in range(0, len(paths), _BATCH):
        part = [read_samples(path, sound.front_end.samples) for path in paths[start : start + _BATCH]]
        yield sound.integers(np.stack(part)), labels[start : start + _BATCH]
