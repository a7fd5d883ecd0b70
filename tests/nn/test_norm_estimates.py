"""Statistics that are estimated anew are those of the new batches alone."""

import torch
from torch import nn

import bsnn


def test_what_a_norm_has_seen_before_does_not_count() -> None:
    norm = bsnn.BatchNorm1d(3, dtype=torch.float64)
    net = nn.Sequential(norm)
    for _ in range(4):
        net(100 + torch.randn(8, 3, dtype=torch.float64))
    batches = torch.randn(2, 8, 3, dtype=torch.float64)
    with bsnn.estimating_statistics(net):
        for batch in batches:
            net(batch)
    torch.testing.assert_close(norm.running_mean, batches.mean(dim=(0, 1)))
    torch.testing.assert_close(norm.running_var, batches.var(dim=1).mean(dim=0))
    assert (norm.num_batches_tracked, norm.momentum) == (2, 0.1)
