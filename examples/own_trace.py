"""A trace of your own: one class, one method.

The trace that weight gradients are made from decays more slowly here than the membrane does. Train with it from the
command line, in this folder:

    bsnn train digits --gradient own_trace:Slow --epochs 2
"""

import functools

import torch
from torch import Tensor

import bsnn
from bsnn.data import Loader


class Slow(bsnn.GradientRule):
    """â[t] = √λ â[t−1] + s[t]."""

    needs_membrane = False  # only the spikes and the past trace are read
    elementwise = True  # each neuron by itself, so the fused step may hand it a part of the batch

    def trace(self, past: Tensor, spikes: Tensor, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        """The new trace."""
        return leak**0.5 * past + spikes


def main() -> None:
    """Trains two epochs of the bundled digits."""
    torch.manual_seed(0)
    train, test = (Loader(bsnn.data.digits(split), batch_size=64) for split in ("train", "test"))
    net = bsnn.models.vgg((16, 32, "pool", 32), in_channels=1, neuron=bsnn.LIF(gradient=Slow()))
    binary, real = bsnn.split_parameters(net)
    optimizers = [bsnn.optim.TBSO(binary, betas=(0.99, 0.99999), time_steps=4), torch.optim.SGD(real, lr=0.1)]
    for epoch in range(2):
        for images, labels in train.epoch(epoch):
            loss = functools.partial(bsnn.step_loss, labels=labels, time_steps=4)
            bsnn.online_update(net, bsnn.over_time(images, 4), loss, optimizers)
    bsnn.estimate_statistics(net, (images for images, _ in train.ordered()), 4)
    print(f"test accuracy {bsnn.evaluate(net, test.ordered(), 4).accuracy:.1%}")


if __name__ == "__main__":
    main()
