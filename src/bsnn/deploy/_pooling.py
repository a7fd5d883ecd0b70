"""How pooling is lowered: spikes are counted and divided later, currents are averaged at once."""

from dataclasses import replace
from typing import Any

from torch import nn

from bsnn.deploy._builder import Builder, Signal
from bsnn.deploy.recognition import Node, unsupported
from bsnn.deploy.schema import AveragePool, MaxPool


def lower_pool(builder: Builder, node: Node, x: Signal) -> Signal:
    """What leaves a pooling layer that `x` enters."""
    layer: Any = node.module
    if x.flat:
        raise unsupported(layer, node.name, "behind a Flatten")
    if x.kind == "input":
        x = builder.to_fixed(x, f"{node.name}.input")
    if node.known is nn.MaxPool2d:
        if _both(layer.dilation) != (1, 1) or layer.return_indices:
            raise unsupported(layer, node.name, "with dilation or indices")
        largest = MaxPool(node.name, (x.index,), **_window(layer), ceil=layer.ceil_mode)
        return builder.add(largest, x.unit, x.mean, x.variance)
    pool = _average_pool(node, x)
    if x.kind != "fixed" and _same_divisor(pool, x):
        return builder.add(pool, x.unit / (pool.kernel[0] * pool.kernel[1]))
    # Windows at the border divide by another number, so the division cannot wait.
    fixed = builder.to_fixed(x, f"{node.name}.input")
    return builder.add(replace(pool, inputs=(fixed.index,)), fixed.unit, fixed.mean, fixed.variance)


def _both(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _window(layer: Any) -> dict[str, Any]:
    pairs = {"kernel": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
    return {key: _both(value) for key, value in pairs.items()}


def _average_pool(node: Node, x: Signal) -> AveragePool:
    layer: Any = node.module
    if node.known is nn.AdaptiveAvgPool2d:
        window = _adaptive_window(layer, x, node.name)
        return AveragePool(node.name, (x.index,), **window, ceil=False, count_padding=True)
    if layer.divisor_override is not None:
        raise unsupported(layer, node.name, "with divisor_override")
    window = _window(layer)
    return AveragePool(node.name, (x.index,), **window, ceil=layer.ceil_mode, count_padding=layer.count_include_pad)


def _adaptive_window(layer: nn.AdaptiveAvgPool2d, x: Signal, name: str) -> dict[str, Any]:
    wanted = layer.output_size if isinstance(layer.output_size, tuple) else (layer.output_size, layer.output_size)
    sides = [side if want is None else want for side, want in zip(x.shape[1:], wanted, strict=True)]
    if any(have % want for have, want in zip(x.shape[1:], sides, strict=True)):
        raise unsupported(layer, name, f"from {x.shape[1:]} to {tuple(sides)}, which are no equal windows")
    kernel = (x.shape[1] // sides[0], x.shape[2] // sides[1])
    return {"kernel": kernel, "stride": kernel, "padding": (0, 0)}


def _same_divisor(pool: AveragePool, x: Signal) -> bool:
    """Whether every window of spikes is divided by the kernel's size."""
    _, rows, columns = pool.pooled(x.shape)
    within = all(
        (length - 1) * s + k <= side + 2 * p
        for side, length, k, s, p in zip(
            x.shape[1:], (rows, columns), pool.kernel, pool.stride, pool.padding, strict=True
        )
    )
    return within and (pool.count_padding or pool.padding == (0, 0))
