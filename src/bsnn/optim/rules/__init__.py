"""The flip rules, one file each: a module here is a rule, and its file name is the rule's name.

Command line, recipes and reports read this registry. A rule of your own is named `module:Class`.
"""

import inspect
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bsnn.errors import UserError
from bsnn.extras import named_object, need

if TYPE_CHECKING:
    from bsnn.optim.base import FlipOptimizer

# Decays that a constructor takes, by the fields of a config that hold one minus them.
_DECAYS = {"beta": ("one_minus_beta1",), "betas": ("one_minus_beta1", "one_minus_beta2")}


def names() -> tuple[str, ...]:
    """The rules that come with the library; found without importing torch.

    Example:
        >>> {"bso", "tbso"} <= set(names())
        True
    """
    return tuple(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> "type[FlipOptimizer]":
    """The optimizer of a rule.

    Args:
        name: One of `names()`, or `module:Class` for a rule of your own.

    Example:
        >>> find("tbso").label
        'T-BSO'
    """
    from bsnn.optim.base import FlipOptimizer

    if name in names():
        module = need(f"{__name__}.{name}")
        own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
        found = [value for value in own if inspect.isclass(value) and issubclass(value, FlipOptimizer)]
        if not found:
            raise UserError(
                f"{module.__name__} defines no FlipOptimizer; expected one, or a file name that begins with _."
            )
        return found[-1]
    if ":" not in name:
        raise UserError(
            f"optimizer: received {name!r}; expected one of {', '.join(names())}, or module:Class for a rule of your "
            "own."
        )
    return checked(named_object(name, "optimizer"))


def checked(rule: Any) -> "type[FlipOptimizer]":
    """Refuses what is not the class of a flip rule."""
    from bsnn.optim.base import FlipOptimizer

    if not (inspect.isclass(rule) and issubclass(rule, FlipOptimizer)):
        raise UserError(f"optimizer: received {rule!r}; expected a subclass of bsnn.optim.FlipOptimizer.")
    return rule


def label(name: str) -> str:
    """What reports call a rule.

    Example:
        >>> label("sigma")
        'Sigma-BSO'
    """
    rule = find(name)
    return rule.label or rule.__name__


def config_fields(rule: "type[FlipOptimizer]") -> tuple[str, ...]:
    """The fields of a config that a rule takes: what its constructor is given.

    Example:
        >>> config_fields(find("bso"))
        ('gamma', 'one_minus_beta1', 'initial_momentum', 'momentum_bits')
    """
    arguments = list(inspect.signature(rule).parameters)[1:]
    return tuple(field for name in arguments for field in _DECAYS.get(name, (name,)))


def build(rule: "type[FlipOptimizer]", params: Any, config: Mapping[str, Any]) -> "FlipOptimizer":
    """A rule's optimizer with the settings of a config; what the config does not have keeps its default.

    Args:
        rule: The optimizer's class.
        params: Binary parameters.
        config: The fields of a training config, by name.
    """
    arguments: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(rule).parameters.items())[1:]:
        if name in _DECAYS:
            decays = tuple(1 - config[field] for field in _DECAYS[name])
            arguments[name] = decays if name == "betas" else decays[0]
        elif name in config:
            arguments[name] = config[name]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            raise UserError(
                f"optimizer: {rule.__name__} requires {name!r}, which no config has; give it a default, or the "
                "name of a field that `bsnn train --help` lists."
            )
    return rule(params, **arguments)
