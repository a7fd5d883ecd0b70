"""How many bytes the networks of Tables 2 and 5 take, counted from the networks at the paper's scale.

A one-bit weight is a bit, also if it was trained with latent weights, and every other parameter four bytes. Nothing is
allocated for it.
"""

import functools
from typing import Any, NamedTuple

import torch

from bsnn.nn.synapse import TracedLayer
from bsnn.paper.numbers import TABLE_2, TABLE_5, Published
from bsnn.paper.recipes import RECIPE_OF, recipe
from bsnn.train.build import build_network
from bsnn.train.config import Config
from bsnn.train.effects import is_own

CLASSES_AND_CHANNELS = {
    "digits": (10, 1), "cifar10": (10, 3), "cifar100": (100, 3), "imagenet": (1000, 3), "dvs_cifar10": (10, 2),
    "speech_commands": (35, 1),
}  # fmt: skip
"""Of the data sets of the paper, and of the digits."""

_REMARKS = {
    87.19: "87.19 MB is the size of a ResNet-34 with BatchNorm",
    85.15: "the paper gives that of another ResNet-34",
    34.32: "the paper gives that of another network",
}


def stored_bytes(config: Config) -> int:
    """The size of a config's network as it is deployed.

    Example:
        >>> stored_bytes(recipe("cifar10-tbso-t4")), stored_bytes(recipe("cifar10-latent-bptt-t6"))
        (1201448, 1201448)
    """
    fields = ("model", "plan", "width", "neuron", "weights", "image_size", "time_steps", "dataset")
    return _bytes(**{name: getattr(config, name) for name in fields})


@functools.cache
def _bytes(**fields: Any) -> int:
    binary = fields["weights"] != "real"
    # A network of the library takes one-bit weights that are real-valued here, so that none is packed.
    config = Config(**{**fields, "weights": fields["weights"] if is_own(fields["model"]) else "real"}, gradient="bptt")
    with torch.device("meta"):
        net = build_network(config, *CLASSES_AND_CHANNELS[config.dataset])
    total = 0
    for module in net.modules():
        one_bit = getattr(module, "bits_per_weight", 32) == 1 or (binary and isinstance(module, TracedLayer))
        for name, parameter in module.named_parameters(recurse=False):
            bits = 1 if one_bit and name == "weight" else 32
            total += -(-bits * parameter.numel() // 8)
    return total


class Size(NamedTuple):
    """A row of a table, and its size as counted."""

    published: Published
    megabytes: float
    remark: str


def sizes() -> list[Size]:
    """Every row of Tables 2 and 5."""
    return [_size(row) for row in (*TABLE_2, *TABLE_5)]


def _size(row: Published) -> Size:
    counted = stored_bytes(recipe(RECIPE_OF[row])) / 1e6
    remark = _REMARKS.get(row.megabytes, "") if abs(counted / row.megabytes - 1) > 0.02 else ""
    if row.method == "CBP" and row.dataset != "imagenet":
        remark = f"the paper's are megabits: {8 * counted:.2f} Mbit"
    elif row.method == "CBP":
        remark = "the paper gives that of its own ResNet-18"
    return Size(row, counted, remark)
