"""Conversion from SpikingJelly and snnTorch, against the packages themselves: spikes and gradients in double precision.

    python benchmarks/migration.py --peers PYTHON

PYTHON is the interpreter of an environment that has torch, spikingjelly and snntorch; bsnn is taken from this checkout.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bsnn

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "migration.json"
TIME_STEPS, BATCH = 6, 4


def spikingjelly_networks() -> Iterator[tuple[str, nn.Module]]:
    """Networks with every reset, every convention of the input, and several surrogates."""
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    kinds = surrogate.Sigmoid, surrogate.ATan, surrogate.PiecewiseQuadratic, surrogate.Rect, surrogate.Erf
    surrogates = [kind() for kind in kinds]
    resets = itertools.product((None, 0.0, -0.3), (True, False))
    for (reset, detach), (kind, decay) in itertools.product(resets, (("LIF", True), ("LIF", False), ("IF", None))):
        function = surrogates[(len(kind) + bool(decay) + detach + (reset is None)) % len(surrogates)]
        made = {"v_threshold": 0.7, "v_reset": reset, "detach_reset": detach, "surrogate_function": function}
        made |= {} if decay is None else {"tau": 1.7, "decay_input": decay}
        net = nn.Sequential(
            layer.Conv2d(2, 8, 3, padding=1), layer.BatchNorm2d(8), getattr(neuron, f"{kind}Node")(**made),
            layer.MaxPool2d(2), layer.Flatten(), layer.Linear(128, 10), getattr(neuron, f"{kind}Node")(**made),
        )  # fmt: skip
        functional.set_step_mode(net, "m" if detach else "s")
        yield f"{kind}Node(decay_input={decay}, v_reset={reset}, detach_reset={detach}, {type(function).__name__})", net


def snntorch_networks() -> Iterator[tuple[str, nn.Module]]:
    """Networks with the two resets that have an equal."""
    import snntorch
    from snntorch import surrogate

    surrogates = (surrogate.atan(), surrogate.fast_sigmoid(), surrogate.sigmoid())
    for (reset, beta), delay in itertools.product((("zero", 0.8), ("zero", 0.3), ("subtract", 1.0)), (True, False)):
        if reset == "subtract" and not delay:
            continue
        made = {"beta": beta, "reset_mechanism": reset, "reset_delay": delay, "init_hidden": True}
        made |= {"spike_grad": surrogates[int(10 * beta + delay) % 3], "threshold": 0.5}
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(128, 40), snntorch.Leaky(**made), nn.Linear(40, 10), snntorch.Leaky(**made)
        )
        yield f"Leaky(beta={beta}, reset_mechanism={reset}, reset_delay={delay})", net


def compared(convert: Callable[..., nn.Module], net: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> Any:
    """Spikes and gradients of a network and of its conversion, over one random sequence."""
    net[-2].weight.data *= 4  # pyright: ignore  # so that the last layer fires
    ours = convert(net, input_shape=(2, 8, 8)).double().train()
    for module in net.modules():
        if hasattr(module, "step_mode"):
            module.step_mode = "s"
        if hasattr(module, "reset_mechanism"):
            module.reset_mem()
        elif hasattr(module, "reset"):
            module.reset()
    net.double().train()
    frames = 3 * torch.randn(TIME_STEPS, BATCH, 2, 8, 8, dtype=torch.float64)
    theirs = torch.stack([call(net, frame) for frame in frames]).double()
    made, state = [], None
    for frame in frames:
        activity, state = ours(frame, state)
        made.append(activity.spikes)
    found = torch.stack(made)
    weight = torch.randn_like(theirs)
    (theirs * weight).sum().backward()
    (found * weight).sum().backward()
    gradients = [torch.cat([p.grad.flatten() for p in part.parameters() if p.grad is not None]) for part in (ours, net)]
    return {
        "spikes": found.numel(),
        "fired": int(theirs.sum()),
        "spikes_that_differ": int((found != theirs).sum()),
        "largest_gradient_difference": float((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()),
    }


def layer_by_layer(net: nn.Module, x: Tensor) -> Tensor:
    """SnnTorch's spikes are single precision whatever enters."""
    for layer in net:  # pyright: ignore[reportGeneralTypeIssues]
        x = layer(x).double()
    return x


def child() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    results = {}
    with bsnn.backend("reference"):
        for name, net in spikingjelly_networks():
            results[f"spikingjelly {name}"] = compared(bsnn.from_spikingjelly, net, lambda net, x: net(x))
        for name, net in snntorch_networks():
            results[f"snntorch {name}"] = compared(bsnn.from_snntorch, net, layer_by_layer)
    versions = {name: metadata.version(name) for name in ("torch", "spikingjelly", "snntorch")}
    print(json.dumps({"versions": versions, "networks": results}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="python of an environment that has both packages")
    options = parser.parse_args()
    if options.peers is None:
        child()
        return
    paths = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([options.peers, __file__], env=paths, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    content = {"command": "python benchmarks/migration.py --peers PYTHON", **found}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    networks = found["networks"].values()
    print(
        f"{len(networks)} networks, {sum(n['spikes_that_differ'] for n in networks)} of "
        f"{sum(n['spikes'] for n in networks):,} spikes differ, gradients by at most "
        f"{max(n['largest_gradient_difference'] for n in networks):.1e}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
