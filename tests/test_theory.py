import math

import pytest
import torch

from bso.theory import NUM_COORDINATES, PROBLEMS, SCHEDULES, AlternatingLinear, SquaresOfAnInnerPoint, growth, regret


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


def test_the_best_corner_is_the_best_of_all_corners() -> None:
    losses = SquaresOfAnInnerPoint(2, torch.Generator().manual_seed(0))
    weights = torch.ones(2, 1, NUM_COORDINATES, dtype=torch.float64)
    total = sum(losses.play(weights, k).loss_SA for k in range(1, 9))
    assert (losses.best_SA() <= total + 1e-9).all()
    # And the total that it computes from sums is the total of the rounds.
    corner = weights[:, 0]
    again = torch.einsum("si,sij,sj->s", corner, losses.gram, corner) - 2 * (corner * losses.correlation[:, 0]).sum(-1)
    again = (again + losses.power[:, 0]) / (2 * NUM_COORDINATES)
    assert torch.allclose(again, total[:, 0])


def test_gradients_are_those_of_the_losses() -> None:
    losses = SquaresOfAnInnerPoint(3, torch.Generator().manual_seed(0))
    weights = torch.ones(3, 2, NUM_COORDINATES, dtype=torch.float64, requires_grad=True)
    played = losses.play(weights, 1)
    played.loss_SA.sum().backward()
    assert torch.allclose(weights.grad, played.gradient_SAD)
    alternating = AlternatingLinear(3, torch.Generator())
    assert alternating.play(weights.detach(), 1).loss_SA.tolist() == [[NUM_COORDINATES] * 2] * 3


def test_the_schedules_are_the_readings_of_the_proofs() -> None:
    assert SCHEDULES["gradient"](0.9, 4) == 0.45
    assert SCHEDULES["momentum"](0.9, 4) == 0.55
    assert SCHEDULES["constant"](0.9, 4) == pytest.approx(0.1)


def test_growth_is_the_slope() -> None:
    rounds = [2**n for n in range(4, 12)]
    assert growth(rounds, [3 * math.sqrt(n) for n in rounds]) == 0.5
    assert growth(rounds, [1.0] * 7 + [-1.0]) is None
