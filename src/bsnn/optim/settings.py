"""The settings of a group of parameters: checked whenever they change, and without any that a flip rule does not know.

What is stored is 1 − β, because β = 1 − 1e-8 is 1 in single precision.
"""

import math
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any, NoReturn

from torch import Tensor

from bsnn.errors import UserError

# The rates that are stored for the decays that are given.
_RATES = {"beta": ("one_minus_beta1",), "betas": ("one_minus_beta1", "one_minus_beta2")}
_NOT_NEGATIVE = ("gamma", "eps", "initial_momentum")
_SHARES = ("one_minus_beta1", "one_minus_beta2")


class Settings(dict[str, Any]):
    """A parameter group that takes and gives only the settings it was made with.

    An ordinary dict would keep a misspelled setting in silence, and the `lr` that torch's schedulers change.

    Args:
        owner: Name of the optimizer's class, for messages.
        settings: The parameters and their settings.

    Example:
        >>> group = Settings("BSO", {"params": [], "gamma": 0.5})
        >>> group["gamma"] = 0.25
        >>> group["lr"]
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: BSO: there is no setting 'lr', which torch's schedulers change; ...
    """

    def __init__(self, owner: str, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._owner = owner

    def __missing__(self, name: str) -> Any:
        known = ", ".join(key for key in self if key not in ("params", "param_names"))
        torchs = ", which torch's schedulers change" if name.endswith("lr") else ""
        raise UserError(
            f"{self._owner}: there is no setting {name!r}{torchs}; expected one of {known}. To anneal them, write "
            "schedule = bsnn.optim.Schedule(optimizer, one_minus_beta1=bsnn.optim.cosine(total=num_updates)) and call "
            "schedule.step() after each update."
        )

    def __contains__(self, name: object) -> bool:
        if name == "initial_lr":  # what a scheduler of torch asks for when it is resumed
            self.__missing__("initial_lr")
        return super().__contains__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __ior__(self, other: Any) -> "Settings":  # pyright: ignore[reportIncompatibleMethodOverride]
        self.update(other)
        return self

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The setting; there are no others to add."""
        return self[name]

    def update(self, *others: Any, **more: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Changes settings, all or, if one of them is refused, none."""
        changes = dict(*others, **more)
        for name, value in changes.items():
            if name not in self:
                self.__missing__(name)
            if name == "time_steps" and value != self[name]:
                raise UserError(
                    f"{self._owner}: received time_steps={value!r} for a group; expected {self[name]}, which the whole "
                    "optimizer has. Call its change_time_steps, or build another one."
                )
        check_numbers(changes)
        super().update(changes)

    def _keep(self, *names: object) -> NoReturn:
        raise UserError(
            f"{self._owner}: received the request to remove {names[0] if names else 'a setting'!r}; expected all "
            "settings of a group to stay. Give it another value."
        )

    __delitem__ = pop = popitem = clear = _keep

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, copies and pickles would set items one by one, on a group that does not know them yet.
        return Settings, (self._owner, dict(self))


def with_rates(group: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """A group whose decays, given as the constructors take them, are the rates that are stored."""
    group = dict(group)
    for name, rates in _RATES.items():
        if name in group and rates[-1] in known:
            given = group.pop(name)
            betas = check_betas(name, (given,) if name == "beta" else given, len(rates))
            group |= {rate: 1 - beta for rate, beta in zip(rates, betas, strict=True)}
    return group


def check_numbers(settings: Mapping[str, Any]) -> None:
    """Refuses numbers that no flip rule can use."""
    for name, value in settings.items():
        if name in _NOT_NEGATIVE and not (is_number(value) and 0 <= value < math.inf):
            raise UserError(f"{name}: received {value!r}; expected a finite number that is not negative.")
        if name in _SHARES and not (is_number(value) and 0 <= value <= 1):
            raise UserError(f"{name}: received {value!r}; expected a number from 0 to 1.")


def check_betas(name: str, betas: Any, number: int) -> tuple[float, ...]:
    """So many decays; refuses any outside of [0, 1)."""
    given = tuple(betas) if isinstance(betas, tuple | list) else (betas,)
    if len(given) != number or not all(is_number(beta) and 0 <= beta < 1 for beta in given):
        raise UserError(
            f"{name}: received {', '.join(map(repr, given))}; expected {'one decay' if number == 1 else 'two decays'} "
            "from 0 to just under 1, such as 0.999."
        )
    return given


def is_number(value: object) -> bool:
    """Whether a setting is one real number; torch allows one in a tensor, too."""
    if isinstance(value, Tensor):
        return value.dim() == 0
    return isinstance(value, Real) and not isinstance(value, bool)
