"""What a deployed network costs, layer by layer: weights, bytes, additions, energy.

A spike that arrives adds a row of weights, so additions are counted at the firing rates that were measured when the
model was exported; without them every input is taken to fire. The energy is of arithmetic alone, at 45 nm (M. Horowitz,
"Computing's energy problem", ISSCC 2014): 0.1 pJ a 32-bit integer addition, 3.1 pJ a multiplication, and for the
real-valued network 4.6 pJ a multiplication and addition in single precision. Memory, which costs more, is not in it.
"""

from typing import Any

from bsnn.deploy.artifact import Add, Artifact, AveragePool, Lif, Scale, Synapse, encode

ENERGY_SOURCE = 'M. Horowitz, "Computing\'s energy problem", ISSCC 2014, 45 nm, arithmetic alone'
_ADD, _MULTIPLY, _REAL = 0.1e-12, 3.1e-12, 4.6e-12


def inspect(artifact: Artifact) -> dict[str, Any]:
    """Weights, bytes and operations of each layer, for one input over all its time steps.

    Args:
        artifact: The network.
    """
    means = _mean_values(artifact)
    layers, still = [], artifact.unchanging(artifact.input.kind != "event")
    for layer, dense in zip(artifact.layers, artifact.additions, strict=True):
        steps = 1 if still[len(layers) + 1] else artifact.time_steps
        line: dict[str, Any] = {
            "name": layer.name,
            "op": layer.op,
            "shape": list(artifact.values[len(layers) + 1].shape),
        }
        line |= {"weights": 0, "bytes": 0, "firing_rate": None, "additions": 0, "multiplications": 0}
        line["real_multiplications"] = 0
        if isinstance(layer, Synapse):
            taps = layer.kernel[0] * layer.kernel[1]
            line["weights"] = taps * artifact.values[layer.inputs[0]].shape[0] * layer.out // layer.groups
            line["bytes"] = layer.weight.nbytes + layer.multiplier.nbytes + layer.offset.nbytes
            line["real_multiplications"] = dense * artifact.time_steps
            # One multiplication an output, for what was BatchNorm.
            line["multiplications"] = artifact.values[len(layers) + 1].size * steps
            if layer.weights == "bits":
                line["additions"] = round(dense * steps * means[layer.inputs[0]])
            else:
                line["additions"] = dense * steps
                line["multiplications"] += dense * steps
        elif isinstance(layer, Scale):
            line["bytes"] = layer.multiplier.nbytes + layer.offset.nbytes
        elif isinstance(layer, Lif):
            line["firing_rate"] = layer.firing_rate
        layers.append(line)
    total = {
        key: sum(line[key] for line in layers)
        for key in ("weights", "additions", "multiplications", "real_multiplications")
    }
    return {
        "name": artifact.name,
        "classes": len(artifact.classes),
        "input_shape": list(artifact.input.shape),
        "time_steps": artifact.time_steps,
        "model_bytes": len(encode(artifact)),
        "layers": layers,
        **total,
        "energy_joules": total["additions"] * _ADD + total["multiplications"] * _MULTIPLY,
        "real_energy_joules": total["real_multiplications"] * _REAL,
        "energy_source": ENERGY_SOURCE,
    }


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
        "",
        f"{'layer':<24}{'output':>14}{'weights':>12}{'bytes':>11}{'firing':>8}{'additions':>15}{'multiplications':>17}"
        f"{'real-valued':>15}",
    ]
    for line in result["layers"]:
        rate = "" if line["firing_rate"] is None else f"{line['firing_rate']:.1%}"
        numbers = (line["weights"], line["bytes"])
        shown = [f"{number:,}" if number else "" for number in numbers]
        counted = [f"{line[k]:,}" if line[k] else "" for k in ("additions", "multiplications", "real_multiplications")]
        size = "×".join(map(str, line["shape"]))
        lines.append(
            f"{line['name']:<24}{size:>14}{shown[0]:>12}{shown[1]:>11}{rate:>8}{counted[0]:>15}{counted[1]:>17}"
            f"{counted[2]:>15}"
        )
    ratio = result["real_energy_joules"] / max(result["energy_joules"], 1e-30)
    lines += [
        "",
        f"{result['additions']:,} additions and {result['multiplications']:,} multiplications an input, where the same "
        f"network with real weights and activations takes {result['real_multiplications']:,} multiplications.",
        f"energy of arithmetic {result['energy_joules'] * 1e6:.2f} µJ against "
        f"{result['real_energy_joules'] * 1e6:.2f} µJ ({ratio:.0f}×), estimated after {result['energy_source']}.",
    ]
    return "\n".join(lines)
