"""The 1,797 handwritten digits that come with scikit-learn: 8 × 8, 17 levels of gray, no download."""

import numpy as np

from bsnn.data.dataset import ArrayDataset
from bsnn.data.tree import held_out_places
from bsnn.errors import UserError
from bsnn.extras import need

_SEED = 0
_MEAN, _STD = (0.3054,), (0.3761,)


def digits(split: str = "train") -> ArrayDataset:
    """Reads the bundled digits: 1,438 for training, 359 for test, a fifth of each class drawn by seed 0.

    Args:
        split: `train` or `test`.

    Example:
        >>> len(digits("train")), len(digits("test")), digits().shape
        (1438, 359, (1, 8, 8))
    """
    if split not in ("train", "test"):
        raise UserError(f"digits has no split {split!r}; choose train or test.")
    bundle = need("sklearn.datasets").load_digits()
    images, labels = np.asarray(bundle["images"]), np.asarray(bundle["target"])
    members = [np.flatnonzero(labels == label) for label in range(10)]
    places = held_out_places([len(indices) for indices in members], _SEED)
    held_out = np.zeros(len(labels), bool)
    for indices, drawn in zip(members, places, strict=True):
        held_out[indices[list(drawn)]] = True
    chosen = held_out if split == "test" else ~held_out
    samples = images[chosen, None].astype(np.uint8)
    return ArrayDataset(
        "digits", "image", tuple("0123456789"), labels[chosen].astype(np.int64), samples, _MEAN, _STD, 16.0
    )
