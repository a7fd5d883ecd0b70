"""Two sound model files, which the tests of this folder read, change and damage."""

import numpy as np
import pytest

import bsnn
from bsnn.deploy.codec import encode
from bsnn.deploy.schema import Artifact, InputSpec, Synapse


@pytest.fixture(scope="module")
def content() -> bytes:
    """The network of digits that comes with the library."""
    return bsnn.zoo.path("digits").read_bytes()


@pytest.fixture(scope="module")
def odd() -> bytes:
    """A network of 3 outputs, whose tensors leave gaps of 2 and 4 bytes."""
    spec = InputSpec("image", (2, 1, 1), 0, 1.0, (0.0, 0.0), (1.0, 1.0), (1, 1), (0, 0), 0, {})
    weight, numbers = np.ones((2, 3), np.int16), np.ones(3, np.int32)
    layer = Synapse("s", (0,), 3, (1, 1), (1, 1), (0, 0), (1, 1), 1, "int16", 0, 0, weight, numbers, numbers)
    return encode(Artifact("odd", ("a", "b", "c"), 1, 16, spec, (layer,), 1.0))
