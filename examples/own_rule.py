"""A flip rule of your own: one class, one method.

It flips a weight only where its momentum is above a share of the largest one of its layer, so the threshold needs no
knowledge of the scale of the gradients. Train it from the command line, in this folder, like a rule of the library:

    bsnn train digits --optimizer own_rule:Patient --gamma 0.5 --epochs 2
"""

from typing import Any

import torch
from torch import Tensor

import bsnn
from bsnn.data import Loader
from bsnn.optim import FlipOptimizer


class Patient(FlipOptimizer):
    """Flips where W·M is above γ times the largest |M| of the layer."""

    label = "Patient"  # what reports call it

    def __init__(self, params: Any, gamma: float = 0.5, beta: float = 0.99, *, initial_momentum: float = 0.0) -> None:
        super().__init__(params, {"gamma": gamma, "one_minus_beta1": 1 - beta, "initial_momentum": initial_momentum})

    def rule(self, group: dict[str, Any], parameter: bsnn.BinaryParameter, t: int | None) -> Any:
        """Which weights flip, as a function of the signs and the momentum of a whole layer, in its shape."""

        def flips(signs: Tensor, momentum: Tensor) -> Tensor:
            return signs * momentum > group["gamma"] * momentum.abs().max()

        return flips


def main() -> None:
    """Trains two epochs of the bundled digits."""
    torch.manual_seed(0)
    train, test = (Loader(bsnn.data.digits(split), batch_size=64) for split in ("train", "test"))
    net = bsnn.models.vgg((16, 32, "pool", 32), num_classes=10, in_channels=1)
    binary, real = bsnn.split_parameters(net)
    optimizers = [Patient(binary), torch.optim.SGD(real, lr=0.1)]
    for epoch in range(2):
        for images, labels in train.epoch(epoch):
            bsnn.online_update(
                net,
                bsnn.over_time(images, 4),
                lambda logits, labels=labels: bsnn.step_loss(logits, labels, time_steps=4),
                optimizers,
            )
    bsnn.estimate_statistics(net, (images for images, _ in train.ordered()), 4)
    print(f"test accuracy {bsnn.evaluate(net, test.ordered(), 4).accuracy:.1%}")


if __name__ == "__main__":
    main()
