"""BSO: a sequence worked out by hand, and its identity with the published Bop rule."""

import torch
from flip_cases import give, parameter
from reference import bop

from bsnn.nn.bits import BinaryParameter, signs
from bsnn.optim import BSO


def test_bso_against_a_sequence_by_hand() -> None:
    # β = 0.5, γ = 0.25. M = 0.5, −0.5, 0.125 → W·M = 0.5 > γ flips; −W: 0.5 > γ flips; 0.125 stays.
    weight = parameter(1, -1, 1)
    flip = BSO([weight], gamma=0.25, beta=0.5)
    give(weight, 1.0, -1.0, 0.25)
    flip.step()
    assert signs(weight).tolist() == [-1, 1, 1]
    assert flip.flip_counts == [2]
    # M = 0.25 + 0 = 0.25, −0.25 − 1 = −1.25, 0.0625 + 0.1875 = 0.25: a tie at W·M = γ must not flip.
    give(weight, 0.0, -2.0, 0.375)
    flip.step()
    assert signs(weight).tolist() == [-1, 1, 1]
    assert flip.flip_counts == [0]
    # M = 0.125 − 1 = −0.875, −0.625 + 1 = 0.375, 0.125 + 0.5 = 0.625.
    give(weight, -2.0, 2.0, 1.0)
    flip.step()
    assert signs(weight).tolist() == [1, -1, -1]
    assert flip.state[weight]["momentum"].tolist() == [-0.875, 0.375, 0.625]


def test_bso_is_the_published_bop_rule() -> None:
    weight = BinaryParameter.from_signs(torch.randn(500, dtype=torch.float64))
    dense, momentum = signs(weight), torch.zeros(500, dtype=torch.float64)
    flip = BSO([weight], gamma=0.02, beta=0.98)
    for _ in range(300):
        weight.grad = torch.randn(500, dtype=torch.float64)
        flip.step()
        dense, momentum = bop(dense, momentum, weight.grad, rate=1 - 0.98, threshold=0.02)
        assert torch.equal(signs(weight), dense)
