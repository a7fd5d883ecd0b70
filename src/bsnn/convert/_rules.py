"""Our neuron for a leak, a threshold and a reset, with the gradients that the other package's autograd gives."""

from importlib import import_module
from typing import Any

from bsnn.errors import UserError
from bsnn.nn.neuron import LIF, Stateful
from bsnn.nn.surrogate import Surrogate
from bsnn.nn.trace import BPTT


def neuron(
    where: str, *, hard_reset: bool, leak: float, threshold: float, surrogate: Surrogate, detach_reset: bool
) -> Stateful:
    """A layer of neurons that learns by backpropagation through time, as it did where it comes from.

    Args:
        where: The layer and the function that converts it, for messages.
        hard_reset: Whether a spike sets the membrane to 0; else it subtracts the threshold.
        leak: λ.
        threshold: V_th.
        surrogate: Stand-in for the derivative of the spike.
        detach_reset: Whether no gradient goes through the reset.
    """
    if not threshold > 0:
        raise UserError(f"{where} fires {threshold:g} above its rest; expected a threshold above the reset.")
    kind: Any = LIF
    if hard_reset:
        kind = _hard_reset_lif()
        if kind is None:
            raise UserError(f"{where} has a hard reset; expected a soft one, which subtracts the threshold.")
    try:
        rule = BPTT() if detach_reset else BPTT(detach_reset=False)  # pyright: ignore[reportCallIssue]
    except TypeError:
        raise UserError(f"{where} passes gradients through its reset; expected a detached one.") from None
    return kind(leak=leak, threshold=threshold, surrogate=surrogate, gradient=rule)


def _hard_reset_lif() -> Any:
    try:
        return import_module("bsnn.nn.neurons").HardResetLIF
    except ModuleNotFoundError:
        return None
