"""Your own network: one function that builds it from ordinary layers, binary layers, neurons and branches.

It is given those of `num_classes`, `in_channels`, `neuron`, `config` and the fields of the config that it names. Train
it from the command line, in this folder, like a network of the library:

    bsnn train digits --model own_network:build --epochs 3
"""

import copy
import dataclasses
import tempfile

from torch import nn

import bsnn


def build(num_classes: int, in_channels: int, neuron: bsnn.LIF) -> bsnn.Sequential:
    """Two branches whose spikes are stacked, then a residual block; a copy of the neuron in every layer."""

    def fire() -> bsnn.LIF:
        return copy.deepcopy(neuron)

    def synapse(entering: int, leaving: int) -> bsnn.Sequential:
        return bsnn.Sequential(bsnn.BinaryConv2d(entering, leaving, 3, padding=1), bsnn.BatchNorm2d(leaving))

    return bsnn.Sequential(
        nn.Conv2d(in_channels, 16, 3, padding=1),  # sees pixels, so it stays real-valued
        bsnn.BatchNorm2d(16),
        bsnn.Concat(fire(), bsnn.Sequential(fire(), synapse(16, 16), fire())),
        nn.AvgPool2d(2),
        synapse(32, 32),
        bsnn.Residual(bsnn.Sequential(fire(), synapse(32, 32))),
        fire(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )


def main() -> None:
    """Trains three epochs of the bundled digits, and exports the network."""
    config = dataclasses.replace(bsnn.recipe("digits"), epochs=3)
    with tempfile.TemporaryDirectory() as folder:
        result = bsnn.train.train(config, folder, model=build)
        trained = bsnn.train.load_network(folder, model=build)
        print(f"test accuracy {result['test_accuracy']:.1%}")
        for layer, rate in trained.metrics.get("firing_rates", {}).items():
            print(f"  layer {layer}: {rate:.0%} of the neurons fire at a time step")
        made = bsnn.export(trained.net, f"{folder}/model.bsnn", spec=trained.spec, time_steps=config.time_steps)
        print(f"  as a model file: {made.bytes:,} bytes")


if __name__ == "__main__":
    main()
