"""BatchNorm's statistics of each time step in evaluation."""

import pytest
import torch

import bsnn


def network() -> bsnn.Sequential:
    torch.manual_seed(0)
    return bsnn.models.vgg((6, "pool", 8), in_channels=1, neuron=bsnn.LIF(gradient="sltt"))


def test_they_are_those_of_training() -> None:
    """With one batch, evaluation by step is what training mode computes, but for the unbiased variance."""
    net, x = network(), torch.randn(16, 1, 8, 8)
    own = {name: value.clone() for name, value in net.named_buffers()}
    statistics = bsnn.StepStatistics(net, [x], time_steps=3)
    assert all(torch.equal(value, own[name]) for name, value in net.named_buffers())
    state, means = None, []
    for _ in range(3):
        net.norm2.momentum = 1.0
        net.train()
        _, state = net(x, state)
        means.append(net.norm2.running_mean.clone())
    assert not torch.allclose(means[0], means[2])
    for t, mean in enumerate(means):
        statistics.use(t)
        torch.testing.assert_close(net.norm2.running_mean, mean)
        assert net.norm2.num_batches_tracked == 1


def test_several_batches_count_equally() -> None:
    net, (a, b) = network(), torch.randn(2, 16, 1, 8, 8)
    both = bsnn.StepStatistics(net, [a, b], time_steps=2)
    found = []
    for batches in ([a], [b]):
        bsnn.StepStatistics(net, batches, time_steps=2).use(1)
        found.append(net.norm2.running_var.clone())
    both.use(1)
    torch.testing.assert_close(net.norm2.running_var, (found[0] + found[1]) / 2)


def test_evaluation_uses_them_and_leaves_the_networks_own() -> None:
    net, x, y = network(), torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    bsnn.estimate_statistics(net, [x], time_steps=3)
    own = {name: value.clone() for name, value in net.named_buffers()}
    statistics = bsnn.StepStatistics(net, [x], time_steps=3)
    plain = bsnn.evaluate(net, [(x, y)], time_steps=3)
    found = bsnn.evaluate(net, [(x, y)], time_steps=3, step_statistics=statistics)
    assert found.loss != plain.loss
    assert all(torch.equal(value, own[name]) for name, value in net.named_buffers())
    # At T = 1 there is one set anyway.
    single = bsnn.StepStatistics(net, [x], time_steps=1)
    bsnn.estimate_statistics(net, [x], time_steps=1)
    assert bsnn.evaluate(net, [(x, y)], 1).loss == bsnn.evaluate(net, [(x, y)], 1, step_statistics=single).loss


def test_more_time_steps_than_were_estimated_are_refused() -> None:
    net, x = network(), torch.randn(4, 1, 8, 8)
    own = net.norm1.running_mean.clone()
    statistics = bsnn.StepStatistics(net, [x], time_steps=2)
    with pytest.raises(bsnn.UserError, match="received time step 3; expected at most 2"):
        bsnn.predict(net.eval(), x, 3, step_statistics=statistics)
    assert torch.equal(net.norm1.running_mean, own)
    with pytest.raises(bsnn.UserError, match="received no batch"):
        bsnn.StepStatistics(net, [], time_steps=2)
