"""The memory that networks of a known shape take on a device: no byte more than was measured."""

from pathlib import Path
from typing import Any

import pytest
import torch

import bsnn
from bsnn.data.spec import DataSpec
from bsnn.deploy.codec import read
from bsnn.deploy.footprint import on_device

PLAN = (32, "pool", 64, "pool", 128, "pool", 256)


@pytest.mark.parametrize(
    ("kind", "shape", "time_steps", "scale", "ram"),
    [
        ("sound", (1, 32, 32), 4, 1.0, 16_308),
        ("image", (3, 32, 32), 4, 255.0, 17_332),
        ("event", (10, 2, 48, 48), 10, 8.0, 80_628),
    ],
)
def test_ram(kind: Any, shape: tuple[int, ...], time_steps: int, scale: float, ram: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    channels = shape[-3]
    net = bsnn.models.vgg(PLAN, in_channels=channels)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(4, *shape[-3:]), 2)
    spec = DataSpec("network", kind, (), shape, (0.4,) * channels, (0.25,) * channels, scale)
    exported = bsnn.export(net, tmp_path / "model.bsnn", spec=spec, time_steps=time_steps)
    device = on_device(read(exported.path))
    assert device.ram_bytes - device.front_ram_bytes == ram


def test_a_line_of_many_channels_is_the_largest_scratch(tmp_path: Path) -> None:
    net = bsnn.models.vgg((4, 4), in_channels=64)
    exported = bsnn.export(net, tmp_path / "model.bsnn", input_shape=(64, 8, 8), time_steps=1)
    device = on_device(read(exported.path))
    assert device.input_bytes == 2 * 64 * 8 * 8
    assert device.layout.scratch_bytes == 4 * 64 * 3 + 384  # three pixels in 32 bits; rows of weights, and sums


def test_ram_of_the_digits() -> None:
    assert on_device(read(bsnn.zoo.path("digits"))).ram_bytes == 4_704
