"""Schedules of γ, 1 − β1 and the learning rate (paper, Section 4.4)."""

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.optim.settings import is_number

Factor = Callable[[int], float]


def constant() -> Factor:
    """The same value throughout."""
    return lambda k: 1.0


def step_decay(every: int, factor: float = 0.1) -> Factor:
    """Times `factor` after every `every` counts, as in the authors' code.

    Example:
        >>> [round(step_decay(every=2)(k), 3) for k in range(5)]
        [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    _check_counts("step_decay: every", every)
    if not (is_number(factor) and 0 <= factor < math.inf):
        raise UserError(f"step_decay: factor: received {factor!r}; expected a finite number that is not negative.")
    return lambda k: factor ** (k // every)


def cosine(total: int) -> Factor:
    """From 1 to 0 over `total` counts along half a cosine.

    Example:
        >>> [round(cosine(total=4)(k), 3) for k in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    _check_counts("cosine: total", total)
    return lambda k: 0.5 * (1 + math.cos(math.pi * min(k / total, 1.0)))


def inverse_sqrt() -> Factor:
    """1/√k with k from 1, as in the paper's theory (Section 4.4).

    Example:
        >>> inverse_sqrt()(3)
        0.5
    """
    return lambda k: 1 / math.sqrt(k + 1)


def warmup(counts: int, after: Factor) -> Factor:
    """Rises in equal steps over so many counts to the factor `after`, which counts from the start too.

    Args:
        counts: How many are below the factor.
        after: The factor without warm-up, such as `cosine(total)`.

    Example:
        >>> [round(warmup(3, constant())(k), 2) for k in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    if counts != 0:
        _check_counts("warmup: counts", counts)
    _check_factor("warmup: after", after)
    return lambda k: min((k + 1) / (counts + 1), 1.0) * after(k)


def _check_counts(name: str, value: Any) -> None:
    if not (is_number(value) and 0 < value < math.inf):
        raise UserError(f"{name}: received {value!r}; expected how many counts it takes, such as 100.")


def _check_factor(name: str, factor: Any) -> None:
    if not callable(factor):
        raise UserError(
            f"{name}: received {factor!r}; expected a function of the count, such as bsnn.optim.cosine(total=100)."
        )


class Schedule:
    """Anneals settings of an optimizer, such as γ and 1 − β1 of a flip optimizer or the learning rate of SGD.

    Call `step` after each update or epoch, as you count. Annealing 1 − β1 is what makes training converge: the
    steady flip rate grows with its root.

    Args:
        optimizer: Any optimizer.
        factors: For names of settings, the factor on their initial value as a function of the count.

    Example:
        >>> flip = bsnn.optim.BSO([bsnn.BinaryLinear(8, 4).weight], beta=0.999)
        >>> schedule = Schedule(flip, one_minus_beta1=cosine(total=2), gamma=inverse_sqrt())
        >>> schedule.step()
        >>> round(flip.param_groups[0]["one_minus_beta1"], 6)
        0.0005
    """

    def __init__(self, optimizer: Optimizer, **factors: Factor) -> None:
        for name, factor in factors.items():
            _check_factor(f"Schedule: {name}", factor)
            if any(name not in group for group in optimizer.param_groups):
                raise UserError(
                    f"Schedule: received {name!r}; expected a setting of {type(optimizer).__name__}, such as "
                    f"{', '.join(n for n in optimizer.param_groups[0] if n != 'params')}."
                )
            for group in optimizer.param_groups:
                if not is_number(group[name]):
                    raise UserError(
                        f"Schedule: received {name!r}, which is {group[name]!r}; expected a setting that is one number."
                    )
        self.optimizer = optimizer
        self._factors = factors
        self._initial = [{name: group[name] for name in factors} for group in optimizer.param_groups]
        self._apply(count=0)

    def step(self) -> None:
        """Counts one on and sets the optimizer's values."""
        self._apply(self.count + 1)

    def scale(self, name: str, factor: float) -> None:
        """Multiplies a setting, and all that its schedule will make of it, by a factor.

        Example:
            >>> sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
            >>> Schedule(sgd, lr=constant()).scale("lr", 0.5)
            >>> sgd.param_groups[0]["lr"]
            0.05
        """
        if name not in self._factors:
            raise UserError(f"scale: received {name!r}; expected what is scheduled: {', '.join(self._factors)}.")
        self._initial = [{**initial, name: factor * initial[name]} for initial in self._initial]
        self._apply(self.count)

    def _apply(self, count: int) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self._initial):
            raise UserError(
                f"Schedule: received {type(self.optimizer).__name__} with {len(groups)} parameter groups; expected the "
                f"{len(self._initial)} that it had. Add groups first, then make the schedule."
            )
        now = {name: factor(count) for name, factor in self._factors.items()}
        for name, value in now.items():
            if not (is_number(value) and math.isfinite(value)):
                raise UserError(
                    f"Schedule: the function of {name} returned {value!r} for count {count}; expected a finite number."
                )
        for group, initial in zip(groups, self._initial, strict=True):
            group.update({name: initial[name] * value for name, value in now.items()})
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        """The count and the values that it began with."""
        return {"count": self.count, "initial": [dict(initial) for initial in self._initial]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes at the saved count."""
        if not {"count", "initial"} <= state_dict.keys():
            raise UserError(
                f"load_state_dict: received {', '.join(map(str, state_dict)) or 'nothing'}; expected count and "
                "initial, as Schedule.state_dict() gives them."
            )
        expected = [sorted(initial) for initial in self._initial]
        received = [sorted(initial) for initial in state_dict["initial"]]
        if received != expected:
            raise UserError(
                f"load_state_dict: received a schedule of {received} by parameter group; expected {expected}."
            )
        self._initial = [dict(initial) for initial in state_dict["initial"]]
        self._apply(state_dict["count"])
