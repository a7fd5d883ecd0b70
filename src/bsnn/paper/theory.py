"""The paper's regret bounds (Section 4.4, Theorem 4.1 and its proofs), tried on losses of which everything is known.

    R(𝒯) = Σ_k f_k(W_k) − min_W Σ_k f_k(W)    over W in {−1, +1}^d

The rules are those of `bsnn.optim`. The proofs let γ and β decay with √k and write the momentum in two ways, so there
are two decaying schedules, and two that do not decay (v has the form of M, with β2):

    "gradient"         M ← β/√k G + (1 − β/√k) M, γ/√k      proof for BSO: the gradient's share vanishes
    "momentum"         M ← β/√k M + (1 − β/√k) G, γ/√k      proof for T-BSO: the momentum's share vanishes
    "constant 0.01"    M ← 0.99 M + 0.01 G, γ
    "constant 0.001"   M ← 0.999 M + 0.001 G, γ             what is trained with

Everything is computed for all rules, schedules and seeds at once. Shape letters: S seeds, A rules times schedules,
D coordinates.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bsnn.optim import bso_flips, tbso_flips

RULES = {"BSO": 0.5, "T-BSO": 0.75}
"""The rules, with the exponent that the paper claims for the growth of their regret."""

GAMMA, BETA1, BETA2 = 0.01, 0.999, 0.99999
_EPS = 1e-20

SCHEDULES: dict[str, Callable[[int], tuple[float, float, float]]] = {
    "gradient": lambda k: (GAMMA / math.sqrt(k), BETA1 / math.sqrt(k), BETA2 / math.sqrt(k)),
    "momentum": lambda k: (GAMMA / math.sqrt(k), 1 - BETA1 / math.sqrt(k), 1 - BETA2 / math.sqrt(k)),
    "constant 0.01": lambda k: (GAMMA, 0.01, 1 - BETA2),
    "constant 0.001": lambda k: (GAMMA, 0.001, 1 - BETA2),
}
"""γ, the gradient's share in M and its square's share in v, in round k = 1, 2, ..."""

NUM_COORDINATES = 10  # few enough to try all 1,024 fixed points


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
    """Signs drawn anew each round, of means that are uniform in [−1/2, 1/2], times a size that is uniform in [0, 1]."""

    def __init__(self, num_seeds: int, generator: torch.Generator) -> None:
        super().__init__(num_seeds, generator)
        self.means = self._uniform(num_seeds, 1, NUM_COORDINATES) / 2

    def gradient(self, weights_SAD: Tensor, k: int) -> Tensor:
        """Independent of what was played. A round has one size, so that v changes from round to round."""
        draws = self._uniform(self.num_seeds, 1, NUM_COORDINATES)
        return torch.where(draws < self.means, 1.0, -1.0) * self._uniform(self.num_seeds, 1, 1).abs()


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
    """f(W) = (⟨x, W⟩ − y)² / 2d, y = ⟨x, target⟩ + noise, x in {−1, +1}^d: convex, gradients bounded where W is."""

    gram: Tensor | float = 0.0
    correlation: Tensor | float = 0.0
    power: Tensor | float = 0.0

    def __init__(self, num_seeds: int, generator: torch.Generator) -> None:
        super().__init__(num_seeds, generator)
        self.point = self._uniform(num_seeds, 1, NUM_COORDINATES)

    def target(self, weights_SAD: Tensor) -> Tensor:
        """The point that y comes from."""
        raise NotImplementedError

    def play(self, weights_SAD: Tensor, k: int) -> Round:
        x = self._uniform(self.num_seeds, 1, NUM_COORDINATES).sign()
        y = (x * self.target(weights_SAD)).sum(-1) + self._uniform(self.num_seeds, 1)
        error = (x * weights_SAD).sum(-1) - y
        self.gram = self.gram + x.transpose(1, 2) @ x
        self.correlation, self.power = self.correlation + x * y[..., None], self.power + y * y
        return Round(error[..., None] * x / NUM_COORDINATES, error * error / (2 * NUM_COORDINATES))

    def best_SA(self) -> Tensor:
        assert isinstance(self.power, Tensor)
        corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=NUM_COORDINATES)), dtype=torch.float64)
        quadratic = torch.einsum("ni,sij,nj->sn", corners, self.gram, corners)[:, None]
        linear = torch.einsum("ni,sai->san", corners, self.correlation)
        return (quadratic - 2 * linear + self.power[..., None]).amin(-1) / (2 * NUM_COORDINATES)


class SquaresOfACorner(_Squares):
    """Noisy observations of a corner of the cube."""

    def target(self, weights_SAD: Tensor) -> Tensor:
        """±1 each."""
        return self.point.sign()


class SquaresOfAnInnerPoint(_Squares):
    """Noisy observations of a point inside the cube, where no corner has a vanishing gradient."""

    def target(self, weights_SAD: Tensor) -> Tensor:
        """Uniform in the cube."""
        return self.point


class AdversarialSquares(_Squares):
    """Noisy observations of −W_k. On average a rule loses 2 more than the noise in a round, a corner of any kind 1."""

    def target(self, weights_SAD: Tensor) -> Tensor:
        """The opposite of what was played."""
        return -weights_SAD


PROBLEMS: dict[str, type[Losses]] = {
    "linear, stochastic": StochasticLinear,
    "linear, alternating": AlternatingLinear,
    "linear, adversarial": AdversarialLinear,
    "squares, corner": SquaresOfACorner,
    "squares, inner point": SquaresOfAnInnerPoint,
    "squares, adversarial": AdversarialSquares,
}


STEPS = ("momentum", "second_moment", "ratio", "flips")
"""What is followed besides regret: |M|∞, v, |M|∞/√v and the share of weights that flip."""


def regret(problem: str, rounds: int, num_seeds: int = 8, seed: int = 0) -> list[dict[str, Any]]:
    """Plays a problem with every rule and schedule.

    Args:
        problem: A name of `PROBLEMS`.
        rounds: 𝒯.
        num_seeds: Independent repetitions.
        seed: Of all of them.

    Returns:
        For each rule and schedule, at powers of two up to `rounds`: regret (mean and standard deviation over the
        repetitions) and what the proofs take to fall, |M|∞, v and |M|∞/√v, with the share of weights that flip, each
        as the mean of the rounds since the power before; the exponents fitted to their growth; and the proof's bound.

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
    gamma_sum = torch.zeros(len(names), dtype=torch.float64)
    sums = torch.zeros(len(STEPS), *loss.shape, dtype=torch.float64)
    ends, regrets, sums_until = [2**n for n in range(4, rounds.bit_length()) if 2**n <= rounds], [], [sums.clone()]
    for k in range(1, rounds + 1):
        gradient, now = losses.play(weights, k)
        loss += now
        now_used = torch.tensor([SCHEDULES[schedule](k) for _, schedule in names], dtype=torch.float64)
        gammas, rates1, rates2 = now_used.T[..., None]
        momentum = momentum + rates1 * (gradient - momentum)
        moment = moment + rates2 * (gradient.square().mean(-1, keepdim=True) - moment)
        by_time = tbso_flips(weights, momentum, moment, gammas, _EPS)  # pyright: ignore[reportArgumentType]
        fixed = bso_flips(weights, momentum, gammas)  # pyright: ignore[reportArgumentType]
        flips = torch.where(temporal, by_time, fixed)
        weights = torch.where(flips, -weights, weights)
        size, v = momentum.abs().amax(-1), moment[..., 0]
        gamma_sum += now_used[:, 0]
        sums += torch.stack([size, v, size / torch.sqrt(v + _EPS), flips.double().mean(-1)])
        if k in ends:
            regrets.append(loss - losses.best_SA())
            sums_until.append(sums.clone())
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    rows = []
    for column, (rule, schedule) in enumerate(names):
        means = [float(r[:, column].mean()) for r in regrets]
        row = {"problem": problem, "rule": rule, "schedule": schedule, "rounds": ends, "regret": means}
        row["deviation"] = [float(r[:, column].std()) if num_seeds > 1 else None for r in regrets]
        row |= {"exponent": growth(ends, means), "claimed_exponent": RULES[rule]}
        for step, name in enumerate(STEPS):
            totals = [float(until[step, :, column].mean()) for until in sums_until]
            row[name] = [(b - a) / n for a, b, n in zip(totals, totals[1:], counts, strict=False)]
            row[f"{name}_exponent"] = growth(ends, row[name])
        bounding = sums[STEPS.index("ratio" if rule == "T-BSO" else "momentum"), :, column].mean()
        rows.append(row | {"bound": float(2 * gamma_sum[column] + 2 * bounding)})
    return rows


def growth(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """The exponent p of values ~ rounds^p, by least squares on the last seven points; None if it has none.

    Example:
        >>> growth([1, 4, 16], [3.0, 6.0, 12.0])
        0.5
    """
    pairs = list(zip(rounds, values, strict=True))[-7:]
    if len(pairs) < 2 or any(value <= 0 for _, value in pairs):
        return None
    x, y = ([math.log(pair[axis]) for pair in pairs] for axis in (0, 1))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return round(slope, 3)
