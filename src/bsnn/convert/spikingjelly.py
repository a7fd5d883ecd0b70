"""From SpikingJelly: `LIFNode` and `IFNode` are neurons of ours with another time constant, threshold and rest.

    decay_input=False    H = V − (V − V_reset)/τ + X          decay_input=True    H = V + (X − (V − V_reset))/τ

With m = V − V_reset, and in the second case times τ, both are u = λ m + X with λ = 1 − 1/τ. The threshold is measured
from V_reset, and in the second case it is τ times as large. IFNode is the first with τ = ∞.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from bsnn.convert._network import BorrowedSurrogate, Neurons, Package, convert
from bsnn.convert._rules import neuron
from bsnn.errors import UserError
from bsnn.nn.network import Sequential
from bsnn.nn.surrogate import Arctan, Rectangle, Sigmoid, Surrogate, Triangle

_FUNCTION = "from_spikingjelly"


def from_spikingjelly(net: nn.Module, *, input_shape: Sequence[int] | None = None) -> Sequential:
    """Converts a SpikingJelly network into an equivalent one of ours.

    It has copies of the same weights, under the same names, and gives the same spikes and outputs in evaluation; that
    is checked on random input. It is called one time step at a time, `output, state = net(x, state)`, whatever the step
    mode was. Its neurons learn by BPTT with the same surrogate and the same `detach_reset`. See docs/migration.md for
    what is converted, and for BatchNorm and Dropout in training.

    Args:
        net: `nn.Sequential`, or a container of SpikingJelly, of its layers and torch's.
        input_shape: Of one sample at one time step, such as `(2, 128, 128)`; found from the layers if None.

    Raises:
        UserError: A layer has no equal here; the message says which one, and why.
    """
    return convert(net, _SPIKINGJELLY, input_shape)


def _node(node: Any, name: str) -> Neurons:
    """A neuron with a time constant, or none."""
    where = f"{_FUNCTION}: layer {name or 'the network'}, a {type(node).__name__},"
    tau = getattr(node, "tau", None)
    leak = 1.0 if tau is None else 1.0 - 1.0 / float(tau)
    gain = float(tau) if tau is not None and node.decay_input else 1.0
    rest = node.v_reset or 0.0
    made = neuron(
        where,
        hard_reset=node.v_reset is not None,
        leak=leak,
        threshold=(float(node.v_threshold) - rest) * gain,
        surrogate=_surrogate(node.surrogate_function, gain, where),
        detach_reset=node.detach_reset,
    )
    return Neurons(made, made.threshold)  # pyright: ignore[reportArgumentType]


def _surrogate(function: Any, gain: float, where: str) -> Surrogate:
    """The same derivative for membranes that are `gain` times as large."""
    if not getattr(function, "spiking", True):
        raise UserError(f"{where} has a surrogate with spiking=False, so it sends no spikes; expected spiking=True.")
    kind, alpha = type(function).__name__, getattr(function, "alpha", None)
    if isinstance(alpha, int | float):
        if kind in ("Sigmoid", "ATan"):
            return (Sigmoid if kind == "Sigmoid" else Arctan)(alpha / gain)
        if kind in ("PiecewiseQuadratic", "Rect"):
            return (Triangle if kind == "PiecewiseQuadratic" else Rectangle)(gain / alpha)
    return BorrowedSurrogate(function, gain)


def _call(layer: Any, x: Tensor) -> Tensor:
    return layer(x)


def _prepare(layer: Any) -> None:
    if hasattr(layer, "step_mode"):
        layer.step_mode = "s"
    if hasattr(layer, "reset"):
        layer.reset()


_ONLINE = "which belongs to online training; use bsnn.LIF(gradient=...) behind bsnn.TracedConv2d or bsnn.BinaryConv2d"
_PLIF = (
    "which learns its leak and not its threshold; in evaluation it is "
    "bsnn.ParametricLIF(leak=1 - sigmoid(w), threshold=...), which learns both"
)
_SPIKINGJELLY = Package(
    function=_FUNCTION,
    root="spikingjelly",
    neurons=dict.fromkeys(("LIFNode", "IFNode", "SimpleLIFNode", "SimpleIFNode"), _node),
    containers=("SeqToANNContainer", "MultiStepContainer", "StepModeContainer"),
    stateless=(
        "Linear", "Conv2d", "BatchNorm1d", "BatchNorm2d", "GroupNorm", "AvgPool2d", "MaxPool2d", "AdaptiveAvgPool2d",
        "Flatten", "Upsample",
    ),
    refused={
        "ParametricLIFNode": _PLIF,
        **dict.fromkeys(("OTTTLIFNode", "SLTTLIFNode", "OTTTSequential", "GradwithTrace", "SpikeTraceOp"), _ONLINE),
        **dict.fromkeys(
            ("Dropout", "Dropout2d"),
            "which keeps one mask for the whole sequence; nn.Dropout, which is converted, draws one per time step",
        ),
        "Delay": "and there are no delays here",
        "NonSpikingLIFNode": "which sends its membrane, not spikes",
        "NonSpikingIFNode": "which sends its membrane, not spikes",
        "VotingLayer": "which averages over classes; use nn.Unflatten and a mean of your own behind the network",
    },
    call=_call,
    prepare=_prepare,
)  # fmt: skip
