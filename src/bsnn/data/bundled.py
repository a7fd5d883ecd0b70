"""The 1,797 handwritten digits that ship with the package: 8 × 8 pixels, 17 levels of gray, no download.

`digits-LICENSE.md`, next to the file, says where they come from and under which terms.
"""

from pathlib import Path

import numpy as np

from bsnn.data.dataset import ArrayDataset
from bsnn.data.tree import held_out_places
from bsnn.errors import UserError

_FILE = Path(__file__).with_name("digits.npz")
_SEED = 0
_MEAN, _STD = (0.3054,), (0.3761,)


def digits(split: str = "train") -> ArrayDataset:
    """Reads the bundled digits: 1,438 for training and 359 for testing, a fifth of each class drawn with seed 0.

    Args:
        split: `train` or `test`.

    Example:
        >>> len(digits("train")), len(digits("test")), digits().shape
        (1438, 359, (1, 8, 8))
    """
    if split not in ("train", "test"):
        raise UserError(f"digits has no split {split!r}; choose train or test.")
    with np.load(_FILE, allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    members = [np.flatnonzero(labels == label) for label in range(10)]
    places = held_out_places([len(indices) for indices in members], _SEED)
    held_out = np.zeros(len(labels), bool)
    for indices, drawn in zip(members, places, strict=True):
        held_out[indices[list(drawn)]] = True
    chosen = held_out if split == "test" else ~held_out
    return ArrayDataset(
        "digits", "image", tuple("0123456789"), labels[chosen].astype(np.int64), images[chosen, None], _MEAN, _STD, 16.0
    )
