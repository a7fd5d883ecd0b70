"""What people do with a network that `torch.compile` was given; `test_one_graph` has training and evaluation."""

import copy
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from compile_cases import QUIET, X, Y, assert_same_bits, chain, online
from torch import nn

import bsnn
from bsnn.kernels.torch_internals import tensors_in

pytestmark = QUIET


def test_a_compiled_network_is_one_for_every_function() -> None:
    net = chain("ottt")
    compiled: Any = torch.compile(net, backend="eager")
    assert [len(part) for part in bsnn.split_parameters(compiled)] == [2, 9]
    zeros = compiled.initial_state(X)
    assert all(torch.equal(a, b) for a, b in zip(tensors_in(zeros), tensors_in(net.initial_state(X)), strict=True))
    assert bsnn.model_size(compiled) == bsnn.model_size(net)
    assert bsnn.predict_memory(compiled, X[:1], 4) == bsnn.predict_memory(net, X[:1], 4)
    bsnn.estimate_statistics(compiled, [X], time_steps=3)
    first, second = (bsnn.evaluate(n, [(X, Y)], time_steps=3) for n in (compiled, net))
    assert first.firing_rates == second.firing_rates
    assert torch.equal(first.confusion, second.confusion)
    assert compiled.training == net.training


def test_names_in_a_state_dict_are_torchs() -> None:
    net = chain("ottt")
    compiled = torch.compile(net)
    assert list(compiled.state_dict()) == [f"_orig_mod.{name}" for name in net.state_dict()]
    other = torch.compile(chain("ottt"))
    other.load_state_dict(compiled.state_dict())
    assert torch.equal(other.conv2.weight.bits, net.conv2.weight.bits)  # pyright: ignore


def test_a_copy_of_a_compiled_network_has_weights_of_its_own() -> None:
    compiled: Any = torch.compile(chain("ottt"), backend="eager")
    twin = copy.deepcopy(compiled)
    assert torch.equal(twin(X, None)[0], compiled(X, None)[0])
    twin.conv2.weight.bits.bitwise_not_()
    assert not torch.equal(twin(X, None)[0], compiled(X, None)[0])


def test_a_compiled_network_is_exported(tmp_path: Path) -> None:
    net = chain("ottt")
    for name, module in (("plain", net), ("compiled", torch.compile(net))):
        bsnn.export(module, tmp_path / name, input_shape=(2, 8, 8))
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "compiled").read_bytes()


def test_compiled_in_place() -> None:
    net = chain("ottt")
    other = copy.deepcopy(net)
    other.compile(backend="eager")
    assert isinstance(other, bsnn.Stateful)
    assert_same_bits(online(net), online(other))


def test_compiled_layers_in_a_network() -> None:
    """Those of ours are called as what they are; a block without state is compiled."""
    block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
    layers = block, bsnn.LIF(), bsnn.BinaryLinear(8, 8), bsnn.LIF(), nn.Linear(8, 2)
    net = bsnn.Sequential(*layers)
    compiled = bsnn.Sequential(*(torch.compile(layer, backend="aot_eager") for layer in layers))
    x = torch.randn(3, 4)
    (first, before), (second, after) = net(x, None), compiled(x, None)
    assert torch.equal(first, second)
    assert len(before) == len(after) == 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
