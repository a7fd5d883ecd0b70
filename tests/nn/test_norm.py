import pytest
import torch
from torch import nn

import bsnn


def trained_norm() -> bsnn.BatchNorm2d:
    norm = bsnn.BatchNorm2d(5)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 3.0)
    return norm


def test_evaluation_is_one_multiply_and_one_add_to_the_bit() -> None:
    norm = trained_norm().eval()
    scale, shift = norm.folded()
    x = torch.randn(3, 5, 4, 4)
    product = x.numpy() * scale.detach().view(1, 5, 1, 1).numpy()
    assert (norm(x).detach().numpy() == product + shift.detach().view(1, 5, 1, 1).numpy()).all()


def test_evaluation_agrees_with_torch() -> None:
    norm = trained_norm().double().eval()
    theirs = nn.BatchNorm2d(5).double().eval()
    theirs.load_state_dict(norm.state_dict())
    x = torch.randn(3, 5, 4, 4).double()
    torch.testing.assert_close(norm(x), theirs(x))
    flat = bsnn.BatchNorm1d(5).double().eval()
    flat.load_state_dict(norm.state_dict())
    torch.testing.assert_close(flat(x[:, :, 0, 0]), theirs(x)[:, :, 0, 0])


def test_training_is_torchs() -> None:
    norm, theirs, x = bsnn.BatchNorm2d(5), nn.BatchNorm2d(5), torch.randn(3, 5, 4, 4)
    assert torch.equal(norm(x), theirs(x))
    assert torch.equal(norm.running_var, theirs.running_var)


def test_estimated_statistics_are_the_plain_average_over_batches_and_time() -> None:
    net = bsnn.Sequential(nn.Flatten(), bsnn.BatchNorm1d(3), bsnn.LIF(), bsnn.BinaryLinear(3, 3), bsnn.BatchNorm1d(3))
    batches = [torch.randn(6, 3) * 2 + 1 for _ in range(4)]
    first, last = (m for m in net.modules() if isinstance(m, bsnn.BatchNorm1d))
    net.train()
    last.eval()
    with bsnn.estimating_statistics(net):
        for batch in batches:
            bsnn.predict(net, batch, time_steps=3)
    torch.testing.assert_close(first.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0))
    torch.testing.assert_close(first.running_var, torch.stack([b.var(0) for b in batches]).mean(0))
    assert first.momentum == last.momentum == 0.1
    assert first.training
    assert not last.training
    assert last.running_mean is not None
    assert last.running_mean.abs().sum() > 0


def test_estimation_without_batches_or_with_a_failure_keeps_what_was() -> None:
    net = bsnn.Sequential(trained_norm())
    (norm,) = net.children()
    before = norm.running_mean.clone()
    with pytest.raises(bsnn.UserError, match="layer 0 received no batch"), bsnn.estimating_statistics(net):
        pass
    assert torch.equal(norm.running_mean, before)
    with pytest.raises(ValueError, match="expected 4D input"), bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(2, 5), time_steps=1)
    assert torch.equal(norm.running_mean, before)


def test_without_running_statistics_it_is_torchs() -> None:
    norm = bsnn.BatchNorm2d(5, track_running_stats=False).eval()
    x = torch.randn(3, 5, 4, 4)
    assert torch.equal(norm(x), nn.BatchNorm2d(5, track_running_stats=False).eval()(x))


def test_folding_needs_statistics() -> None:
    with pytest.raises(bsnn.UserError, match="keeps no running statistics"):
        bsnn.BatchNorm2d(3, track_running_stats=False).folded()
