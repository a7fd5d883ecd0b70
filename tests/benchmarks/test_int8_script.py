"""The script that compares with networks in int8: what they take, and what is handed to onnxruntime."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import int8  # pyright: ignore[reportMissingImports]


@pytest.mark.parametrize(
    ("plan", "ram", "weights", "channels", "multiplications"),
    [
        # 32 × 32 bytes enter, 4 × 16 × 16 leave, 4 × 8 × 8 are pooled, 8 × 8 × 8 leave.
        (("down", 4, "pool", 8), 1024 + 1024, 36 + 288 + 16, 4 + 8 + 2, 36 * 256 + 288 * 64 + 16),
        # The depthwise convolution takes and leaves 2 × 32 × 32, the pointwise one leaves 3 × 32 × 32.
        ((2, "separable", 3), 5 * 1024, 18 + 18 + 6 + 6, 2 + 2 + 3 + 2, 42 * 1024 + 6),
    ],
)
def test_bytes_and_operations(plan, ram: int, weights: int, channels: int, multiplications: int) -> None:
    assert int8.cost(plan, 2) == (ram, weights + 8 * channels, multiplications)


def test_networks_take_the_memory_that_their_names_say() -> None:
    ours, cost = int8.ours(), {name: int8.cost(plan, 8) for name, plan in int8.PLANS.items()}
    ram = ours["ram_bytes"] - ours["front_end_ram_bytes"]
    assert all(0.85 * ram < found.ram_bytes <= ram for name, found in cost.items() if "RAM" in name)
    assert all(0.9 < found.flash_bytes / ours["constant_bytes"] <= 1 for name, found in cost.items() if "flash" in name)


def test_batchnorm_is_folded_into_the_convolutions() -> None:
    torch.manual_seed(0)
    net = int8.build(("down", 4, "pool", "separable", 6), 3)
    for norm in (layer for layer in net if isinstance(layer, nn.BatchNorm2d)):
        for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            nn.init.uniform_(values, 0.5, 1.5)
    x = torch.randn(2, 1, 32, 32)
    expected = net.eval()(x)
    for layer in int8.folded(net):
        if layer["op"] == "pool":
            x = functional.avg_pool2d(x, 2)
        elif layer["op"] == "linear":
            x = functional.linear(x.mean((2, 3)), layer["weight"], layer["bias"])
        else:
            fields = {key: layer[key] for key in ("stride", "padding", "groups")}
            x = functional.relu(functional.conv2d(x, layer["weight"], layer["bias"], **fields))
    torch.testing.assert_close(x, expected)
