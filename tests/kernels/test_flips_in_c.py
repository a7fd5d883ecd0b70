"""Flips in C turn the same weights as the rules' own functions, to the bit."""

from functools import partial

import pytest
import torch
from kernel_cases import LEVELS, num_threads, only
from torch import Tensor, nn

import bsnn
from bsnn.kernels import _library, cpu
from bsnn.kernels.bits import pack, unpack
from bsnn.kernels.libraries import Level
from bsnn.kernels.operations import Flippable, FlipThreshold
from bsnn.optim.base import ThresholdRule
from bsnn.optim.rules.bso import bso_flips
from bsnn.optim.rules.tbso import tbso_rule

pytestmark = pytest.mark.skipif(not _library.libraries(), reason="the C library was not built")

REFUSED = torch.zeros((), dtype=torch.float64)
# γ of BSO, and of T-BSO with a second moment.
RULES = {
    "bso": ThresholdRule(partial(bso_flips, gamma=0.1), FlipThreshold(0.1)),
    "bso, γ = 0": ThresholdRule(partial(bso_flips, gamma=0.0), FlipThreshold(0.0)),
    "tbso": tbso_rule(torch.tensor(0.07, dtype=torch.float64), 0.3, 1e-20),
    "tbso, paper": tbso_rule(torch.tensor(1e-9, dtype=torch.float64), 5e-7, 1e-20),
}


def limit_of(rule: ThresholdRule) -> Tensor:
    gamma, moment, eps = rule.threshold
    return (torch.tensor(gamma, dtype=torch.float64) if moment is None else gamma * (moment + eps).sqrt()).float()


def momenta(number: int, limit: Tensor) -> Tensor:
    """On both sides of the limit and on it, next to it, and far away."""
    above, below = (torch.nextafter(limit, torch.tensor(to)) for to in (1.0, -1.0))
    kinds = torch.stack([limit, above, below, 3 * limit, limit / 3, limit * 0, torch.tensor(torch.inf)])
    return kinds[torch.randint(len(kinds), (number,))] * torch.where(torch.rand(number) < 0.5, -1.0, 1.0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_the_same_weights_flip_as_by_the_rule(level: Level, threads: int, rule: str) -> None:
    torch.manual_seed(0)
    for number in (1, 7, 8, 9, 63, 1000, 4099):
        bits = pack(torch.rand(number) < 0.5)
        momentum = momenta(number, limit_of(RULES[rule]))
        before = unpack(bits, number)
        flips = RULES[rule](before, momentum)
        parameter = Flippable(bits, number, {"momentum": momentum.view(1, -1)}, RULES[rule].threshold)
        with only(level), num_threads(threads):
            counts = cpu.flip([parameter], REFUSED)
        assert counts is not None
        assert int(counts[0]) == int(flips.sum()) > 0 or number < 64
        assert unpack(bits, number).equal(torch.where(flips, -before, before))
        assert bits.equal(pack(unpack(bits, number) > 0))  # what fills up the last byte stays 0


def test_a_momentum_that_is_not_a_number_flips_nothing() -> None:
    bits, momentum = pack(torch.rand(20) < 0.5), torch.full((20,), torch.nan)
    before = bits.clone()
    counts = cpu.flip([Flippable(bits, 20, {"momentum": momentum}, FlipThreshold(0.0))], REFUSED)
    assert counts == [0]
    assert bits.equal(before)


@pytest.mark.parametrize(
    "stored",
    [
        {"momentum": torch.zeros(16, dtype=torch.float64)},
        {"momentum": torch.zeros(256, dtype=torch.int8), "scales": torch.zeros(1)},
        {"momentum": torch.zeros(16, 2)[:, 0]},
    ],
    ids=["double", "eight bits", "strided"],
)
def test_other_momenta_are_left_to_torch(stored: dict[str, Tensor]) -> None:
    plain = Flippable(torch.zeros(2, dtype=torch.uint8), 16, {"momentum": torch.ones(16)}, FlipThreshold(0.0))
    other = Flippable(torch.zeros(2, dtype=torch.uint8), 16, stored, FlipThreshold(0.0))
    assert cpu.flip([plain, other], REFUSED) is None
    assert not plain.bits.any()


OPTIMIZERS = {"tbso": partial(bsnn.optim.TBSO, gamma=0.05, time_steps=1), "bso": partial(bsnn.optim.BSO, gamma=1e-4)}


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_an_optimizer_flips_alike_on_both_backends(rule: str, bits: int) -> None:
    made = []
    for backend in ("cpu", "reference"):
        torch.manual_seed(0)
        weights, _ = bsnn.split_parameters(nn.Sequential(bsnn.BinaryLinear(37, 11), bsnn.BinaryLinear(300, 20)))
        flip = OPTIMIZERS[rule](weights, momentum_bits=bits)
        counts = []
        with bsnn.backend(backend):
            for _ in range(20):
                for weight in weights:
                    weight.grad = torch.randn(weight.shape)
                flip.step(t=0)
                counts.append(flip.flip_counts)
        made.append((counts, [weight.bits for weight in weights]))
    (ours, our_bits), (theirs, their_bits) = made
    assert ours == theirs
    assert sum(map(sum, ours)) > 0
    assert all(map(torch.equal, our_bits, their_bits))
