"""What a deployed network costs, layer by layer: weights, bytes, RAM and flash on a device, additions, energy.

A spike that arrives adds a row of weights, so additions are counted at the firing rates that were measured when the
model was exported; where none were measured, every input is taken to fire. The energy is of arithmetic alone, at 45 nm
(M. Horowitz, "Computing's energy problem", ISSCC 2014): 0.1 pJ per 32-bit integer addition, 3.1 pJ per multiplication,
and for the real-valued network 4.6 pJ per multiplication and addition in single precision. Memory access, which costs
more, is not in it.
"""

from typing import Any

from bsnn.deploy.codec import encode
from bsnn.deploy.footprint import on_device
from bsnn.deploy.schema import Add, Artifact, AveragePool, Lif, Synapse

ENERGY_SOURCE = 'M. Horowitz, "Computing\'s energy problem", ISSCC 2014, 45 nm, arithmetic alone'
_ADD, _MULTIPLY, _REAL = 0.1e-12, 3.1e-12, 4.6e-12
_TOTALS = ("weights", "additions", "multiplications", "real_multiplications")


def inspect(artifact: Artifact) -> dict[str, Any]:
    """Weights, bytes and operations of each layer, for one input over all its time steps.

    Args:
        artifact: The network.
    """
    means, unchanging = _mean_values(artifact), artifact.unchanging(artifact.input.kind != "event")
    layers = [_inspect_layer(artifact, number, means, unchanging) for number in range(len(artifact.layers))]
    device = on_device(artifact)
    layers = [line | taken for line, taken in zip(layers, device.by_layer(), strict=True)]
    total = {key: sum(line[key] for line in layers) for key in _TOTALS}
    return {
        "name": artifact.name,
        "classes": len(artifact.classes),
        "input_shape": list(artifact.input.shape),
        "time_steps": artifact.time_steps,
        "model_bytes": len(encode(artifact)),
        "weight_bytes": artifact.weight_bytes,
        **device.figures(),
        "layers": layers,
        **total,
        "energy_joules": total["additions"] * _ADD + total["multiplications"] * _MULTIPLY,
        "real_energy_joules": total["real_multiplications"] * _REAL,
        "energy_source": ENERGY_SOURCE,
    }


def _inspect_layer(artifact: Artifact, number: int, means: list[float], unchanging: list[bool]) -> dict[str, Any]:
    layer, made = artifact.layers[number], artifact.values[number + 1]
    line: dict[str, Any] = {
        "name": layer.name,
        "op": layer.op,
        "shape": list(made.shape),
        "weights": 0,
        "bytes": layer.num_bytes,
        "firing_rate": layer.firing_rate if isinstance(layer, Lif) else None,
        "additions": 0,
        "multiplications": 0,
        "real_multiplications": 0,
    }
    if isinstance(layer, Synapse):
        taken = artifact.values[layer.inputs[0]]
        dense, steps = layer.additions(taken, made), 1 if unchanging[number + 1] else artifact.time_steps
        line["weights"] = layer.num_weights(taken)
        line["real_multiplications"] = dense * artifact.time_steps
        # One multiplication per output, for what was BatchNorm.
        line["multiplications"] = made.size * steps
        if layer.weights == "bits":
            line["additions"] = round(dense * steps * means[layer.inputs[0]])
        else:
            line["additions"] = dense * steps
            line["multiplications"] += dense * steps
    return line


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
        "",
        f"{'layer':<24}{'output':>14}{'weights':>12}{'flash':>11}{'RAM':>9}{'scratch':>9}{'firing':>14}"
        f"{'additions':>15}{'multiplications':>17}{'real-valued':>15}",
    ]
    for line in result["layers"]:
        keys = ("weights", "flash_bytes", "ram_bytes", "scratch_bytes", *_TOTALS[1:])
        weights, flash, ram, scratch, *counted = (f"{line[key]:,}" if line[key] else "" for key in keys)
        size = "×".join(map(str, line["shape"]))
        lines.append(
            f"{line['name']:<24}{size:>14}{weights:>12}{flash:>11}{ram:>9}{scratch:>9}{_rate(line):>14}"
            f"{counted[0]:>15}{counted[1]:>17}{counted[2]:>15}"
        )
    ratio = result["real_energy_joules"] / max(result["energy_joules"], 1e-30)
    lines += [
        "",
        f"{result['additions']:,} additions and {result['multiplications']:,} multiplications per input; the same "
        f"network with real weights and activations takes {result['real_multiplications']:,} multiplications.",
        f"energy of arithmetic {result['energy_joules'] * 1e6:.2f} µJ against "
        f"{result['real_energy_joules'] * 1e6:.2f} µJ ({ratio:.0f}×), estimated after {result['energy_source']}.",
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
        + (f", {result['sound_ram_bytes']:,} of the front end that hears" if result["sound_ram_bytes"] else ""),
        f"{result['stream_ram_bytes']:,} bytes of RAM as a stream, which keeps all membranes",
    ]


def _rate(line: dict[str, Any]) -> str:
    if line["op"] != Lif.op:
        return ""
    return "not measured" if line["firing_rate"] is None else f"{line['firing_rate']:.1%}"
