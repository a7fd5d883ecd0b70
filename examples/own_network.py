"""Build your own network from ordinary layers, binary layers, neurons and branches, and train it."""

import functools

import torch
from torch import nn

import bsnn
from bsnn.data import Loader

TIME_STEPS, EPOCHS = 4, 3


def block(channels: int) -> bsnn.Residual:
    """A residual block: spikes, a binary convolution, BatchNorm; what comes in is added to what goes out."""
    return bsnn.Residual(
        bsnn.Sequential(
            bsnn.LIF(),
            bsnn.BinaryConv2d(channels, channels, 3, padding=1),
            bsnn.BatchNorm2d(channels),
        )
    )


torch.manual_seed(0)
net = bsnn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),  # sees pixels, so it stays real-valued
    bsnn.BatchNorm2d(16),
    # Two branches whose spikes are stacked: 16 + 16 channels.
    bsnn.Concat(
        bsnn.LIF(),
        bsnn.Sequential(bsnn.LIF(), bsnn.BinaryConv2d(16, 16, 3, padding=1), bsnn.BatchNorm2d(16), bsnn.LIF()),
    ),
    nn.AvgPool2d(2),
    bsnn.BinaryConv2d(32, 32, 3, padding=1),
    bsnn.BatchNorm2d(32),
    block(32),
    bsnn.LIF(leak=0.5, gradient="ottt"),  # or "ndot", "sltt"
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)

binary, real = bsnn.split_parameters(net)
flip = bsnn.optim.TBSO(binary, betas=(0.99, 0.99999), time_steps=TIME_STEPS)
optimizers = [flip, torch.optim.SGD(real, lr=0.1)]

train = Loader(bsnn.data.digits("train"), batch_size=64)
test = Loader(bsnn.data.digits("test"), batch_size=64)
schedule = bsnn.optim.Schedule(flip, one_minus_beta1=bsnn.optim.cosine(EPOCHS * len(train)))

for epoch in range(EPOCHS):
    for images, labels in train.epoch(epoch):
        loss = functools.partial(bsnn.step_loss, labels=labels, time_steps=TIME_STEPS)
        # The loop over time of digits.py, in one call and in less memory.
        bsnn.online_update(net, bsnn.over_time(images, TIME_STEPS), loss, optimizers)
        schedule.step()

inputs = (images for images, _ in train.ordered())
bsnn.estimate_statistics(net, inputs, TIME_STEPS)
result = bsnn.evaluate(net, test.ordered(), TIME_STEPS)
size = bsnn.model_size(net)
print(f"test accuracy {result.accuracy:.1%} with {size.binary_weights:,} one-bit weights")
for layer, rate in result.firing_rates.items():
    print(f"  layer {layer}: {rate:.0%} of the neurons fire at a time step")
