"""Networks from layers: state is threaded through, the trace goes along with the spikes.

`Sequential`, `Residual` and `Concat` are enough for most networks; anything else is an `nn.Module` derived from
`Stateful` whose `forward(x, state)` returns the output and the new state.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from bsnn.errors import BackendWarning, UserError
from bsnn.kernels.images import channels_last
from bsnn.kernels.product import affine
from bsnn.kernels.torch_internals import count_together, named_layers
from bsnn.nn.fused import find_run, is_watched, run_step
from bsnn.nn.neuron import Neuron, Stateful, finding_shapes
from bsnn.nn.recurrent import Recurrent
from bsnn.nn.retraced import Retraced
from bsnn.nn.synapse import BinaryConv2d, BinaryLinear, TracedConv2d, TracedLayer, TracedLinear
from bsnn.nn.trace import Activity, as_output, lose_trace, where_lost

# Linear and the same at every time step: the trace of their output is their output for the trace.
_LINEAR = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Unflatten, nn.Identity,
    nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d,
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.CircularPad1d, nn.CircularPad2d,
    nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d,
)  # fmt: skip

Value = Tensor | Activity


def _forgets(layer: nn.Module) -> bool:
    """Whether a layer is a synapse that keeps nothing of what it returns, and nobody watches it."""
    own = type(layer) in (TracedConv2d, TracedLinear, BinaryConv2d, BinaryLinear, nn.Conv2d, nn.Linear)
    return own and not is_watched(layer) and "forward" not in vars(layer)


def _is_linear(layer: nn.Module) -> bool:
    """Whether a trace passes through a layer; padding by a constant is linear only if it is zero."""
    return type(layer) in _LINEAR and getattr(layer, "value", 0) == 0 and "forward" not in vars(layer)


def _takes_pixel_mean(layer: nn.Module) -> bool:
    return isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1))


def _pixel_mean(x: Tensor) -> Tensor:
    """What `nn.AdaptiveAvgPool2d(1)` computes, without its copies in the backward pass."""
    return x.mean((-1, -2), keepdim=True)


def _pass_on(layer: nn.Module, x: Activity, name: str) -> Value:
    """Spikes and trace behind a linear layer; hooks see the spikes alone, once, and one that changes them ends it."""
    if not is_watched(layer):
        return x.map(_pixel_mean if _takes_pixel_mean(layer) else layer)
    if x.trace is None:
        return x.map(layer)
    with torch.no_grad():
        unchanged = layer.forward(x.spikes).clone()
        trace = layer.forward(x.trace)
    spikes = layer(x.spikes)
    if torch.equal(spikes, unchanged):
        return Activity(spikes, trace)
    return lose_trace(spikes.view_as(spikes), f"{name} ({type(layer).__name__}), whose output a hook changes,")


def _apply(layer: nn.Module, x: Value, name: str) -> Value:
    """A layer without state; a trace passes through linear ones, and is lost in all others but synapses."""
    if isinstance(layer, TracedLayer):
        return layer(x)
    if isinstance(x, Activity) and _is_linear(layer):
        return _pass_on(layer, x, name)
    lost = where_lost(x)
    if isinstance(x, Activity) and x.trace is not None:
        lost = f"{name} ({type(layer).__name__})"
    if lost and any(isinstance(module, TracedLayer) for module in layer.modules()):
        raise UserError(
            f"layer {name} is a {type(layer).__name__} with a synapse inside, behind a neuron; expected "
            "bsnn.Sequential, bsnn.Residual or bsnn.Concat there, which hand the trace on."
        )
    entering = x.spikes if isinstance(x, Activity) else x
    if torch.compiler.is_compiling() and type(layer) is nn.Linear and _forgets(layer):
        output = affine(entering, layer.weight, layer.bias)
    else:
        output = layer(entering)
    if not lost or not isinstance(output, Tensor):
        return output
    # What a layer hands on as it is, such as dropout in evaluation, is still somebody else's tensor.
    return lose_trace(output.view_as(output) if output is entering else output, lost)


# Compositions that have said that a hook changes what computes.
_told: WeakSet[nn.Module] = WeakSet()


class _Composition(Stateful):
    """Children by number or, from a mapping, by name; the state is a tuple, one entry per stateful child."""

    def __init__(self, *layers: nn.Module | Mapping[str, nn.Module]) -> None:
        super().__init__()
        for index, layer in enumerate(layers):
            if not isinstance(layer, nn.Module | Mapping):
                raise UserError(
                    f"{type(self).__name__}: received {layer!r} as layer {index}; expected an nn.Module, such as "
                    "bsnn.LIF(), or a dict of them by name."
                )
            named = {str(index): layer} if isinstance(layer, nn.Module) else layer
            for name, module in named.items():
                self.add_module(name, module)

    def __len__(self) -> int:
        return len(named_layers(self))

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(named_layers(self).values())

    def __getitem__(self, index: int) -> nn.Module:
        return list(self)[index]

    @property
    def _num_states(self) -> int:
        return sum(isinstance(layer, Stateful) for layer in self)

    def _with_states(self, state: tuple[Any, ...] | None) -> Iterable[tuple[str, nn.Module, Any]]:
        if state is not None and len(state) != self._num_states:
            raise UserError(
                f"state: received one for {len(state)} stateful layers; this {type(self).__name__} has "
                f"{self._num_states}. Make one with net.initial_state(x) of this network."
            )
        states = iter(state if state is not None else (None,) * self._num_states)
        for name, layer in named_layers(self).items():
            yield name, layer, next(states) if isinstance(layer, Stateful) else None

    def _step(self, name: str, layer: nn.Module, x: Value, state: Any) -> tuple[Value, Any]:
        """One layer at one time step."""
        if not isinstance(layer, Stateful):
            return _apply(layer, x, name), None
        if isinstance(x, Activity) and isinstance(layer, Neuron | Recurrent | Retraced):
            x = x.spikes
        output, state = layer(x, state)
        if isinstance(layer, _Composition):
            lost = where_lost(output)
            if lost and lost != where_lost(x):
                output = lose_trace(output, f"{name}.{lost}")
            if not torch.compiler.is_compiling() and _told and layer in _told:
                self._say_no_more()
        return output, state

    def _all_steps(self, layer: nn.Module, frames: Sequence[Tensor], state: Any) -> tuple[list[Tensor], Any]:
        """One layer at all time steps; one without state sees them as a single batch."""
        if isinstance(layer, Stateful):
            return layer.sequence(frames, state)
        return list(layer(torch.cat(list(frames))).split(len(frames[0]))), None

    def _tell(self, watched: nn.Module) -> None:
        """Says, once per network, that modules run one by one because of a hook."""
        if torch.compiler.is_compiling() or self in _told or finding_shapes():
            return
        self._say_no_more()
        name = next(name for name, layer in named_layers(self).items() if layer is watched)
        warnings.warn(
            f"layer {name} ({type(watched).__name__}) has a hook, so it runs as a plain PyTorch module, not fused with "
            "its neighbors: the same values, slower, in more memory. bsnn.counting_spikes counts spikes without that, "
            "and bsnn.backend('reference') runs every module this way without a warning.",
            BackendWarning,
            stacklevel=2,
        )

    def _say_no_more(self) -> None:
        _told.update(module for module in self.modules() if isinstance(module, _Composition))

    def _kept(self, states: Sequence[Any]) -> tuple[Any, ...]:
        stateful = (isinstance(layer, Stateful) for layer in self)
        return tuple(state for state, keep in zip(states, stateful, strict=True) if keep)


class Sequential(_Composition):
    """Layers one after another, stateful or not.

    Any `nn.Module` fits. Pooling and flattening pass a trace on. Any other layer behind a neuron sees the spikes alone:
    its own parameters learn from the present time step, which is exact for the last layer. Between two neurons, use
    `TracedLinear(..., weights="real")`, not `nn.Linear`. A synapse behind such a layer would miss its trace and
    refuses; `Retraced` gives max pooling, dropout and the like a trace of their own.

    Example:
        >>> net = Sequential(nn.Linear(4, 8), bsnn.LIF(), bsnn.BinaryLinear(8, 8), bsnn.LIF(), nn.Linear(8, 2))
        >>> logits, state = net(torch.randn(3, 4), None)
        >>> logits.shape, len(state)
        (torch.Size([3, 2]), 2)
    """

    def forward(self, x: Value, state: tuple[Any, ...] | None) -> tuple[Any, tuple[Any, ...]]:
        """One time step through all layers."""
        states, layers, place, counted = [], list(self._with_states(state)), 0, []
        modules = [layer for _, layer, _ in layers]
        while place < len(layers):
            run = find_run(modules, place, x, self._tell)
            if run is None or not isinstance(x, Tensor):
                x, now = self._step(*layers[place][:2], x, layers[place][2])
                states.append(now)
                place += 1
            else:
                past = layers[place + (run.norm is not None)][2]
                spare = place > 0 and _forgets(modules[place - 1])
                x, now = run_step(run, x, past, spare=spare, counted=counted)
                states += [now if module is run.neuron else None for module in run.modules]
                place += len(run.modules)
        if counted:
            count_together(counted)
        return x, self._kept(states)

    def sequence(self, frames: Sequence[Tensor], state: tuple[Any, ...] | None) -> tuple[list[Tensor], tuple[Any, ...]]:
        """All time steps, layer by layer; see `Stateful.sequence`.

        Example:
            >>> net = Sequential(bsnn.BatchNorm1d(1, momentum=1.0), bsnn.LIF(gradient="bptt"))
            >>> spikes, state = net.sequence([torch.zeros(2, 1), torch.ones(2, 1)], None)
            >>> net[0].running_mean  # of both time steps
            tensor([0.5000])
        """
        sent, states = list(frames), []
        for _, layer, past in self._with_states(state):
            sent, now = self._all_steps(layer, sent, past)
            states.append(now)
        return sent, self._kept(states)


class _Branches(_Composition):
    """Layers side by side on the same input."""

    def _merge(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Value, state: tuple[Any, ...] | None) -> tuple[Any, tuple[Any, ...]]:
        """One time step through all branches."""
        steps = [self._step(name, layer, x, past) for name, layer, past in self._with_states(state)]
        outputs, states = [output for output, _ in steps], [now for _, now in steps]
        activities = [output for output in outputs if isinstance(output, Activity)]
        # Without traces, spikes are numbers like any other.
        if all(activity.trace is None for activity in activities) and len(activities) < len(outputs):
            merged = self._merge([as_output(output) for output in outputs])
            lost = next(filter(None, map(where_lost, outputs)), "")
            return lose_trace(merged, lost) if lost else merged, self._kept(states)
        if len(activities) < len(outputs):
            raise UserError(
                f"{type(self).__name__}: some branches yield spikes and others currents; expected the same "
                "of all under a rule with a trace. End each branch with a neuron, or none."
            )
        return Activity.join(self._merge, activities), self._kept(states)

    def sequence(self, frames: Sequence[Tensor], state: tuple[Any, ...] | None) -> tuple[list[Tensor], tuple[Any, ...]]:
        """All time steps, layer by layer; see `Stateful.sequence`."""
        branches = [self._all_steps(layer, frames, past) for _, layer, past in self._with_states(state)]
        merged = [self._merge(list(parts)) for parts in zip(*(sent for sent, _ in branches), strict=True)]
        return merged, self._kept([now for _, now in branches])


class Residual(_Branches):
    """The sum of a body and its shortcut, the input itself if none is given.

    Example:
        >>> block = Residual(Sequential(bsnn.LIF(), bsnn.BinaryLinear(4, 4)))
        >>> block(torch.zeros(2, 4), None)[0].shape
        torch.Size([2, 4])
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__({"body": body, "shortcut": shortcut or nn.Identity()})

    def _merge(self, parts: list[Tensor]) -> Tensor:
        body, shortcut = parts
        if body.shape != shortcut.shape:
            raise UserError(
                f"Residual: the body yields {tuple(body.shape)} and the shortcut {tuple(shortcut.shape)}; "
                "expected the same shape. Give it a shortcut that changes the input likewise."
            )
        return body + shortcut


class Concat(_Branches):
    """The outputs of several branches, one after another along the channels (axis 1).

    Example:
        >>> block = Concat(bsnn.LIF(), Sequential(bsnn.LIF(), bsnn.BinaryLinear(4, 2), bsnn.LIF()))
        >>> block(torch.ones(3, 4), None)[0].spikes.shape
        torch.Size([3, 6])
    """

    def _merge(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts, dim=1)


class ImageNetwork(Sequential):
    """A network on images that checks its input first.

    Args:
        layers: Named layers.
        in_channels: Channels of an image.
        minimum_size: The smallest height and width that the pooling leaves something of.
    """

    def __init__(self, layers: Mapping[str, nn.Module], in_channels: int, minimum_size: int) -> None:
        super().__init__(layers)
        self.in_channels = in_channels
        self.minimum_size = minimum_size

    def forward(self, x: Value, state: tuple[Any, ...] | None) -> tuple[Tensor, tuple[Any, ...]]:
        """Logits of one time step, and the new state."""
        return super().forward(self._checked(x), state)

    def sequence(self, frames: Sequence[Tensor], state: tuple[Any, ...] | None) -> tuple[list[Tensor], tuple[Any, ...]]:
        """Logits of all time steps, layer by layer; see `Stateful.sequence`."""
        return super().sequence([self._checked(frame) for frame in frames], state)

    def _checked(self, x: Value) -> Tensor:
        shape = tuple(x.shape) if isinstance(x, Tensor) else ()
        if (
            not isinstance(x, Tensor)
            or len(shape) != 4
            or shape[1] != self.in_channels
            or min(shape[2:]) < self.minimum_size
        ):
            raise UserError(
                f"input: received shape {shape}; expected [batch, {self.in_channels}, height, width] of one "
                f"time step, at least {self.minimum_size} pixels each way. Build the network with "
                "in_channels=..., and give it [T, batch, ...] one step at a time."
            )
        # The memory order that convolutions and pooling are fastest in; every layer keeps it.
        return channels_last(x)
