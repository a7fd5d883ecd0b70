"""Where the authors' published code departs from the paper, as far as a recipe named `-released` follows it.

NDOT's trace there comes from a membrane that is reset already and from which V s is subtracted again:

    μ[t] = (u[t] − 2 V s[t]) / (u[t−1] − 2 V s[t−1])

The weight gradient of the head comes from the trace of its input, its weights begin at N(0, 0.01), and the first
convolution has a bias. Left as ours: the head has no bias, and Cutout comes where it always does.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from bsnn.models import vgg
from bsnn.models.vgg import VGG11
from bsnn.nn.network import ImageNetwork
from bsnn.nn.neuron import Neuron
from bsnn.nn.synapse import TracedLinear


class TwiceResetState(NamedTuple):
    """What a `TwiceResetLIF` carries."""

    membrane: Tensor
    twice: Tensor
    """The membrane from which V s is subtracted again."""
    trace: Tensor | None


class TwiceResetLIF(Neuron):
    """LIF neurons whose trace sees a membrane that was reset twice; all else is as in `LIF`.

    Args:
        leak: λ.
        threshold: V.
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: As in `LIF`; only `"ndot"` makes a difference.

    Example:
        >>> _, state = TwiceResetLIF(gradient="ndot")(torch.tensor([[1.25, 0.5]]), None)
        >>> state.membrane, state.twice
        (tensor([[0.2500, 0.5000]]), tensor([[-0.7500,  0.5000]]))
    """

    state_type = TwiceResetState
    soft_reset = True

    def fire(self, current: Tensor, past: TwiceResetState) -> tuple[Tensor, TwiceResetState]:
        """See `Neuron.fire`."""
        potential = self.leak * past.membrane + current
        spikes = self.spike(potential - self.threshold)
        membrane = potential - self.threshold * self.reset_spikes(spikes)
        return spikes, TwiceResetState(membrane, membrane - self.threshold * spikes.detach(), past.trace)

    def traced_membrane(self, state: TwiceResetState) -> Tensor:
        """See `Neuron.traced_membrane`."""
        return state.twice


def vgg11(in_channels: int, num_classes: int, **shared: Any) -> ImageNetwork:
    """VGG-11 with the released first convolution and head; see `bsnn.models.vgg11` for the arguments."""
    net = vgg(VGG11, in_channels=in_channels, num_classes=num_classes, **shared)
    first, head = net.get_submodule("conv1"), net.get_submodule("classifier")
    assert isinstance(first, nn.Conv2d)
    assert isinstance(head, nn.Linear)
    net.add_module("conv1", nn.Conv2d(in_channels, first.out_channels, 3, padding=1))
    net.add_module("classifier", TracedLinear(head.in_features, num_classes, weights="real"))
    nn.init.normal_(net.get_submodule("classifier").weight, std=0.01)  # pyright: ignore[reportArgumentType]
    return net
