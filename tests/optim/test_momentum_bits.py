"""How a momentum is rounded to eight bits."""

import torch

import bsnn
from bsnn.optim.momentum import BLOCK, decode, encode


def test_eight_bits_round_to_the_nearest_two_levels_and_on_average_to_the_value() -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randn(4 * BLOCK) * torch.logspace(-3, 1, 4 * BLOCK)
    codes, scales = encode(values, random)
    assert codes.dtype == torch.int8
    assert torch.equal(scales, values.view(4, BLOCK).abs().amax(1))
    mean = torch.stack([decode(*encode(values, random)) for _ in range(2000)]).mean(0)
    level = 2 * scales.repeat_interleave(BLOCK) / 127  # the widest distance between two
    assert ((mean - values).abs() < 0.06 * level).all()
    assert ((decode(codes, scales) - values).abs() <= level).all()
    assert torch.equal(decode(*encode(torch.zeros(BLOCK), random)), torch.zeros(BLOCK))
    again = decode(codes, scales)
    assert torch.equal(decode(*encode(again, random)), again)  # a level stays where it is


def test_no_two_roundings_have_the_same_seed() -> None:
    weights = [bsnn.BinaryLinear(4, 2).weight for _ in range(3)]
    flip = bsnn.optim.BSO(weights, momentum_bits=8)
    seeds = [flip._next_seed(weight) for _ in range(500) for weight in weights]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)
