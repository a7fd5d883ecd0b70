"""Sigma-BSO: a sequence worked out by hand, and what its threshold measures."""

import pytest
import torch
from flip_cases import give, parameter

from bsnn.nn.bits import BinaryParameter, signs
from bsnn.optim import Schedule, SigmaBSO, cosine


def test_sigma_bso_against_a_sequence_by_hand() -> None:
    # β = 0.5, γ = 1. G = (2, 0): M = (1, 0), n = 0.25·2 = 0.5, threshold 0.707: the first flips.
    # G = (−2, 2): M = (−0.5, 1), n = 0.25·0.5 + 0.25·4 = 1.125, threshold 1.061: W·M = (0.5, 1), none.
    # G = (0, 2): M = (−0.25, 1.5), n = 0.25·1.125 + 0.25·2 = 0.78125, threshold 0.884: the second flips.
    weight = parameter(1, 1)
    flip = SigmaBSO([weight], gamma=1.0, beta=0.5)
    steps = [((2.0, 0.0), [-1, 1], 0.5), ((-2.0, 2.0), [-1, 1], 1.125), ((0.0, 2.0), [-1, -1], 0.78125)]
    for gradient, expected, noise in steps:
        give(weight, *gradient)
        flip.step()
        assert signs(weight).tolist() == expected
        assert flip.state[weight]["noise"].item() == noise
    # A sequence of two: M = 0.5·M + 0.5·(2, 2) + 0.5·(4, 0) = (2.875, 1.75), n = 0.25·n + 0.25·4 + 0.25·8 = 3.1953125.
    for gradient in ((2.0, 2.0), (4.0, 0.0)):
        give(weight, *gradient)
        flip.accumulate()
    flip.step()
    assert flip.state[weight]["momentum"].tolist() == [2.875, 1.75]
    assert flip.state[weight]["noise"].item() == 3.1953125
    flip.set_momentum(weight, torch.tensor([3.0, 1.0]))
    assert flip.state[weight]["noise"].item() == 5.0


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
def test_sigma_is_the_deviation_of_a_momentum_of_noise(beta: float) -> None:
    torch.manual_seed(0)
    weight = BinaryParameter.from_signs(torch.randn(20_000))
    flip = SigmaBSO([weight], beta=beta)
    schedule = Schedule(flip, one_minus_beta1=cosine(total=40))
    for _ in range(30):
        weight.grad = torch.randn(20_000)
        flip.step()
        schedule.step()
        ratio = flip.momentum(weight).double().square().mean() / flip.state[weight]["noise"]
        assert ratio.item() == pytest.approx(1, abs=0.05)
