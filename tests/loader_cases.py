"""What the tests of the loader share: a small data set in memory, and every augmentation at once."""

import numpy as np

from bsnn.data.augment import Augmentation
from bsnn.data.dataset import ArrayDataset

EVERYTHING = Augmentation(crop_padding=1, cutout=2, crop_mode="reflect", alternating_flip=True, mixup=0.5)
CLASSES = ("a", "b", "c")
SHAPE = (2, 6, 6)


def in_memory(count: int = 23, shape: tuple[int, ...] = SHAPE) -> ArrayDataset:
    """Sample i holds random bytes, its own number in the corner and label i mod 3."""
    samples = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
    samples[..., 0, 0] = np.arange(count).reshape(-1, *[1] * (len(shape) - 2))
    return ArrayDataset(
        name="memory",
        kind="event" if len(shape) == 4 else "image",
        classes=CLASSES,
        labels=np.arange(count) % 3,
        samples=samples,
        mean=(0.4, 0.5),
        std=(0.2, 0.3),
        scale=255.0,
    )
