"""What the check at every export lets pass: rounding, and nothing beyond it."""

from dataclasses import replace

import pytest
import torch

import bsnn
from bsnn.data.spec import DataSpec
from bsnn.deploy.lowering import Lowered, lower
from bsnn.deploy.quantize import input_spec
from bsnn.deploy.verification import verify


@pytest.fixture
def pair() -> tuple[bsnn.Stateful, Lowered]:
    torch.manual_seed(0)
    net = bsnn.models.vgg((8, 8), in_channels=1)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(16, 1, 8, 8), 2)
    spec = DataSpec("network", "image", (), (1, 8, 8), (0.0,), (1.0,), 1.0)
    return net, lower(net, input_spec(spec, bounded=False), name="network", classes=None, time_steps=2)


@pytest.mark.parametrize("factor", [0.985, 1.0, 1.015])
def test_outputs_that_are_near(pair: tuple[bsnn.Stateful, Lowered], factor: float) -> None:
    net, lowered = pair
    artifact = replace(lowered.artifact, output_scale=factor * lowered.artifact.output_scale)
    verify(net, lowered._replace(artifact=artifact), (1, 8, 8))


@pytest.mark.parametrize("factor", [0.975, 1.025])
def test_outputs_that_are_not_near(pair: tuple[bsnn.Stateful, Lowered], factor: float) -> None:
    net, lowered = pair
    artifact = replace(lowered.artifact, output_scale=factor * lowered.artifact.output_scale)
    with pytest.raises(bsnn.UserError, match="outputs differ by up to"):
        verify(net, lowered._replace(artifact=artifact), (1, 8, 8))
