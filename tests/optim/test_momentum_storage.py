"""How a momentum is stored, by hand: levels, blocks, pieces and types."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

import bsnn
from bsnn.optim import FlipOptimizer
from bsnn.optim.momentum import change_pieces, decode, dense, read_pieces, stored_zeros

# More than one piece of 2¹⁸ weights, and a last block that is not full.
NUMBER = 2**18 + 300


def test_levels_are_squares_in_blocks_of_256() -> None:
    codes = torch.zeros(512, dtype=torch.int8)
    codes[[0, 1, 256, 511]] = torch.tensor([127, -64, 1, -127], dtype=torch.int8)
    values = decode(codes, torch.tensor([2.0, 0.5]), torch.float64)
    expected = torch.zeros(512, dtype=torch.float64)
    expected[[0, 1, 256, 511]] = torch.tensor([2, -2 * (64 / 127) ** 2, 0.5 / 127**2, -0.5], dtype=torch.float64)
    torch.testing.assert_close(values, expected)


@pytest.mark.parametrize(("number", "blocks"), [(1, 1), (256, 1), (257, 2), (512, 2)])
def test_eight_bits_take_a_byte_per_weight_and_a_scale_per_block(number: int, blocks: int) -> None:
    stored = stored_zeros(torch.zeros(number), 8)
    assert (stored["momentum"].dtype, stored["momentum"].numel()) == (torch.int8, 256 * blocks)
    assert (stored["scales"].dtype, stored["scales"].numel()) == (torch.float32, blocks)
    assert dense(stored, torch.Size((number,))).count_nonzero() == 0


@pytest.mark.parametrize(
    ("weights", "kept"),
    [(torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_otherwise_at_least_single_precision(weights: torch.dtype, kept: torch.dtype) -> None:
    stored = stored_zeros(torch.zeros(2, 3, dtype=weights), 32)
    assert stored.keys() == {"momentum"}
    assert (stored["momentum"].dtype, stored["momentum"].shape) == (kept, (2, 3))


@pytest.mark.parametrize("bits", [8, 32])
def test_pieces_change_and_read_every_weight_once(bits: int) -> None:
    weights = torch.zeros(NUMBER)
    stored = stored_zeros(weights, bits)
    # Levels, the largest in every block, so that rounding leaves them as they are.
    values = (127 - 6 * (torch.arange(NUMBER) % 40)).double() / 127
    values = (values * values.abs()).float()
    seen = torch.zeros(NUMBER)

    def change(piece: torch.Tensor, place: slice) -> None:
        assert piece.count_nonzero() == 0
        seen[place] += 1
        piece.copy_(values[place])

    change_pieces(stored, weights, change, lambda: 7)
    assert (seen == 1).all()
    torch.testing.assert_close(dense(stored, weights.shape), values, rtol=1e-4, atol=1e-6)
    for place, piece in read_pieces(stored, NUMBER):
        seen[place] += 1
        torch.testing.assert_close(piece, values[place], rtol=1e-4, atol=1e-6)
    assert (seen == 2).all()


def test_rounding_is_by_the_seed() -> None:
    weights, values = torch.zeros(256), torch.rand(256)
    rounded = []
    for seed in (1, 1, 2):
        stored = stored_zeros(weights, 8)
        change_pieces(stored, weights, lambda piece, place: piece.copy_(values[place]), lambda seed=seed: seed)
        rounded.append(stored["momentum"])
    assert torch.equal(rounded[0], rounded[1])
    assert not torch.equal(rounded[0], rounded[2])


@pytest.mark.parametrize("rule", [bsnn.optim.BSO, partial(bsnn.optim.TBSO, time_steps=2), bsnn.optim.SigmaBSO])
def test_a_momentum_that_is_set_is_the_momentum(rule: Callable[..., FlipOptimizer]) -> None:
    weight = bsnn.BinaryLinear(3, 2).weight
    flip = rule([weight])
    flip.set_momentum(weight, torch.arange(6.0).view(2, 3))
    assert flip.momentum(weight).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_network_that_was_cast_takes_its_momentum_along() -> None:
    stored = stored_zeros(torch.zeros(4), 32)
    change_pieces(stored, torch.zeros(4, dtype=torch.float64), lambda piece, place: piece.add_(1), lambda: 0)
    assert stored["momentum"].dtype == torch.float64


def test_a_network_that_was_moved_takes_its_momentum_along() -> None:
    stored = stored_zeros(torch.zeros(4), 32)
    change_pieces(stored, torch.zeros(4, device="meta"), lambda piece, place: piece.add_(1), lambda: 0)
    assert stored["momentum"].device.type == "meta"
