"""`torch.compile` on the `triton` backend: one graph, and the same bits as without it."""

import copy

import torch
from compile_cases import QUIET, assert_same_bits, online

import bsnn

pytestmark = QUIET


def test_a_network_trains_as_one_graph() -> None:
    torch.manual_seed(0)
    net = bsnn.models.vgg((4, "pool", 8), in_channels=2, neuron=bsnn.LIF(gradient="ndot"))
    other = torch.compile(copy.deepcopy(net), fullgraph=True, backend="aot_eager")
    assert_same_bits(online(net), online(other))
