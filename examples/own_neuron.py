"""A neuron of your own: one class, one method.

It cannot fire twice in a row. The base class makes and checks the state, cuts it from the past and keeps the trace, so
the neuron works under every gradient rule. Train it from the command line, in this folder:

    bsnn train digits --neuron own_neuron:Refractory --epochs 2
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

import bsnn
from bsnn.data import Loader


class RefractoryState(NamedTuple):
    """What is carried from one time step to the next."""

    membrane: Tensor  # after its reset
    resting: Tensor  # 1 where a neuron has just fired
    trace: Tensor | None  # kept by the base class


class Refractory(bsnn.Neuron):
    """LIF neurons that stay silent for one time step after a spike."""

    state_type = RefractoryState
    soft_reset = True  # the reset subtracts, so NDOT may be used

    def fire(self, current: Tensor, past: RefractoryState) -> tuple[Tensor, RefractoryState]:
        """One time step."""
        potential = self.leak * past.membrane + current
        spikes = self.spike(potential - self.threshold) * (1 - past.resting)
        membrane = potential - self.threshold * self.reset_spikes(spikes)
        return spikes, RefractoryState(membrane, spikes.detach(), past.trace)


def main() -> None:
    """Trains two epochs of the bundled digits."""
    torch.manual_seed(0)
    train, test = (Loader(bsnn.data.digits(split), batch_size=64) for split in ("train", "test"))
    net = bsnn.models.vgg((16, 32, "pool", 32), in_channels=1, neuron=Refractory(leak=0.5, gradient="ottt"))
    binary, real = bsnn.split_parameters(net)
    optimizers = [bsnn.optim.TBSO(binary, betas=(0.99, 0.99999), time_steps=4), torch.optim.SGD(real, lr=0.1)]
    for epoch in range(2):
        for images, labels in train.epoch(epoch):
            loss = functools.partial(bsnn.step_loss, labels=labels, time_steps=4)
            bsnn.online_update(net, bsnn.over_time(images, 4), loss, optimizers)
    bsnn.estimate_statistics(net, (images for images, _ in train.ordered()), 4)
    result = bsnn.evaluate(net, test.ordered(), 4)
    print(f"at most {max(result.firing_rates.values()):.0%} of a layer's neurons fire at a time step")
    print(f"test accuracy {result.accuracy:.1%}")


if __name__ == "__main__":
    main()
