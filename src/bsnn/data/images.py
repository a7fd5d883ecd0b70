"""Images: any common file to bytes of one size, and ImageNet-like class folders that stream.

Evaluation resizes the shorter side and takes the center; training on ImageNet crops a random part
(RandomResizedCrop) and flips half of the images.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from bsnn.data.dataset import FileDataset
from bsnn.data.downloads import download
from bsnn.data.tree import check_classes, choose, class_files, flat, folders_below, refuse_archives, split_folders
from bsnn.errors import UserError

_JPEG_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif")
IMAGE_ENDINGS = (*_JPEG_ENDINGS, ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pnm")
# By content, whatever the name says; formats that Pillow hands to other programs are left out.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
_MAX_PIXELS = 80_000_000
# The brightest pixel of a picture in 16 bits: below it, the file rather holds the 8, 10 or 12 bits of a sensor.
_DARKEST = 1 << 12
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Evaluation sees the center of a picture whose shorter side is 256 / 224 of the crop.
_MARGIN = 256 / 224


def imagenet(
    root: str | Path | None = None, split: str = "train", size: int = 224, margin: float = _MARGIN
) -> FileDataset:
    """Reads ImageNet, or any images laid out like it, from folders of classes; each file is read when it is needed.

    Args:
        root: The folder with `train` and `val` (or `test`), one folder per class in each.
        split: `train`, or `val` (also called `test`).
        size: Rows and columns of a sample.
        margin: In evaluation, the shorter side before the center crop, relative to `size`.

    Example:
        >>> imagenet("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such folder; give the folder of imagenet.
    """
    place = download("imagenet") if root is None else Path(root)
    if not place.is_dir():
        raise UserError(f"{place}: there is no such folder; give the folder of imagenet.")
    folders = split_folders(place)
    if not folders:
        refuse_archives(place)
        there = ", ".join(path.name for path in folders_below(place)[:5]) or "no folders"
        raise UserError(f"{place}: found {there}; expected folders train and val with one folder per class in each.")
    folder = choose(place, folders, split)
    names = tuple(class_files(folders["train"], IMAGE_ENDINGS))
    classes = class_files(folder, IMAGE_ENDINGS)
    check_classes(place, split, classes, names)
    paths, labels = flat(classes, names)
    decode = partial(decode_image, size=(size, size), channels=3, margin=margin, random_crop=True)
    return FileDataset(
        "imagenet",
        "image",
        names,
        labels,
        (3, size, size),
        _IMAGENET_MEAN,
        _IMAGENET_STD,
        255.0,
        paths,
        decode,
    )


def decode_image(
    path: Path,
    rng: np.random.Generator | None = None,
    *,
    size: tuple[int, int],
    channels: int,
    margin: float = 1.0,
    random_crop: bool = False,
) -> np.ndarray:
    """Reads a picture as bytes `[channels, rows, columns]`.

    Args:
        path: The file.
        rng: What `random_crop` draws from; None takes the center.
        size: Rows and columns.
        channels: 1 for gray, 3 for color.
        margin: In evaluation, how much larger than `size` the picture is before its center is cut out.
        random_crop: In training, where there is an `rng`, a random part is cropped and half of the images are
            flipped. Your own images are not: a mirrored digit is no digit.
    """
    with _opened(path) as image:
        picture = _to_mode(path, ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
    draws = rng if random_crop else None
    picture = _center(picture, size, margin) if draws is None else _random_crop(picture, size, draws)
    array = np.asarray(picture, np.uint8)
    if channels == 1:
        return array[None].copy()
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def image_head(path: Path) -> tuple[tuple[int, int], int]:
    """Reads rows, columns and the number of channels (1 or 3) without decoding the picture."""
    with _opened(path) as image:
        channels = 1 if image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;") else 3
        if image.mode in ("P", "PA") and image.palette is not None:
            colors = np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
            channels = 1 if np.all(colors == colors[:, :1]) else 3
        columns, rows = image.size
        # Orientations 5 to 8 lie on their side, and there are no others above.
        if image.getexif().get(0x0112, 1) in (5, 6, 7, 8):
            rows, columns = columns, rows
        return (rows, columns), channels


def _open(path: Path) -> Image.Image:
    with warnings.catch_warnings():  # of many pixels, whose number is checked here
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(path, formats=_FORMATS)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with _open(path) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise UserError(
                    f"{path}: {image.width} × {image.height} pixels; at most {_MAX_PIXELS:,} are read. Resize it first."
                )
            yield image
    except Image.DecompressionBombError as error:
        raise UserError(
            f"{path}: more than {_MAX_PIXELS:,} pixels; at most so many are read. Resize it first."
        ) from error
    except UnidentifiedImageError as error:
        raise UserError(f"{path}: not a picture in one of {', '.join(_FORMATS)}; convert or remove it.") from error
    except (UserError, FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything for damaged files.
        raise UserError(
            f"{path}: not a complete picture ({error}); expected a whole file in one of {', '.join(_FORMATS)}."
        ) from error


def _to_mode(path: Path, image: Image.Image, mode: str) -> Image.Image:
    """Converts as the eye would see it: on white where transparent, 16 bits to their upper 8."""
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise UserError(f"{path}: values from {values.min()} to {values.max()}; expected 8 or 16 bits.")
        # The format of "I" has no range of its own: small numbers are bytes.
        narrow = image.mode == "I" and values.size and values.max() < 256
        if not narrow and values.size and 0 < values.max() < _DARKEST:
            raise UserError(
                f"{path}: 16 bits with values up to {values.max():,} only, which is nearly black; expected values up "
                "to 65,535. Save it with 8 bits, or stretch its values."
            )
        image = Image.fromarray((values if narrow else values >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise UserError(f"{path}: holds floating-point pixels; save it with 8 or 16 bits.")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert(mode)


def _center(image: Image.Image, size: tuple[int, int], margin: float) -> Image.Image:
    """Cuts out the largest center of the right proportions, shrunk by `margin`, and resizes it."""
    rows, columns = size
    if image.size == (columns, rows) and margin == 1.0:
        return image
    scale = min(image.width / columns, image.height / rows) / margin
    width, height = columns * scale, rows * scale
    left, top = (image.width - width) / 2, (image.height - height) / 2
    return _resized(image, size, (left, top, left + width, top + height))


def _random_crop(image: Image.Image, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """A part of 8 to 100 % of the area, 3:4 to 4:3, resized; mirrored with probability one half."""
    rows, columns = size
    box = None
    for _ in range(10):
        area = image.width * image.height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= image.width and 0 < height <= image.height:
            left = int(rng.integers(image.width - width + 1))
            top = int(rng.integers(image.height - height + 1))
            box = (left, top, left + width, top + height)
            break
    picture = _center(image, size, 1.0) if box is None else _resized(image, (rows, columns), box)
    return ImageOps.mirror(picture) if rng.random() < 0.5 else picture


def _resized(image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float]) -> Image.Image:
    return image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box)
