import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bsnn.paper import regret as regret_target
from bsnn.paper._target import Settings
from bsnn.paper.theory import (
    NUM_COORDINATES,
    PROBLEMS,
    SCHEDULES,
    AdversarialLinear,
    AdversarialSquares,
    AlternatingLinear,
    SquaresOfAnInnerPoint,
    growth,
    regret,
)

CORNERS = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=NUM_COORDINATES)), dtype=torch.float64)


def by_name(rows: list[dict]) -> dict:
    return {(row["rule"], row["schedule"]): row for row in rows}


def test_an_adversary_makes_every_rule_lose_in_every_round() -> None:
    for row in regret("linear, adversarial", rounds=256, num_seeds=2):
        # d a round, and the best fixed point loses at most nothing.
        assert row["regret"][-1] >= NUM_COORDINATES * 256


def test_losses_that_were_fixed_in_advance_are_enough() -> None:
    rows = by_name(regret("linear, alternating", rounds=256, num_seeds=1))
    assert rows["BSO", "gradient"]["exponent"] == pytest.approx(1, abs=0.02)


def test_averaging_helps_where_losses_are_stochastic() -> None:
    rows = by_name(regret("linear, stochastic", rounds=1024, num_seeds=4))
    assert rows["BSO", "gradient"]["regret"][-1] < 0.35 * rows["BSO", "momentum"]["regret"][-1]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_play_is_reproducible(problem: str) -> None:
    assert regret(problem, rounds=32, num_seeds=2) == regret(problem, rounds=32, num_seeds=2)


def moving_weights() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        yield 2.0 * torch.randint(0, 2, (2, 3, NUM_COORDINATES), generator=generator).double() - 1


@pytest.mark.parametrize("problem", [name for name in PROBLEMS if "adversarial" not in name])
def test_the_best_corner_is_the_best_of_all_corners(problem: str) -> None:
    losses, again = (PROBLEMS[problem](2, torch.Generator().manual_seed(0)) for _ in range(2))
    total = torch.zeros(2, len(CORNERS), dtype=torch.float64)
    for k, weights in enumerate(moving_weights(), 1):
        losses.play(weights, k)
        total += again.play(CORNERS.expand(2, -1, -1), k).loss_SA  # every corner, played in every round
        assert torch.allclose(losses.best_SA(), total.amin(-1, keepdim=True))


def test_the_best_corner_against_an_adversary_is_the_best_of_all_corners() -> None:
    linear, squares = (kind(2, torch.Generator().manual_seed(0)) for kind in (AdversarialLinear, AdversarialSquares))
    draws = torch.Generator().manual_seed(0)
    torch.rand(2, 1, NUM_COORDINATES, generator=draws, dtype=torch.float64)  # a point that no target needs
    of_linear, of_squares = torch.zeros(2, 2, 3, len(CORNERS), dtype=torch.float64)
    for k, weights in enumerate(moving_weights(), 1):
        linear.play(weights, k)
        played = squares.play(weights, k)
        x = (torch.rand(2, 1, NUM_COORDINATES, generator=draws, dtype=torch.float64) - 0.5).sign()
        noise = 2 * torch.rand(2, 1, generator=draws, dtype=torch.float64) - 1
        both = (x[..., None, :] * (CORNERS + weights[..., None, :])).sum(-1)
        of_linear += weights @ CORNERS.T
        of_squares += (both - noise[..., None]).square() / (2 * NUM_COORDINATES)
        assert torch.allclose(played.loss_SA, (2 * (x * weights).sum(-1) - noise).square() / (2 * NUM_COORDINATES))
    assert torch.allclose(linear.best_SA(), of_linear.amin(-1))
    assert torch.allclose(squares.best_SA(), of_squares.amin(-1))


def test_an_adversary_with_squares_takes_one_a_round() -> None:
    for row in regret("squares, adversarial", rounds=1024, num_seeds=4):
        assert row["regret"][-1] > 0.9 * 1024
        assert row["exponent"] == pytest.approx(1, abs=0.2)


def test_a_play_is_what_a_hand_computes() -> None:
    # Alternating +1, −1, ...; `momentum`. Round 1: M = 0.001 is below γ = 0.01, so BSO stays, but above γ√v = 3.2e-5,
    # so that T-BSO leaves +1. Round 2: M = −0.29, round 3: +0.25, ...: each is answered by a flip, too late.
    # BSO loses 1 − 1 (from +1) or −1 + 1 (from −1) in rounds 1 and 2, T-BSO 1 + 1 or −1 + 1, then both 1 a round.
    rows = by_name(regret("linear, alternating", rounds=16, num_seeds=1))
    ups = int(torch.randint(0, 2, (1, 1, NUM_COORDINATES), generator=torch.Generator().manual_seed(0)).sum())
    assert rows["BSO", "momentum"]["regret"] == [14 * NUM_COORDINATES]
    assert rows["T-BSO", "momentum"]["regret"] == [14 * NUM_COORDINATES + 2 * ups]
    # BSO flips in rounds 3 to 16, from −1 in round 2 as well; T-BSO in 2 to 16, from +1 in round 1 as well.
    downs = NUM_COORDINATES - ups
    assert rows["BSO", "momentum"]["flips"] == [pytest.approx((14 + downs / NUM_COORDINATES) / 16)]
    assert rows["T-BSO", "momentum"]["flips"] == [pytest.approx((15 + ups / NUM_COORDINATES) / 16)]


def test_the_steps_of_the_proofs_are_followed() -> None:
    rows = by_name(regret("linear, alternating", rounds=16, num_seeds=2))
    for schedule, shares in SCHEDULES.items():
        momentum, v, sizes, ratios, gammas, moments = 0.0, 0.0, [], [], [], []
        for k in range(1, 17):
            gamma, rate1, rate2 = shares(k)
            momentum = (1 - rate1) * momentum + rate1 * (1 if k % 2 else -1)
            v = (1 - rate2) * v + rate2
            gammas.append(gamma)
            moments.append(v)
            sizes.append(abs(momentum))
            ratios.append(abs(momentum) / math.sqrt(v))
        for rule, bounding in {"BSO": sizes, "T-BSO": ratios}.items():
            row = rows[rule, schedule]
            assert row["momentum"] == [pytest.approx(sum(sizes) / 16)]
            assert row["second_moment"] == [pytest.approx(sum(moments) / 16)]
            assert row["ratio"] == [pytest.approx(sum(ratios) / 16)]
            assert row["bound"] == pytest.approx(2 * sum(gammas) + 2 * sum(bounding))


def test_sizes_that_vary_tell_the_rules_apart() -> None:
    rows = by_name(regret("linear, stochastic", rounds=64, num_seeds=4))
    for schedule in ("momentum", "constant 0.01", "constant 0.001"):
        assert rows["BSO", schedule]["regret"] != rows["T-BSO", schedule]["regret"]


def test_gradients_are_those_of_the_losses() -> None:
    losses = SquaresOfAnInnerPoint(3, torch.Generator().manual_seed(0))
    weights = torch.ones(3, 2, NUM_COORDINATES, dtype=torch.float64, requires_grad=True)
    played = losses.play(weights, 1)
    played.loss_SA.sum().backward()
    assert torch.allclose(weights.grad, played.gradient_SAD)
    alternating = AlternatingLinear(3, torch.Generator())
    assert alternating.play(weights.detach(), 1).loss_SA.tolist() == [[NUM_COORDINATES] * 2] * 3


def test_the_schedules_are_the_readings_of_the_proofs() -> None:
    assert SCHEDULES["gradient"](4) == pytest.approx((0.005, 0.4995, 0.499995))
    assert SCHEDULES["momentum"](4) == pytest.approx((0.005, 0.5005, 0.500005))
    assert SCHEDULES["constant 0.001"](4) == pytest.approx((0.01, 0.001, 1e-5))


def test_growth_is_the_slope() -> None:
    rounds = [2**n for n in range(4, 12)]
    assert growth(rounds, [3 * math.sqrt(n) for n in rounds]) == 0.5
    assert growth(rounds, [1.0] * 7 + [-1.0]) is None
    assert growth([16], [1.0]) is None


def test_figures_show_the_claims_and_no_name_without_a_line() -> None:
    findings = regret_target.measure(Settings("smoke", None, Path()))
    assert "(scale smoke)" in findings.ran
    assert len(findings.figures) == len(PROBLEMS)
    for figure in findings.figures:
        assert all(points and min(y for _, y in points) > 0 for points in figure["lines"].values())
        assert figure["thin"] == ["𝒯^(−1/2)", "𝒯^(−1/4)"]
        for name, exponent in zip(figure["thin"], (-0.5, -0.25), strict=True):
            assert growth(*zip(*figure["lines"][name], strict=True)) == exponent
    assert findings.notes[-1].startswith("Not in the figures, since no regret is above 0: linear, alternating: BSO")
    assert not any("None" in note or "{" in note.replace("{−1, +1}", "") for note in findings.notes)
