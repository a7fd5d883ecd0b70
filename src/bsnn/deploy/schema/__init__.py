"""A deployed network as values and integer layers, and what each layer makes of its inputs; NumPy only.

docs/model-file.md defines both. All of `deploy` imports from here; `bsnn.deploy.codec` turns an `Artifact` into bytes
and back.
"""

from bsnn.deploy.schema._artifact import Artifact, InputSpec
from bsnn.deploy.schema._layers import Add, AveragePool, Concat, Layer, Lif, MaxPool, Pool, Scale, Synapse
from bsnn.deploy.schema._value import LARGEST, MAX_SIDE, BadModel, Kind, Pair, Shape, Value

__all__ = [
    "LARGEST",
    "MAX_SIDE",
    "Add",
    "Artifact",
    "AveragePool",
    "BadModel",
    "Concat",
    "InputSpec",
    "Kind",
    "Layer",
    "Lif",
    "MaxPool",
    "Pair",
    "Pool",
    "Scale",
    "Shape",
    "Synapse",
    "Value",
]
