"""OTTT and SLTT with the settings of their own publications (Table 2); our recipes beside them have the paper's.

OTTT: scaled weight standardization in the place of BatchNorm, on VGG-11 and, for ImageNet, a normalizer-free
ResNet-34; 300 and 100 epochs. SLTT on DVS-CIFAR10: τ = 1.1, which is λ = 1 − 1/τ, the triangle, dropout 0.3, decay
5e-4, rate 0.05. SLTT on ImageNet: a ResNet-34 at T = 1 for 100 epochs, then at T = 6 for 30 epochs with a rate of
0.001, batches of 256. Left as ours: SLTT's network on DVS-CIFAR10 is VGG-11 with global pooling; its own has five
poolings and a larger head.
"""

import functools
from collections.abc import Sequence
from typing import Any

from torch import nn

from bsnn.models.basic import basic_resnet
from bsnn.models.nf_resnet import nf_resnet34
from bsnn.models.vgg import vgg
from bsnn.nn.network import ImageNetwork
from bsnn.nn.neuron import Neuron
from bsnn.nn.standardized import StandardizedConv2d


def ottt_vgg(plan: Sequence[int | str], in_channels: int, **shared: Any) -> ImageNetwork:
    """A VGG with standardized weights and no BatchNorm; see `vgg` for the arguments."""
    convolution = functools.partial(StandardizedConv2d, kernel_size=3, padding=1)
    net = vgg(plan, in_channels=in_channels, convolution=convolution, normalized=False, **shared)
    first = net.get_submodule("conv1")
    assert isinstance(first, nn.Conv2d)
    net.add_module("conv1", convolution(in_channels, first.out_channels))
    return net


def ottt_resnet34(num_classes: int, in_channels: int, width: float, neuron: Neuron) -> ImageNetwork:
    """The normalizer-free ResNet-34; see `nf_resnet34` for the arguments."""
    return nf_resnet34(num_classes, in_channels, width, neuron)


def sltt_vgg(plan: Sequence[int | str], **shared: Any) -> ImageNetwork:
    """A VGG with dropout of 0.3 behind each layer of neurons, which SLTT can have: it keeps no trace. See `vgg`."""
    return vgg(plan, dropout=0.3, **shared)


def sltt_resnet34(**shared: Any) -> ImageNetwork:
    """A ResNet-34 of two-convolution blocks; see `basic_resnet` for the arguments."""
    return basic_resnet((3, 4, 6, 3), stem=224, **shared)
