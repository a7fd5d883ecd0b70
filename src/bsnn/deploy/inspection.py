"""What a deployed network costs, layer by layer: weights, bytes, RAM and flash on a device, operations, energy.

A spike that arrives adds a row of weights, so additions are counted at the firing rates that were measured when the
model was exported; where none were measured, every input is taken to fire. The rival is a network of the same shape
with 8-bit weights and activations, which is run once, not T times. `ASSUMPTIONS` says what an operation takes.
"""

from typing import Any

from bsnn.deploy.codec import encode
from bsnn.deploy.footprint import on_device
from bsnn.deploy.schema import Add, Artifact, AveragePool, Lif, Scale, Synapse

ENERGY_SOURCE = 'M. Horowitz, "Computing\'s energy problem", ISSCC 2014, 45 nm'
ASSUMPTIONS = (
    "ours: 0.1 pJ per 32-bit addition and 3.1 pJ per 32-bit multiplication; those of 16 bits count as such",
    "int8: 0.3 pJ per multiplication of 8 bits (0.2) and its addition in 32 bits (0.1), and 3.1 pJ per output to scale "
    "it; run once, on events once for all frames",
    "arithmetic alone: not memory access, which takes more in both, nor pooling, nor what a processor spends on an "
    "instruction",
)
"""What the estimate of energy rests on."""
_ADD, _MULTIPLY, _INT8 = 0.1e-12, 3.1e-12, 0.3e-12
_TOTALS = ("weights", "additions", "multiplications", "int8_multiplications")


def inspect(artifact: Artifact) -> dict[str, Any]:
    """Weights, bytes and operations of each layer, for one input over all its time steps.

    Args:
        artifact: The network.
    """
    means, unchanging = _mean_values(artifact), artifact.unchanging(artifact.input.kind != "event")
    device = on_device(artifact)
    layers = [
        _inspect_layer(artifact, group, means, unchanging) | taken
        for group, taken in zip(artifact.groups, device.by_layer(), strict=True)
    ]
    total = {key: sum(line[key] for line in layers) for key in _TOTALS}
    scaled = sum(artifact.values[g[0] + 1].size for g in artifact.groups if isinstance(artifact.layers[g[0]], Synapse))
    return {
        "name": artifact.name,
        "classes": len(artifact.classes),
        "input_shape": list(artifact.input.shape),
        "time_steps": artifact.time_steps,
        "reject_below": artifact.prominence,
        "model_bytes": len(encode(artifact)),
        "weight_bytes": artifact.weight_bytes,
        **device.figures(),
        "layers": layers,
        **total,
        "energy_joules": total["additions"] * _ADD + total["multiplications"] * _MULTIPLY,
        "int8_energy_joules": total["int8_multiplications"] * _INT8 + scaled * _MULTIPLY,
        "energy_source": ENERGY_SOURCE,
        "energy_assumptions": list(ASSUMPTIONS),
    }


def _inspect_layer(
    artifact: Artifact, group: tuple[int, ...], means: list[float], unchanging: list[bool]
) -> dict[str, Any]:
    """A layer of the trained network, and what the layers compute that it became."""
    layer, made = artifact.layers[group[0]], artifact.values[group[-1] + 1]
    line: dict[str, Any] = {
        "name": layer.name,
        "op": layer.op,
        "shape": list(made.shape),
        "weights": 0,
        "bytes": sum(artifact.layers[i].num_bytes for i in group),
        "firing_rate": layer.firing_rate if isinstance(layer, Lif) else None,
        "additions": 0,
        "multiplications": 0,
        "int8_multiplications": 0,
    }
    if isinstance(layer, Synapse):
        taken = artifact.values[layer.inputs[0]]
        line["weights"] = layer.num_weights(taken)
        line["int8_multiplications"] = layer.additions(taken, made)
    for i in group:
        additions, multiplications = _operations(artifact, i, means)
        steps = 1 if unchanging[i + 1] else artifact.time_steps
        line["additions"] += round(additions * steps)
        line["multiplications"] += multiplications * steps
    return line


def _operations(artifact: Artifact, number: int, means: list[float]) -> tuple[float, int]:
    """Additions, at the firing rates, and multiplications of one time step."""
    layer, made = artifact.layers[number], artifact.values[number + 1]
    if isinstance(layer, Lif):
        # The current, and the threshold; a leak that is a power of two is a shift.
        return 2 * made.size, 0 if layer.leak & (layer.leak - 1) == 0 else made.size
    if isinstance(layer, Add):
        return made.size, 0
    if isinstance(layer, Scale):
        return made.size, made.size
    if not isinstance(layer, Synapse):
        return 0, 0
    dense = layer.additions(artifact.values[layer.inputs[0]], made)
    # One multiplication per output, for what was BatchNorm.
    if layer.weights == "bits":
        return dense * means[layer.inputs[0]], made.size
    return dense, made.size + dense


def _mean_values(artifact: Artifact) -> list[float]:
    """The mean of each value of whole numbers, from the firing rates; 1 where it is not known."""
    means = [1.0]
    for layer in artifact.layers:
        first = means[layer.inputs[0]]
        if isinstance(layer, Lif):
            first = 1.0 if layer.firing_rate is None else layer.firing_rate
        elif isinstance(layer, AveragePool):
            first *= layer.kernel[0] * layer.kernel[1]
        several = [means[i] for i in layer.inputs]
        means.append(sum(several) if isinstance(layer, Add) else max(first, *several) if len(several) > 1 else first)
    return means


def inspect_text(result: dict[str, Any]) -> str:
    """The result as a table."""
    shape = " × ".join(map(str, result["input_shape"]))
    lines = [
        f"{result['name']}: {result['classes']} classes from {shape}, T = {result['time_steps']}, "
        f"{result['model_bytes']:,} bytes",
        *_device_text(result),
        *_reject_text(result),
        "",
        f"{'layer':<24}{'output':>14}{'weights':>12}{'flash':>11}{'RAM':>9}{'scratch':>9}{'firing':>14}"
        f"{'additions':>15}{'multiplications':>17}{'int8, once':>15}",
    ]
    for line in result["layers"]:
        keys = ("weights", "flash_bytes", "ram_bytes", "scratch_bytes", *_TOTALS[1:])
        weights, flash, ram, scratch, *counted = (f"{line[key]:,}" if line[key] else "" for key in keys)
        size = "×".join(map(str, line["shape"]))
        lines.append(
            f"{line['name']:<24}{size:>14}{weights:>12}{flash:>11}{ram:>9}{scratch:>9}{_rate(line):>14}"
            f"{counted[0]:>15}{counted[1]:>17}{counted[2]:>15}"
        )
    ours, int8 = result["energy_joules"], result["int8_energy_joules"]
    lines += [
        "",
        f"{result['additions']:,} additions and {result['multiplications']:,} multiplications per input; a network of "
        f"the same shape in int8, run once, takes {result['int8_multiplications']:,} multiplications.",
        f"energy of arithmetic {ours * 1e6:.2f} µJ, in int8 {int8 * 1e6:.2f} µJ ({ours / max(int8, 1e-30):.2f} times), "
        f"estimated after {result['energy_source']}:",
        *(f"- {line}" for line in result["energy_assumptions"]),
    ]
    return "\n".join(lines)


def _device_text(result: dict[str, Any]) -> list[str]:
    """What a device takes in all."""
    membranes = f"{result['membrane_bytes']:,} of membranes, " if result["by_steps"] else ""
    return [
        f"on a device {result['flash_bytes']:,} bytes of flash: {result['constant_bytes']:,} of constants, "
        f"{result['code_bytes']:,} of code on a Cortex-M4",
        f"{result['ram_bytes']:,} bytes of RAM: {result['input_bytes']:,} of input, {membranes}"
        f"{result['value_bytes']:,} of values between layers, {result['scratch_bytes']:,} of scratch"
        + (f", {result['front_ram_bytes']:,} of the front end" if result["front_ram_bytes"] else ""),
        f"{result['stream_ram_bytes']:,} bytes of RAM as a stream, which keeps all membranes",
    ]


def _reject_text(result: dict[str, Any]) -> list[str]:
    if (below := result["reject_below"]) is None:
        return []
    return [f"`none of these` if the largest logit lies less than {below:.3f} above the mean of all"]


def _rate(line: dict[str, Any]) -> str:
    if line["op"] != Lif.op:
        return ""
    return "not measured" if line["firing_rate"] is None else f"{line['firing_rate']:.1%}"
