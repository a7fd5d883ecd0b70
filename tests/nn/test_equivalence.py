"""How far two networks agree."""

import torch

from bsnn.nn.equivalence import share_differing


def test_other_shapes_differ_everywhere() -> None:
    assert share_differing(torch.zeros(2, 3), torch.zeros(3, 2)) == 1.0


def test_rounding_is_no_difference() -> None:
    ours = torch.tensor([1.0, 2.0, 100.0, 0.0], dtype=torch.float64)
    assert share_differing(ours, ours + 5e-5) == 0.0
    assert share_differing(ours, ours + torch.tensor([0.0, 0.0, 0.0, 3e-4])) == 0.25
