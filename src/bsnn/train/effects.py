"""When a field of a config has no effect, so that whoever gives its option is told.

Networks, neurons and flip rules of the user's own take what they name among their arguments.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from bsnn.errors import UserError
from bsnn.extras import named_object, need
from bsnn.optim import rules

if TYPE_CHECKING:
    from bsnn.train.config import Config

# Networks that are built from a plan, and the words that may stand in it between numbers of channels.
PLAN_WORDS = {"vgg": ("pool", "down"), "residual": ("max", "down")}

# What a function of the user's own that takes **arguments is given beside what it names.
_REST = {
    "model": {"num_classes", "in_channels", "width", "weights", "neuron"},
    "neuron": {"leak", "threshold", "surrogate", "gradient"},
}

Unused = Callable[["Config", str], str]
"""Why a field, given by its name, has no effect in a config; empty if it has one."""


def only(words: str, holds: Callable[["Config"], bool]) -> Unused:
    """For a field that has an effect under a condition only."""
    return lambda config, _: "" if holds(config) else f"it has an effect only with {words}"


ONLY_BINARY = only("--weights binary", lambda config: config.weights == "binary")
SOUND_FIELDS = ("time_shift", "speed_change", "gain_change", "noise", "noise_folder", "reject")
"""The fields that have an effect on sounds alone."""
# What lies in a folder of the user's own is found out when it is read; images and events there are left as they are.
ONLY_SOUNDS = only(
    "--dataset speech_commands or folder", lambda config: config.dataset in ("speech_commands", "folder")
)
ONLY_MIXED = only("--loss mixed", lambda config: config.loss == "mixed")


def unused_by_rule(config: "Config", name: str) -> str:
    """For a setting of flip rules, of which the chosen one takes only some."""
    if reason := ONLY_BINARY(config, name):
        return reason
    try:
        taken = rules.config_fields(rules.find(config.optimizer))
    except UserError:
        return ""  # a rule of the user's own that is not here: training says so, a report does not need it
    return "" if name in taken else f"the flip rule {config.optimizer} does not take it, only {', '.join(taken)}"


def unused_by_data(config: "Config", _: str) -> str:
    """For the size of images, which some data sets have once and for all."""
    resizable = need("bsnn.data.finder").RESIZABLE
    return "" if config.dataset in resizable else f"it has an effect only with --dataset {', '.join(resizable)}"


def _arguments_of(config: "Config", field: str) -> set[str] | None:
    """What a network or a neuron of the user's own takes; None for the library's, and if nobody can tell."""
    part = getattr(config, field)
    if ":" not in part:
        return None
    try:
        parameters = inspect.signature(named_object(part, field)).parameters.values()
    except (UserError, TypeError, ValueError):
        return None  # training says what is wrong with it
    names = {parameter.name for parameter in parameters}
    takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return names | _REST[field] if takes_rest else names


def unused_by_network(config: "Config", name: str) -> str:
    """For a setting that is handed to the network, of which the user's own takes what it names."""
    taken = _arguments_of(config, "model")
    ways = {name, "config"} | ({"neuron"} if name in ("neuron", "leak", "threshold", "surrogate") else set())
    return "" if taken is None or taken & ways else f"{config.model} takes no argument {' or '.join(sorted(ways))}"


def unused_noise(config: "Config", name: str) -> str:
    """For the folder of noise."""
    return ONLY_SOUNDS(config, name) or only("--noise or --reject", lambda c: bool(c.noise or c.reject))(config, name)


def unused_plan(config: "Config", name: str) -> str:
    """For the plan, which only some of the library's networks have."""
    if is_own(config.model):
        return unused_by_network(config, name)
    condition = f"--model {' or '.join(PLAN_WORDS)}, whose channels it gives"
    return "" if config.model in PLAN_WORDS else f"it has an effect only with {condition}"


def unused_by_neuron(config: "Config", name: str) -> str:
    """For a setting of the neuron, of which the user's own takes what it names."""
    if name == "leak" and config.neuron == "if":
        return "it has an effect only with a --neuron that leaks"
    taken = _arguments_of(config, "neuron")
    if taken is not None and name not in taken:
        return f"{config.neuron} takes no argument {name}"
    return unused_by_network(config, name)


def is_own(name: str) -> bool:
    """Whether a field names something of the user's own: `module:Name`, or `<Name>` for an object without such a name.

    Example:
        >>> is_own("my_networks:build"), is_own("<Sequential>"), is_own("vgg11")
        (True, True, False)
    """
    return ":" in name or name.startswith("<")
