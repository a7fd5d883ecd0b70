"""The paper's regret bounds (Section 4.4, Theorem 4.1 and its proofs), tried on losses of which everything is known.

    R(𝒯) = Σ_k f_k(W_k) − min_W Σ_k f_k(W)    over W in {−1, +1}^d

The rules are those of `bso.optim`. The proofs let γ and β decay with √k and write the momentum in two ways, so there
are three schedules of the momentum's rate 1 − β (and of 1 − β2, which decays alike):

    "gradient"   M ← β/√k G + (1 − β/√k) M, γ/√k      proof for BSO: the gradient's share vanishes
    "momentum"   M ← β/√k M + (1 − β/√k) G, γ/√k      proof for T-BSO: the momentum's share vanishes
    "constant"   M ← β M + (1 − β) G, γ               what is trained with

Everything is computed for all rules, schedules and seeds at once. Shape letters: S seeds, A rules times schedules,
D coordinates.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bso.optim import bso_flips, tbso_flips

RULES = {"BSO": 0.5, "T-BSO": 0.75}
"""The rules, with the exponent that the paper claims for the growth of their regret."""

SCHEDULES: dict[str, Callable[[float, int], float]] = {
    "gradient": lambda beta, k: beta / math.sqrt(k),
    "momentum": lambda beta, k: 1 - beta / math.sqrt(k),
    "constant": lambda beta, k: 1 - beta,
}
"""The momentum's rate in round k = 1, 2, ..."""

NUM_COORDINATES = 10  # few enough to try all 1,024 fixed points
_GAMMA, _BETA1, _BETA2, _EPS = 0.01, 0.999, 0.99999, 1e-20


class Round(NamedTuple):
    """What a round shows: the gradient of its loss at W_k, and the loss itself."""

    gradient_SAD: Tensor
    loss_SA: Tensor


class Losses:
    """A sequence of convex losses, the same for every rule unless it answers to what they play."""

    def __init__(self, num_seeds: int, generator: torch.Generator) -> None:
        self.num_seeds, self.generator = num_seeds, generator

    def play(self, weights_SAD: Tensor, k: int) -> Round:
        """The loss of round k at the present weights."""
        raise NotImplementedError

    def best_SA(self) -> Tensor:
        """The least total loss so far of any fixed point."""
        raise NotImplementedError

    def _uniform(self, *shape: int) -> Tensor:
        return 2 * torch.rand(*shape, generator=self.generator, dtype=torch.float64) - 1


class _Linear(Losses):
    """f(W) = ⟨g, W⟩: the best fixed point is −sign(Σ g)."""

    total: Tensor | float = 0.0

    def gradient(self, weights_SAD: Tensor, k: int) -> Tensor:
        raise NotImplementedError

    def play(self, weights_SAD: Tensor, k: int) -> Round:
        gradient = self.gradient(weights_SAD, k).expand_as(weights_SAD)
        self.total = self.total + gradient
        return Round(gradient, (gradient * weights_SAD).sum(-1))

    def best_SA(self) -> Tensor:
        assert isinstance(self.total, Tensor)
        return -self.total.abs().sum(-1)


class StochasticLinear(_Linear):
    """Signs, drawn anew each round, of means that are uniform in [−1/2, 1/2]."""

    def __init__(self, num_seeds: int, generator: torch.Generator) -> None:
        super().__init__(num_seeds, generator)
        self.means = self._uniform(num_seeds, 1, NUM_COORDINATES) / 2

    def gradient(self, weights_SAD: Tensor, k: int) -> Tensor:
        """±1, independent of what was played."""
        draws = self._uniform(self.num_seeds, 1, NUM_COORDINATES)
        return torch.where(draws < self.means, 1.0, -1.0).double()


class AlternatingLinear(_Linear):
    """+1, −1, +1, ...: fixed in advance, and no fixed point loses anything in the long run."""

    def gradient(self, weights_SAD: Tensor, k: int) -> Tensor:
        """The same in every coordinate."""
        return torch.full_like(weights_SAD, 1.0 if k % 2 else -1.0)


class AdversarialLinear(_Linear):
    """g = W_k: what was played is always wrong. It knows the rule, and the rule is deterministic."""

    def gradient(self, weights_SAD: Tensor, k: int) -> Tensor:
        """The weights themselves."""
        return weights_SAD


class _Squares(Losses):
    """f(W) = (⟨x, W⟩ − y)² / 2d with x in {−1, +1}^d: convex, and gradients are bounded where W is."""

    def __init__(self, num_seeds: int, generator: torch.Generator) -> None:
        super().__init__(num_seeds, generator)
        self.target = self.draw_target()
        self.gram: Tensor | float = 0.0
        self.correlation: Tensor | float = 0.0
        self.power: Tensor | float = 0.0

    def draw_target(self) -> Tensor:
        """The point that the y come from."""
        raise NotImplementedError

    def play(self, weights_SAD: Tensor, k: int) -> Round:
        x = torch.where(self._uniform(self.num_seeds, 1, NUM_COORDINATES) < 0, -1.0, 1.0).double()
        y = (x * self.target).sum(-1) + self._uniform(self.num_seeds, 1)
        error = (x * weights_SAD).sum(-1) - y
        self.gram = self.gram + x.transpose(1, 2) @ x
        self.correlation, self.power = self.correlation + x * y[..., None], self.power + y * y
        return Round(error[..., None] * x / NUM_COORDINATES, error * error / (2 * NUM_COORDINATES))

    def best_SA(self) -> Tensor:
        corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=NUM_COORDINATES)), dtype=torch.float64)
        quadratic = torch.einsum("ni,sij,nj->sn", corners, self.gram, corners)
        linear = torch.einsum("ni,soi->sn", corners, self.correlation)
        return ((quadratic - 2 * linear + self.power) / (2 * NUM_COORDINATES)).amin(-1, keepdim=True)


class SquaresOfACorner(_Squares):
    """Noisy observations of a corner of the cube."""

    def draw_target(self) -> Tensor:
        """±1 each."""
        return self._uniform(self.num_seeds, 1, NUM_COORDINATES).sign()


class SquaresOfAnInnerPoint(_Squares):
    """Noisy observations of a point inside the cube, where no corner has a vanishing gradient."""

    def draw_target(self) -> Tensor:
        """Uniform in the cube."""
        return self._uniform(self.num_seeds, 1, NUM_COORDINATES)


PROBLEMS: dict[str, type[Losses]] = {
    "linear, stochastic": StochasticLinear,
    "linear, alternating": AlternatingLinear,
    "linear, adversarial": AdversarialLinear,
    "squares, corner": SquaresOfACorner,
    "squares, inner point": SquaresOfAnInnerPoint,
}


def regret(problem: str, rounds: int, num_seeds: int = 8, seed: int = 0) -> list[dict[str, Any]]:
    """Plays a problem with every rule and schedule.

    Args:
        problem: A name of `PROBLEMS`.
        rounds: 𝒯.
        num_seeds: Independent repetitions.
        seed: Of all of them.

    Returns:
        For each rule and schedule: regret at powers of two up to `rounds` (mean and standard deviation over the
        repetitions), the exponent fitted to its growth beside the claimed one, and what the proof's steps come to.

    Example:
        >>> rows = regret("linear, adversarial", rounds=64, num_seeds=2)
        >>> min(row["regret"][-1] for row in rows) >= 64 * NUM_COORDINATES  # linear, whatever the schedule
        True
    """
    names = list(itertools.product(RULES, SCHEDULES))
    generator = torch.Generator().manual_seed(seed)
    losses = PROBLEMS[problem](num_seeds, generator)
    shape = (num_seeds, len(names), NUM_COORDINATES)
    start = torch.randint(0, 2, (num_seeds, 1, NUM_COORDINATES), generator=generator)
    weights = (2.0 * start - 1).double().expand(shape).clone()
    momentum = torch.zeros(shape, dtype=torch.float64)
    moment = torch.zeros(num_seeds, len(names), 1, dtype=torch.float64)
    temporal = torch.tensor([rule == "T-BSO" for rule, _ in names])[:, None]
    loss = torch.zeros(num_seeds, len(names), dtype=torch.float64)
    bound, momentum_sizes = torch.zeros_like(loss), []
    ends, regrets = [2**n for n in range(4, rounds.bit_length()) if 2**n <= rounds], []
    for k in range(1, rounds + 1):
        gradient, now = losses.play(weights, k)
        loss += now
        rates1, rates2 = (_column([SCHEDULES[s](beta, k) for _, s in names]) for beta in (_BETA1, _BETA2))
        gammas = _column([_GAMMA if s == "constant" else _GAMMA / math.sqrt(k) for _, s in names])
        momentum = momentum + rates1 * (gradient - momentum)
        moment = moment + rates2 * (gradient.square().mean(-1, keepdim=True) - moment)
        by_time = tbso_flips(weights, momentum, moment, gammas, _EPS)  # pyright: ignore[reportArgumentType]
        plain = bso_flips(weights, momentum, gammas)  # pyright: ignore[reportArgumentType]
        weights = torch.where(torch.where(temporal, by_time, plain), -weights, weights)
        size = momentum.abs().amax(-1)
        bound += 2 * gammas[:, 0] + 2 * torch.where(temporal[:, 0], size / torch.sqrt(moment[..., 0] + _EPS), size)
        if k in ends:
            regrets.append(loss - losses.best_SA())
            momentum_sizes.append(size)
    return [
        {
            "problem": problem,
            "rule": rule,
            "schedule": schedule,
            "rounds": ends,
            "regret": [float(r[:, column].mean()) for r in regrets],
            "deviation": [float(r[:, column].std()) if num_seeds > 1 else None for r in regrets],
            "exponent": growth(ends, [float(r[:, column].mean()) for r in regrets]),
            "claimed_exponent": RULES[rule],
            "momentum": [float(size[:, column].mean()) for size in momentum_sizes],
            "momentum_exponent": growth(ends, [float(size[:, column].mean()) for size in momentum_sizes]),
            "bound": float(bound[:, column].mean()),
        }
        for column, (rule, schedule) in enumerate(names)
    ]


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def growth(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """The exponent p of values ~ rounds^p, by least squares on the last seven points; None if one is not above 0.

    Example:
        >>> growth([1, 4, 16], [3.0, 6.0, 12.0])
        0.5
    """
    pairs = list(zip(rounds, values, strict=True))[-7:]
    if any(value <= 0 for _, value in pairs):
        return None
    x, y = ([math.log(pair[axis]) for pair in pairs] for axis in (0, 1))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return round(slope, 3)
