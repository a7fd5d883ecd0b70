"""Which layers of a network an export may take for what: known classes, and classes that say what they are equal to.

A layer of a known class means what its class means. A subclass does if it overrides nothing that the class has but its
constructor and its printing. Any other layer needs a method `lowered_as`. Everything else is refused by name, because
a layer that is taken for another one makes a model file that is wrong without a word.
"""

import inspect
from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from bsnn.errors import UserError
from bsnn.kernels.torch_internals import named_layers
from bsnn.nn.network import Concat, Residual, Sequential
from bsnn.nn.neuron import Stateful

_CONTAINERS = (nn.Sequential, Sequential, Residual, Concat)

# What a subclass may define without changing what the layer computes.
_HARMLESS = {
    "__init__", "__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__",
    "__firstlineno__", "__static_attributes__", "__dict__", "__weakref__", "__orig_bases__", "__parameters__",
    "__repr__", "__str__", "extra_repr", "lowered_as",
}  # fmt: skip

# Modules that hold the network inside.
_WRAPPERS = {
    "DistributedDataParallel": "export its .module",
    "DataParallel": "export its .module",
    "FullyShardedDataParallel": "export the network that you wrapped",
    "OptimizedModule": "export the network that you gave to torch.compile",
}


class Node(NamedTuple):
    """A layer as an export takes it."""

    name: str
    """In the network."""
    known: type[nn.Module]
    """The known class that says what it means."""
    module: nn.Module
    """Holds its numbers."""
    runs: nn.Module
    """What the network runs: the module itself, or the layer that is lowered as it."""
    children: tuple["Node", ...]

    def walk(self) -> Iterator["Node"]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def recognize(layer: nn.Module, known: Collection[type[nn.Module]], name: str = "") -> Node:
    """The tree of a network's layers.

    Args:
        layer: The network, or a part of it.
        known: Classes that have a deployed form.
        name: Where it stands in the network.

    Raises:
        UserError: A layer is neither known nor says what it is equal to.
    """
    module, seen = layer, [type(layer)]
    while type(module) not in known and hasattr(type(module), "lowered_as"):
        module = _lowered(module, name)
        if type(module) in seen:
            raise UserError(
                f"export: layer {name or 'the network'} is lowered as a {type(module).__name__}, which is where it "
                "began; expected lowered_as to return a module of known layers."
            )
        seen.append(type(module))
    found = next((base for base in type(module).__mro__ if base in known), None)
    if found is None:
        raise unsupported(module, name)
    if is_parametrized(module):
        raise UserError(
            f"export: a parameter of layer {name} is parametrized; make it an ordinary one first, with "
            "torch.nn.utils.parametrize.remove_parametrizations."
        )
    changes = _overridden(type(module), found) or _patched(module)
    if changes:
        raise UserError(
            f"export: layer {name or 'the network'} ({type(module).__name__}) {changes}, so it may not compute what "
            f"{found.__name__} does. If an equivalent module of known layers exists, define lowered_as(self) in its "
            "class and return that module."
        )
    prefix = f"{name}." if name else ""
    parts = named_layers(module) if issubclass(found, _CONTAINERS) else {}
    children = (recognize(child, known, prefix + key) for key, child in parts.items())
    return Node(name, found, module, layer, tuple(children))


def _lowered(layer: nn.Module, name: str) -> nn.Module:
    with torch.no_grad():  # numbers read from parameters need no graph
        lowered = layer.lowered_as()  # pyright: ignore[reportCallIssue]
    if not isinstance(lowered, nn.Module):
        raise UserError(
            f"export: lowered_as of layer {name or 'the network'} ({type(layer).__name__}) returned {lowered!r}; "
            "expected an nn.Module."
        )
    return lowered


def _overridden(kind: type, known: type) -> str:
    """What a subclass has put in the place of what its known base defines."""
    order = kind.__mro__
    inherited = {*dir(known), *(p.name for p in _parameters(known))}
    own = [name for base in order[: order.index(known)] for name in vars(base)]
    names = sorted({name for name in own if name in inherited} - _HARMLESS)
    return f"overrides {', '.join(names)} of {known.__name__}" if names else ""


def _parameters(known: type) -> list[inspect.Parameter]:
    """What its constructor takes by name: the numbers that an export reads from it."""
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [p for p in inspect.signature(known).parameters.values() if p.kind in named]


def _patched(module: nn.Module) -> str:
    """Which methods of a module were replaced by attributes of the object."""
    names = sorted(name for name in vars(module) if callable(getattr(type(module), name, None)))
    return f"has attributes in the place of its methods: {', '.join(names)}" if names else ""


def unsupported(layer: nn.Module, name: str, how: str = "") -> UserError:
    """What to tell a user whose layer has no deployed form."""
    kind = type(layer).__name__
    advice = _WRAPPERS.get(kind)
    if advice is None:
        advice = (
            "expected convolutions, linear layers, BatchNorm, LIF, pooling, Flatten, and Sequential, Residual and "
            "Concat of them"
        )
        if not how and (isinstance(layer, Stateful) or not type(layer).__module__.startswith("torch.")):
            advice += ". A class that is equal to such layers can say so with a method lowered_as(self)"
    where = f"layer {name}" if name else "the network"
    return UserError(f"export: {where} ({kind}{' ' + how if how else ''}) has no deployed form; {advice}.")
