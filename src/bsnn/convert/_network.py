"""What every conversion does: walk the containers, exchange the neurons, and compare both networks on random input.

A conversion promises the same spikes and outputs in evaluation. It is checked in double precision, in which two ways to
round the same formula practically never put a membrane on different sides of its threshold: every layer of neurons by
itself on random currents, because a network may be silent on random input, and then the network as a whole.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.kernels.torch_internals import named_layers
from bsnn.nn.equivalence import TOLERATED, double_copy, outputs, random_currents, share_differing
from bsnn.nn.network import Sequential
from bsnn.nn.neuron import Stateful
from bsnn.nn.norm import BatchNorm1d, BatchNorm2d

_OURS: dict[type[nn.Module], type[nn.Module]] = {nn.BatchNorm1d: BatchNorm1d, nn.BatchNorm2d: BatchNorm2d}
# Sizes of images to try, the usual ones first.
_SIDES = (32, 28, 34, 16, 8, 48, 64, 96, 128, 224, *range(1, 129))


class Neurons(NamedTuple):
    """A layer of neurons that was converted."""

    ours: Stateful
    scale: float
    """Currents of this size make it fire."""


class Package(NamedTuple):
    """What a conversion knows of another package."""

    function: str
    """That converts, for messages."""
    root: str
    """Its import name."""
    neurons: Mapping[str, Callable[[Any, str], Neurons]]
    """How its classes of neurons are converted, from the layer and where it stands."""
    containers: Sequence[str]
    """Its classes of layers one after another."""
    stateless: Sequence[str]
    """Its classes that do what the class of torch does that they are derived from, at every time step."""
    refused: Mapping[str, str]
    """Why some classes are not converted."""
    call: Callable[[Any, Tensor], Tensor]
    """One time step of a layer."""
    prepare: Callable[[nn.Module], None]
    """Makes a copy ready for a sequence of single time steps."""


def convert(net: nn.Module, package: Package, input_shape: Sequence[int] | None) -> Sequential:
    """A network of ours that computes what `net` does.

    Args:
        net: A network of the other package.
        package: What is known of it.
        input_shape: Of one sample at one time step; found from the layers if None.
    """
    converted = _Conversion(package)
    ours = converted.layer(net, "")
    ours = ours if isinstance(ours, Sequential) else Sequential(ours)
    for name, (theirs, neurons) in converted.neurons.items():
        sequence = random_currents(4, 64, scale=neurons.scale)
        share = share_differing(
            outputs(double_copy(neurons.ours), sequence), _run(package, [double_copy(theirs)], sequence)
        )
        if share > TOLERATED:
            raise _differs(package, f"layer {name or 'the network'}, a {type(theirs).__name__},", share)
    leaves = [double_copy(leaf) for leaf in _leaves(package, net)]
    sequence = _inputs(package, leaves, input_shape)
    share = share_differing(outputs(double_copy(ours), sequence), _run(package, leaves, sequence))
    if share > TOLERATED:
        raise _differs(package, "the network", share)
    return ours.train(net.training)


class _Conversion:
    """Converts layer by layer, and remembers which neurons it met."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.neurons: dict[str, tuple[nn.Module, Neurons]] = {}

    def layer(self, layer: nn.Module, name: str) -> nn.Module:
        """What stands for a layer."""
        kind, package = type(layer).__name__, self.package
        if _is_container(package, layer):
            prefix = f"{name}." if name else ""
            parts = {key: self.layer(part, prefix + key) for key, part in named_layers(layer).items()}
            return Sequential(parts)
        if _comes_from(layer, package.root) and kind in package.neurons:
            found = package.neurons[kind](layer, name)
            self.neurons[name] = layer, found
            return found.ours
        if _comes_from(layer, "torch.nn.modules") and not isinstance(layer, nn.RNNBase | nn.RNNCellBase):
            return _recast(layer, type(layer))
        if _comes_from(layer, package.root) and kind in package.stateless:
            return _recast(layer, next(base for base in type(layer).__mro__ if base.__module__.startswith("torch.nn")))
        why = package.refused.get(kind) if _comes_from(layer, package.root) else None
        raise _refusal(package, layer, name, why or _unknown(package, layer, name))


def _comes_from(layer: nn.Module, root: str) -> bool:
    return f"{type(layer).__module__}.".startswith(f"{root}.")


def _is_container(package: Package, layer: nn.Module) -> bool:
    own = _comes_from(layer, package.root) and type(layer).__name__ in package.containers
    return type(layer) is nn.Sequential or own


def _recast(layer: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """A copy of a stateless layer as a layer of torch, or of ours where we have it."""
    made = copy.deepcopy(layer)
    made.__class__ = _OURS.get(kind, kind)
    vars(made).pop("_step_mode", None)
    return made


def _refusal(package: Package, layer: nn.Module, name: str, why: str) -> UserError:
    """What to tell a user whose layer has no equal here."""
    return UserError(f"{package.function}: layer {name or 'the network'} is of class {type(layer).__name__}, {why}.")


def _unknown(package: Package, layer: nn.Module, name: str) -> str:
    base = next((b for b in type(layer).__mro__[1:] if b.__module__.partition(".")[0] == package.root), None)
    if base is not None and not _comes_from(layer, package.root):
        return f"a subclass of {base.__name__}, which may compute something else; expected {base.__name__} itself"
    if named_layers(layer):
        parts = ", ".join(f"net.{name + '.' if name else ''}{part}" for part in list(named_layers(layer))[:3])
        return f"which has its own forward; expected nn.Sequential. List its parts in one ({parts}, ...)"
    return "which is not known here; expected layers of the package or of torch, in nn.Sequential"


def _differs(package: Package, what: str, share: float) -> UserError:
    return UserError(
        f"{package.function}: {what} differs from its conversion in {share:.2%} of the values on random input, so it "
        "is not what it seems to be. Is a method replaced, or does this version of the package compute something else?"
    )


def _leaves(package: Package, layer: nn.Module) -> Iterator[nn.Module]:
    if _is_container(package, layer):
        for part in named_layers(layer).values():
            yield from _leaves(package, part)
    else:
        yield layer


@torch.no_grad()
def _run(package: Package, leaves: list[nn.Module], sequence: Tensor) -> Tensor:
    """What layers of the other package make of a sequence, one after another, one time step at a time."""
    for leaf in leaves:
        package.prepare(leaf.eval())
    made = []
    for x in sequence:
        for leaf in leaves:
            x = package.call(leaf, x).to(sequence.dtype)
        made.append(x)
    return torch.stack(made)


def _inputs(package: Package, leaves: list[nn.Module], input_shape: Sequence[int] | None) -> Tensor:
    """Random inputs that the network takes."""
    for shape in [tuple(input_shape)] if input_shape is not None else _shapes(leaves):
        sequence = random_currents(2, *shape, time_steps=8)
        try:
            _run(package, leaves, sequence[:1, :1])
        except (RuntimeError, ValueError, IndexError) as error:
            if input_shape is not None:
                raise UserError(
                    f"{package.function}: the network does not run on inputs of shape {tuple(input_shape)} ({error})."
                ) from error
        else:
            return sequence
    raise UserError(
        f"{package.function}: found no input that the network runs on; expected input_shape=..., of one sample at one "
        "time step, such as (3, 32, 32)."
    )


def _shapes(leaves: list[nn.Module]) -> Iterator[tuple[int, ...]]:
    first: Any = next((leaf for leaf in leaves if isinstance(leaf, nn.Linear | nn.Conv2d)), None)
    if isinstance(first, nn.Linear):
        yield (first.in_features,)
    elif first is not None:
        yield from ((first.in_channels, side, side) for side in _SIDES)


class BorrowedSurrogate:
    """The derivative of another package's surrogate, found by autograd.

    Args:
        function: The spikes of a distance from the threshold.
        scale: How many times larger membranes are here.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], scale: float = 1.0) -> None:
        self.function = (function,)  # in a tuple, so that a module is not taken for a layer
        self.scale = scale

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        with torch.enable_grad():
            distance = (x.detach() / self.scale).requires_grad_()
            (slope,) = torch.autograd.grad(self.function[0](distance).sum(), distance)
        return slope / self.scale

    def __repr__(self) -> str:
        return f"BorrowedSurrogate({self.function[0]}, scale={self.scale:g})"
