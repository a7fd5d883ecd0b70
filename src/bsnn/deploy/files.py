"""What a deployed network makes of files: pictures, sounds, event recordings and arrays; and of its test set."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.data.accuracy import accuracy
from bsnn.data.dataset import Dataset
from bsnn.deploy.engine import Engine
from bsnn.deploy.listening import Listening, listen
from bsnn.deploy.schema import InputSpec
from bsnn.deploy.sound import read_samples, sound_of
from bsnn.errors import UserError
from bsnn.extras import need

_BATCH = 64


def read_input(path: Path, spec: InputSpec, time_steps: int) -> np.ndarray:
    """Reads one file as an input of a network: raw bytes, normalized real numbers, or of sounds its own integers.

    Args:
        path: A picture, sound or event recording, whichever the network takes; or an array, `.npy`.
        spec: What the network takes.
        time_steps: T, for events.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such file.")
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
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: not a complete array ({error}); expected a .npy file of numbers.") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uif":
        raise UserError(f"{path}: holds {getattr(array, 'dtype', 'an archive')}; expected one array of numbers.")
    if array.dtype.kind in "ui":
        if array.size and (array.min() < 0 or array.max() > 255):
            raise UserError(f"{path}: whole numbers from {array.min()} to {array.max()}; expected bytes, 0 to 255.")
        array = array.astype(np.uint8)
    return array


def _files_in(folder: Path) -> list[Path]:
    """All files below a folder, such as one with a folder per class; hidden ones are left out."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(p.startswith(".") for p in path.relative_to(folder).parts))


def predict_files(
    engine: Engine, paths: list[Path], settings: Listening | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The class of each file, and of each sample of an array `[B, C, H, W]`; and which files cannot be read, and why.

    Args:
        engine: The network.
        paths: Files, or folders whose files are taken in the order of their names, those of subfolders too.
        settings: Of listening: then the predictions are what is heard in the whole of each sound, and when.

    Raises:
        UserError: No file can be read.
    """
    found = [file for path in paths for file in (_files_in(path) if path.is_dir() else [path])]
    if not found:
        raise UserError(f"{paths[0] if paths else 'input'}: holds no files; expected at least one input.")
    predictions, unreadable = [], []
    for path in found:
        try:
            predictions += _predictions(engine, path) if settings is None else _heard(engine, path, settings)
        except (UserError, OSError) as error:
            if len(unreadable) + 1 == len(found):
                raise
            unreadable.append({"input": f"{path}", "reason": str(error).removeprefix(f"{path}: ")})
    return {"predictions": predictions, "unreadable": unreadable}


def _predictions(engine: Engine, path: Path) -> Iterator[dict[str, Any]]:
    """One prediction for each sample in a file."""
    x = read_input(path, engine.artifact.input, engine.time_steps)
    if engine.artifact.input.kind == "event" and x.ndim == 4:
        x = x[:, None]
    try:
        outputs, frames = engine.outputs(x), len(engine.integers(x))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    time_steps = engine.time_steps if frames == 1 else frames
    for number, row in enumerate(outputs):
        logits = row * engine.artifact.output_scale / time_steps
        shares = np.exp(logits - logits.max())
        best = int(row.argmax())
        yield {
            "input": f"{path}[{number}]" if len(outputs) > 1 else f"{path}",
            "label": engine.classes[best],
            "class": best,
            "share": float(shares[best] / shares.sum()),
            **_middle(engine, path),
        }


def _middle(engine: Engine, path: Path) -> dict[str, Any]:
    """How long a sound is, and which part of it was taken, if it is longer than what the network takes."""
    if engine.artifact.input.kind != "sound" or path.suffix.lower() == ".npy":
        return {}
    audio = need("bsnn.data.audio")
    whole, part = audio.sound_seconds(path), sound_of(engine.artifact.input).front_end.samples / audio.SAMPLE_RATE
    return {"seconds": whole, "part": [(whole - part) / 2, (whole + part) / 2]} if whole > part else {}


def _heard(engine: Engine, path: Path, settings: Listening) -> list[dict[str, Any]]:
    if path.suffix.lower() == ".npy":
        raise UserError(f"{path}: an array; expected a sound to listen to. Leave --window out, or give a wav.")
    return [{"input": f"{path}", **word} for word in listen(engine, read_samples(path), settings)]


def held_out_set(engine: Engine, root: str | None) -> Dataset:
    """The test set of the data that a network was trained on, found by the network's name.

    Args:
        engine: The network.
        root: Folder of the data; None for what `bsnn.data` has downloaded.
    """
    spec, name = engine.artifact.input, engine.artifact.name
    square = spec.shape[1] if spec.shape[1] == spec.shape[2] else 0
    data = need("bsnn.data.finder").named(name, "test", root, size=square, time_steps=engine.time_steps)
    if tuple(data.classes) != engine.classes or data.shape[-3:] != spec.shape:
        raise UserError(
            f"data: {len(data.classes)} classes of shape {data.shape[-3:]}; the model has {len(engine.classes)} of "
            f"shape {spec.shape}. Give the data that it was trained on."
        )
    return data


def batches(engine: Engine, data: Dataset, size: int = _BATCH) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Inputs, as the engine takes them, and labels of a whole data set, in its order."""
    spec = engine.artifact.input
    for start in range(0, len(data), size):
        raw = np.stack([data.read(i) for i in range(start, min(start + size, len(data)))])
        x = raw if raw.dtype == np.uint8 else spec.normalize(raw)
        yield np.swapaxes(x, 0, 1) if spec.kind == "event" else x, data.labels[start : start + size]


def held_out_samples(engine: Engine, root: str | None, count: int) -> np.ndarray:
    """The first samples of the test set, `[B, C, H, W]`; for events `[T, B, C, H, W]`."""
    x, _ = next(batches(engine, held_out_set(engine, root), count))
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
    chosen = np.linspace(0, len(data) - 1, min(count, len(data))).astype(int)
    return np.stack([read_samples(data.paths[number], length) for number in chosen])


def evaluate_model(engine: Engine, root: str | None) -> dict[str, Any]:
    """Test accuracy of a deployed network.

    Args:
        engine: The network.
        root: Folder of the data; None for what `bsnn.data` has downloaded, by the network's name.
    """
    found = accuracy(engine.predict, batches(engine, held_out_set(engine, root)))
    return {"test_accuracy": found.accuracy, "samples": found.samples, "kernel": engine.kernel}
