"""Parts of your own in a training run: how a network, optimizers and a loss are named, built and checked.

A part is named in the config (`module:Name`) or passed to `bsnn.train.train` as an object, whose name is recorded if it
can be imported again by that name.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsnn.data.spec import DataSpec
from bsnn.errors import UserError
from bsnn.extras import named_object
from bsnn.nn.bits import BinaryParameter
from bsnn.nn.neuron import Stateful, evaluating
from bsnn.nn.trace import Activity, GradientRule, as_output
from bsnn.optim import FlipOptimizer
from bsnn.train.config import Config
from bsnn.train.effects import is_own

Model = nn.Module | Callable[..., nn.Module]
"""A network, or a function that builds one; it is given what it names among its arguments."""

Optimizers = type[FlipOptimizer] | Callable[[nn.Module], Sequence[Optimizer]]
"""A flip rule, or a function that gives the optimizers of a network."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits of one time step and labels to the mean loss of the batch."""


class Own(NamedTuple):
    """Parts of a run that were passed as objects; None leaves a part to the config."""

    model: Model | None = None
    optimizer: Optimizers | None = None
    loss: Loss | None = None

    def recorded_in(self, config: Config) -> Config:
        """The config with the names of these parts, so that it says what a run was trained with."""
        names = {field: name_of(part) for field, part in self._asdict().items() if part is not None}
        return dataclasses.replace(config, **names)

    def part(self, field: str, config: Config) -> Any:
        """The object of a part: as it was passed, or by its name in the config; None for one of the library's own."""
        given, name = getattr(self, field), getattr(config, field)
        if given is not None or not is_own(name):
            return given
        if name.startswith("<"):
            raise UserError(
                f"{field}: the run was trained in Python with {name}, an object that no name leads to; expected the "
                f"same object again. Pass it as {field}=... to bsnn.train.train"
                + (", load_network or evaluate_run." if field == "model" else ".")
            )
        found = named_object(name, field)
        if not callable(found):
            raise UserError(f"{field}: {name} is {found!r}; expected a function or a class.")
        return found


NOTHING = Own()


def name_of(part: Any) -> str:
    """The name of an object: `module:Name` if that leads back to it, or else one that only describes it.

    Example:
        >>> name_of(bsnn.models.vgg11), name_of(nn.Identity())
        ('bsnn.models.vgg:vgg11', '<Identity>')
    """
    module, name = getattr(part, "__module__", ""), getattr(part, "__qualname__", type(part).__name__)
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is part:
        return f"{module}:{name}"
    return f"<{name}>"


def filled(function: Callable[..., Any], available: Mapping[str, Any], option: str, rest: Collection[str] = ()) -> Any:
    """Calls a function with those of the available values that it names among its arguments.

    Args:
        function: A function or class.
        available: Values by name.
        option: What the function was given as, for messages.
        rest: Values that a function with `**arguments` is given as well.

    Example:
        >>> filled(lambda a, b=2: (a, b), {"a": 1, "c": 3}, "example")
        (1, 2)
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UserError(f"{option}: received {function!r}; expected a function or a class.") from error
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for parameter in named:
        if parameter.kind is parameter.POSITIONAL_ONLY or (
            parameter.default is parameter.empty and parameter.name not in available
        ):
            raise UserError(
                f"{option}: {name_of(function)} requires {parameter.name!r}, which a training run does not have; give "
                f"it a default, or name it as one of {', '.join(available)}."
            )
    taken = [p.name for p in named if p.name in available]
    has_own = getattr(function, "__init__", None) is not nn.Module.__init__  # which takes anything, only to refuse it
    if has_own and any(p.kind is p.VAR_KEYWORD for p in parameters):
        taken += [name for name in rest if name not in taken]
    return function(**{name: available[name] for name in taken})


def gradient_rules(net: nn.Module) -> dict[str, GradientRule]:
    """The gradient rule of each layer of neurons, by the layer's name."""
    found = {name: getattr(module, "gradient", None) for name, module in net.named_modules()}
    return {name: rule for name, rule in found.items() if isinstance(rule, GradientRule)}


def keeps_graph(net: nn.Module) -> bool:
    """Whether a network is trained by backpropagation through time."""
    return any(rule.keeps_graph for rule in gradient_rules(net).values())


def check_network(net: Any, config: Config, spec: DataSpec, rule: GradientRule) -> Stateful:
    """Refuses a network that cannot be trained on such data under such a config, before any training.

    Args:
        net: The network.
        config: The config.
        spec: The data.
        rule: The gradient rule that the config names.
    """
    name = f"model: {config.model}" + (f" with the neuron {config.neuron}" if is_own(config.neuron) else "")
    if not isinstance(net, Stateful):
        raise UserError(
            f"{name} is {type(net).__name__}; expected a module that is called as `logits, state = net(x, state)`: "
            "bsnn.Sequential, or your own class derived from bsnn.Stateful."
        )
    has_bits = any(isinstance(parameter, BinaryParameter) for parameter in net.parameters())
    if has_bits != (config.weights == "binary"):
        raise UserError(
            f"{name} has {'some' if has_bits else 'no'} one-bit weights, and the config says weights={config.weights}; "
            "expected layers such as bsnn.BinaryConv2d with weights=binary, and none of them otherwise."
        )
    rules = gradient_rules(net)
    if not rules:
        raise UserError(f"{name} has no neurons, so nothing in it depends on time; expected some, such as bsnn.LIF().")
    for layer, found in rules.items():
        if type(found) is not type(rule):
            raise UserError(
                f"{name} has neurons of the gradient rule {type(found).__name__} ({layer}), and the config says "
                f"gradient={config.gradient}; expected the same. "
                + (
                    "Let your function take `neuron`, which is built from the config, and copy it into every layer."
                    if is_own(config.model)
                    else "Let your neuron's constructor take `gradient`."
                )
            )
    check_outputs(net, name, spec)
    return net


def check_outputs(net: Stateful, name: str, spec: DataSpec) -> None:
    """Refuses a network that does not yield logits for such data.

    Args:
        net: The network.
        name: What messages call it.
        spec: The data.
    """
    parameter = next(iter(net.parameters()))
    sample = torch.zeros(1, *spec.shape[-3:], device=parameter.device)
    try:
        with evaluating(net), torch.no_grad(), torch.random.fork_rng(devices=[]):
            step = net(sample, None)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{name} fails on a frame of the data, of shape {tuple(sample.shape)} ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}); expected a network for such frames."
        ) from error
    if not (isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], Tensor | Activity)):
        raise UserError(f"{name} returned {type(step).__name__}; expected a pair, logits and the new state.")
    if step[1] is None or (isinstance(step[1], tuple | list | dict) and not step[1]):
        raise UserError(f"{name} returned no state; expected the state of its neurons, to be handed in again.")
    shape = tuple(as_output(step[0]).shape)
    if shape != (1, len(spec.classes)):
        raise UserError(
            f"{name} returned logits of shape {shape} for one sample; expected (1, "
            f"{len(spec.classes)}), one for each class of {spec.name}."
        )


def check_optimizers(found: Any, net: nn.Module) -> list[Optimizer]:
    """The optimizers that a user's function has made, flip optimizers first; refuses a parameter that none holds."""
    optimizers = list(found) if isinstance(found, Sequence) else [found]
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        raise UserError(f"optimizer: the function returned {found!r}; expected a list of optimizers.")
    held = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    for name, parameter in net.named_parameters():
        if parameter.requires_grad and held.count(id(parameter)) != 1:
            raise UserError(
                f"optimizer: {held.count(id(parameter))} of the optimizers hold {name}; expected one. To keep a "
                "parameter as it is, say requires_grad_(False)."
            )
    return sorted(optimizers, key=lambda optimizer: not isinstance(optimizer, FlipOptimizer))


def check_loss(loss: Loss, name: str, net: Stateful, spec: DataSpec, *, distributions: bool) -> None:
    """Refuses a loss of the user's own that is not one number with a gradient.

    Args:
        loss: The loss.
        name: What the config calls it.
        net: The network.
        spec: What it takes.
        distributions: Whether labels are those, `[B, classes]`, as mixup and a teacher make them.
    """
    parameter = next(iter(net.parameters()))
    logits = torch.zeros(2, len(spec.classes), device=parameter.device, requires_grad=True)
    labels = torch.zeros(2, dtype=torch.int64, device=parameter.device)
    if distributions:
        labels = torch.full_like(logits, 1 / len(spec.classes))
    try:
        value = loss(logits, labels)
    except Exception as error:
        kind = "distributions over the classes, as mixup and a teacher make them," if distributions else "labels"
        raise UserError(
            f"loss: {name} fails on the logits and {kind} of two samples ({type(error).__name__}: {error}); expected a "
            "function of both that returns their mean loss."
        ) from error
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
        raise UserError(
            f"loss: {name} returned {value!r} for the logits of two samples; expected one number with a "
            "gradient, the mean over the samples, as torch.nn.functional.cross_entropy gives."
        )
