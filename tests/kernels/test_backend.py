"""All backends compute the same: bits are equal, gradients within the tolerance of their rounding."""

import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import bsnn
from bsnn import kernels
from bsnn.kernels import _library

NETWORKS: dict[str, Callable[[], bsnn.ImageNetwork]] = {
    "vgg": functools.partial(bsnn.models.vgg, (64, "pool", 64, 80, "pool", 96), in_channels=2),
    "residual": functools.partial(bsnn.models.resnet18, num_classes=10, in_channels=2, stem=32),
}
FASTER = [
    "fused",
    pytest.param("cpu", marks=pytest.mark.skipif(not _library.libraries(), reason="the C library was not built")),
]


def steps(net: bsnn.ImageNetwork, x: torch.Tensor) -> list[tuple[Any, list[torch.Tensor]]]:
    """Logits and state, and the gradients, of three time steps on fixed weights."""
    state, found = None, []
    for _ in range(3):
        net.zero_grad()
        logits, state = net(x, state)
        F.cross_entropy(logits, torch.arange(len(x))).backward()
        gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        found.append(((logits.detach(), state), gradients))
    return found


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("backend", FASTER)
def test_spikes_and_states_are_equal_and_gradients_close(network: str, backend: str) -> None:
    torch.manual_seed(0)
    net, x = NETWORKS[network](), torch.randn(6, 2, 20, 24)
    with bsnn.backend(backend):
        ours = steps(net, x)
    with bsnn.backend("reference"):
        theirs = steps(net, x)
    for (made, gradients), (expected, exact) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(made, expected, rtol=0, atol=0)
        for gradient, reference in zip(gradients, exact, strict=True):
            assert (gradient - reference).norm() <= 1e-5 * reference.norm()


@pytest.mark.parametrize("backend", FASTER)
def test_weights_are_equal_after_training(backend: str) -> None:
    bits = []
    for name in (backend, "reference"):
        torch.manual_seed(0)
        net = NETWORKS["vgg"]()
        binary, real = bsnn.split_parameters(net)
        optimizers = [bsnn.optim.TBSO(binary, time_steps=2), torch.optim.SGD(real, lr=0.1)]
        x, labels = torch.randn(4, 2, 8, 8), torch.arange(4)
        loss = functools.partial(bsnn.step_loss, labels=labels, time_steps=2)
        with bsnn.backend(name):
            for _ in range(2):
                bsnn.online_update(net, itertools.repeat(x, 2), loss, optimizers)
        bits.append(torch.cat([parameter.bits for parameter in binary]))
    different = torch.count_nonzero(bits[0] != bits[1])
    assert different <= 1e-3 * len(bits[0])  # a momentum near the threshold may round to either side


def test_a_name_is_set_until_the_end_of_its_block_or_until_the_next() -> None:
    before = bsnn.backend()
    with bsnn.backend("reference"):
        assert bsnn.backend() == "reference"
        assert not kernels.fuses()
        with bsnn.backend("fused"):
            assert kernels.fuses()
            assert kernels.modules() == []
        assert bsnn.backend() == "reference"
    assert bsnn.backend() == before
    bsnn.backend("fused")
    assert bsnn.backend() == "fused"
    bsnn.backend(before)


def test_an_error_in_a_block_restores_the_name() -> None:
    before = bsnn.backend()
    with pytest.raises(KeyError), bsnn.backend("reference"):
        raise KeyError
    assert bsnn.backend() == before


def test_an_unknown_name_is_refused() -> None:
    before = bsnn.backend()
    with pytest.raises(bsnn.UserError, match=r"received 'gpu'; expected one of reference, fused, cpu"):
        bsnn.backend("gpu")
    assert bsnn.backend() == before


def test_what_was_not_built_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "libraries", dict)
    with pytest.raises(bsnn.UserError, match=r"'cpu' was not built.*choose reference, fused\."):
        bsnn.backend("cpu")


def test_the_default_is_the_fastest_that_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_name", None)
    monkeypatch.delenv("BSNN_BACKEND", raising=False)
    monkeypatch.setattr(_library, "libraries", dict)
    assert bsnn.backend() == "fused"


@pytest.mark.parametrize(("name", "found"), [("reference", "reference"), ("quick", "received 'quick'")])
def test_the_environment_sets_the_default(name: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_name", None)
    monkeypatch.setenv("BSNN_BACKEND", name)
    if name == found:
        assert bsnn.backend() == found
    else:
        with pytest.raises(bsnn.UserError, match=found):
            bsnn.backend()


def test_the_registry_and_the_loader_do_not_need_torch() -> None:
    code = "import sys, bsnn.kernels, bsnn.kernels.libraries; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
