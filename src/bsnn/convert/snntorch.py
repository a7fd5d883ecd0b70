"""From snnTorch: `Leaky` is one of our neurons only with some resets.

    "subtract"    U[t] = β U[t−1] + I[t] − V_th s[t−1]        "zero"    U[t] = β U[t−1] (1 − s[t−1]) + I[t]

Ours is λ (U[t−1] − V_th s[t−1]) + I[t]: the leak acts on the reset too, so the first is equal only for β = 1. The
second is a hard reset. A neuron of snnTorch fires at U > V_th and ours at u ≥ V_th, so the threshold becomes the next
number above it in single precision.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bsnn.convert._network import BorrowedSurrogate, Neurons, Package, convert
from bsnn.convert._rules import neuron
from bsnn.errors import UserError
from bsnn.nn.network import Sequential

_FUNCTION = "from_snntorch"


def from_snntorch(net: nn.Module, *, input_shape: Sequence[int] | None = None) -> Sequential:
    """Converts an snnTorch network into an equivalent one of ours.

    It has copies of the same weights, under the same names, and gives the same spikes and outputs in evaluation; that
    is checked on random input. Its neurons learn by BPTT with the same surrogate. A network with its own `forward` is
    given as a list of its layers: `from_snntorch(nn.Sequential(net.fc1, net.lif1, net.fc2, net.lif2))`. See
    docs/migration.md for what is converted.

    Args:
        net: `nn.Sequential` of snnTorch's neurons and torch's layers.
        input_shape: Of one sample at one time step, such as `(1, 28, 28)`; found from the layers if None.

    Raises:
        UserError: A layer has no equal here; the message says which one, and why.
    """
    return convert(net, _SNNTORCH, input_shape)


def _leaky(node: Any, name: str) -> Neurons:
    where = f"{_FUNCTION}: layer {name or 'the network'}, a {type(node).__name__},"
    for option in ("beta", "threshold"):
        value = getattr(node, option)
        if value.numel() != 1:
            raise UserError(f"{where} has a {option} of shape {tuple(value.shape)}; expected one for all neurons.")
        if isinstance(value, nn.Parameter):
            raise UserError(
                f"{where} learns its {option}, now {float(value.detach()):g}; expected a constant, with "
                f"learn_{option}=False. bsnn.ParametricLIF learns both its leak and its threshold."
            )
    for option, plain in (("inhibition", False), ("state_quant", False), ("graded_spikes_factor", 1)):
        value = getattr(node, option, plain)
        if bool((value != plain).any()) if isinstance(value, Tensor) else value != plain:
            raise UserError(f"{where} has {option}={value}; expected {plain}, because no neuron here does that.")
    beta, threshold = min(max(float(node.beta), 0.0), 1.0), float(node.threshold)
    reset = node.reset_mechanism
    delayed = getattr(node, "reset_delay", True)
    if reset == "none" or (reset == "subtract" and not (delayed and beta == 1.0)):
        how = f"{reset!r}" if delayed else f"{reset!r} and reset_delay=False"
        raise UserError(
            f"{where} has reset_mechanism={how} and beta={beta:g}, and no neuron here is reset that way; expected "
            "'zero', or 'subtract' with beta=1. Ours subtracts before the leak, λ (u − V_th s); snnTorch after it."
        )
    above = float(torch.nextafter(torch.tensor(threshold), torch.tensor(torch.inf)))
    made = neuron(
        where,
        hard_reset=reset == "zero",
        leak=beta,
        threshold=above,
        surrogate=BorrowedSurrogate(node.spike_grad),
        detach_reset=delayed,  # without the delay, the spike that resets keeps its graph
    )
    return Neurons(made, threshold)


def _call(layer: Any, x: Tensor) -> Tensor:
    if not hasattr(layer, "reset_mechanism"):
        return layer(x)
    made = layer(x) if layer.init_hidden else layer(x, layer.mem)
    return made[0] if isinstance(made, tuple) else made


def _prepare(layer: Any) -> None:
    if hasattr(layer, "reset_mechanism"):
        layer.mem = torch.zeros(0, dtype=torch.float64)


_SNNTORCH = Package(
    function=_FUNCTION,
    root="snntorch",
    neurons={"Leaky": _leaky},
    containers=(),
    stateless=(),
    refused={
        "Synaptic": "which filters its input by a second leak; no neuron here does",
        "Alpha": "which filters its input by two more leaks; no neuron here does",
        "Lapicque": "whose time constant is R·C; use Leaky with the beta that it shows",
        "RLeaky": "which is recurrent; see bsnn.Recurrent",
        "RSynaptic": "which is recurrent; see bsnn.Recurrent",
    },
    call=_call,
    prepare=_prepare,
)
