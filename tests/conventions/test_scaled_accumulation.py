"""A scaled loss with `accumulate`, as docs/pytorch.md has it: divided gradients are right, and nothing else is."""

import pytest
import torch

import bsnn


def momentum(scaled: bool, *, divide: bool = False, unscale: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer, scaler = bsnn.BinaryLinear(8, 4), torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    flip = bsnn.optim.BSO([layer.weight], gamma=1e-3, beta=0.5)
    for t in range(3):
        scaler.scale(layer(torch.randn(5, 8)).square().mean()).backward()
        if unscale:
            scaler.unscale_(flip)
        if divide:
            assert layer.weight.grad is not None
            layer.weight.grad.div_(scaler.get_scale())
        flip.accumulate(t=t)
    flip.step()
    return flip.state[layer.weight]["momentum"], bsnn.signs(layer.weight)


def test_gradients_that_were_divided_by_the_scale_are_those_of_the_plain_loss() -> None:
    for ours, theirs in zip(momentum(True, divide=True), momentum(False), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(momentum(True)[0], 1024 * momentum(False)[0])


def test_torch_refuses_to_unscale_per_time_step() -> None:
    with pytest.raises(RuntimeError, match="unscale_\\(\\) has already been called"):
        momentum(True, unscale=True)
