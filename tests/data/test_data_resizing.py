"""Images at a smaller size, for the early stages of a run."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bsnn
from bsnn import UserError
from bsnn.data.resizing import at_size


def test_images_shrink_as_pillow_shrinks_them() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 32, 32), dtype=np.uint8)
    data = bsnn.data.ArrayDataset("some", "image", ("a",), np.zeros(3, int), images, (0.5,), (0.2,), 255.0)
    for size in (16, 24, 31):
        small = at_size(data, size)
        assert (small.shape, small.mean) == ((1, size, size), (0.5,))
        for index in range(3):
            picture = Image.fromarray(images[index, 0]).resize((size, size), Image.Resampling.BILINEAR)
            # Pillow rounds between rows and columns, we do once.
            assert np.abs(small.read(index)[0].astype(int) - np.asarray(picture)).max() <= 1
    assert at_size(data, 32) is data
    assert at_size(data, 0) is data


def test_files_are_decoded_at_the_new_size(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (40, 30), {"cat": "red", "dog": "blue"}[name]).save(tmp_path / split / name / "1.png")
    data = bsnn.data.imagenet(tmp_path, "train", size=16)
    small = at_size(data, 8)
    assert small.read(0).shape == (3, 8, 8)
    assert data.read(0).shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("shape", "kind", "size", "message"),
    [
        ((1, 8, 8), "sound", 4, "image_size: received 4 for some, which holds samples of kind sound"),
        ((1, 8, 6), "image", 4, "image_size: received 4 for images of 8 × 6; expected square images"),
        ((1, 8, 8), "image", 9, "image_size: received 9 for images of 8 × 8; expected square images, and at most"),
    ],
)
def test_what_cannot_shrink_is_refused_by_name(shape: tuple, kind: str, size: int, message: str) -> None:
    samples = np.zeros((2, *shape), np.float32)
    data = bsnn.data.ArrayDataset("some", kind, ("a",), np.zeros(2, int), samples, (0.5,), (0.2,), 1.0)  # pyright: ignore
    with pytest.raises(UserError, match=message):
        at_size(data, size)


def test_a_class_that_reads_in_its_own_way_is_refused() -> None:
    class Own(bsnn.data.ArrayDataset):
        def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
            return 255 - self.samples[index]

    own = Own("own", "image", ("a",), np.zeros(2, int), np.zeros((2, 1, 8, 8), np.uint8), (0.5,), (0.2,), 255.0)
    with pytest.raises(UserError, match="image_size: received 4 for own, a Own that reads its samples in its own way"):
        at_size(own, 4)
