"""Our neuron for a leak, a threshold and a reset, with the gradients that the other package's autograd gives."""

from bsnn.errors import UserError
from bsnn.nn.neuron import LIF, Neuron
from bsnn.nn.neurons import HardResetLIF
from bsnn.nn.surrogate import Surrogate
from bsnn.nn.trace import BPTT


def neuron(
    where: str, *, hard_reset: bool, leak: float, threshold: float, surrogate: Surrogate, detach_reset: bool
) -> Neuron:
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
    kind = HardResetLIF if hard_reset else LIF
    return kind(leak=leak, threshold=threshold, surrogate=surrogate, gradient=BPTT(detach_reset=detach_reset))
