"""Data sets as NumPy arrays, and batches from them: the paper's five, MNIST and its kin, a user's own data.

`load(folder, split)` finds out what is there; a function for each set takes its own settings.
"""

from typing import TYPE_CHECKING, Any

from bso.extras import need

if TYPE_CHECKING:
    from bso.data.augment import Augmentation
    from bso.data.bundled import digits
    from bso.data.cache import cache_folder
    from bso.data.cifar import cifar10, cifar100
    from bso.data.dataset import ArrayDataset, Dataset, FileDataset, measure
    from bso.data.description import contact_sheet, describe
    from bso.data.downloads import download
    from bso.data.event_sets import dvs_cifar10, nmnist
    from bso.data.finder import find, load
    from bso.data.folders import folder
    from bso.data.idx import fashion_mnist, mnist
    from bso.data.images import imagenet
    from bso.data.loader import Loader
    from bso.data.speech import speech_commands

__all__ = [
    "ArrayDataset",
    "Augmentation",
    "Dataset",
    "FileDataset",
    "Loader",
    "cache_folder",
    "cifar10",
    "cifar100",
    "contact_sheet",
    "describe",
    "digits",
    "download",
    "dvs_cifar10",
    "fashion_mnist",
    "find",
    "folder",
    "imagenet",
    "load",
    "measure",
    "mnist",
    "nmnist",
    "speech_commands",
]

# A name loads its module, and with it Pillow or another package of the extra `data`, when it is first used.
# The readers never import torch; augmentation and batches do.
_MODULES = {
    **dict.fromkeys(("ArrayDataset", "Dataset", "FileDataset", "measure"), "dataset"),
    **dict.fromkeys(("cifar10", "cifar100"), "cifar"),
    **dict.fromkeys(("mnist", "fashion_mnist"), "idx"),
    **dict.fromkeys(("dvs_cifar10", "nmnist"), "event_sets"),
    **dict.fromkeys(("find", "load"), "finder"),
    **dict.fromkeys(("describe", "contact_sheet"), "description"),
    "Augmentation": "augment",
    "Loader": "loader",
    "cache_folder": "cache",
    "digits": "bundled",
    "download": "downloads",
    "folder": "folders",
    "imagenet": "images",
    "speech_commands": "speech",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bso.data' has no attribute {name!r}")
    return getattr(need(f"bso.data.{_MODULES[name]}"), name)
