"""Networks from layers: state is threaded through, the trace goes along with the spikes.

`Sequential`, `Residual` and `Concat` are enough for most networks; anything else is an `nn.Module` derived from
`Stateful` whose `forward(x, state)` returns the output and the new state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.kernels.torch_internals import named_layers, opaque
from bsnn.nn.fused import find_run, is_watched, run_step
from bsnn.nn.neuron import LIF, Stateful
from bsnn.nn.synapse import BinaryConv2d, BinaryLinear, TracedConv2d, TracedLayer, TracedLinear
from bsnn.nn.trace import Activity

# Linear and the same at every time step: the trace of their output is their output for the trace.
_LINEAR = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Unflatten, nn.Identity,
    nn.ZeroPad1d, nn.ZeroPad2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample,
)  # fmt: skip

Value = Tensor | Activity


def _call(layer: nn.Module, x: Value) -> Value:
    if isinstance(x, Activity) and not isinstance(layer, TracedLayer):
        return x.map(layer) if isinstance(layer, _LINEAR) else layer(x.spikes)
    return layer(x)


def _step(layer: nn.Module, x: Value, state: Any) -> tuple[Value, Any]:
    if isinstance(layer, LIF) and isinstance(x, Activity):
        x = x.spikes
    return layer(x, state) if isinstance(layer, Stateful) else (_call(layer, x), None)


def _forgets(layer: nn.Module) -> bool:
    """Whether a layer is a synapse that keeps nothing of what it returns, and nobody watches it."""
    own = type(layer) in (TracedConv2d, TracedLinear, BinaryConv2d, BinaryLinear, nn.Conv2d, nn.Linear)
    return own and not is_watched(layer) and "forward" not in vars(layer)


class _Flow(NamedTuple):
    """What flows between two layers, as far as that can be told before the network runs."""

    spiking: bool
    cut_by: str = ""
    """The layer in which spikes lost their trace."""


_CURRENT, _SPIKES = _Flow(spiking=False), _Flow(spiking=True)


def _follow(layer: nn.Module, flow: _Flow, name: str) -> _Flow:
    """What leaves a layer that `flow` enters; refuses what would cut a trace before a synapse in silence."""
    if isinstance(layer, LIF):
        return _SPIKES
    if isinstance(layer, TracedLayer):
        if flow.cut_by:
            raise UserError(
                f"layer {flow.cut_by} stands between a neuron and the synapse {name}; expected only pooling or "
                "flattening there, because a trace passes through linear layers alone. Move it before the neuron."
            )
        return _CURRENT
    if isinstance(layer, _Composition):
        return layer._follow_through(flow, name + "." if name else "")
    if isinstance(layer, Stateful) or not flow.spiking:
        return _CURRENT
    if isinstance(layer, _LINEAR) or flow.cut_by:
        return flow
    if any(isinstance(module, TracedLayer) for module in layer.modules()):
        raise UserError(
            f"layer {name} is a {type(layer).__name__} with a synapse inside, behind a neuron; expected "
            "bsnn.Sequential, bsnn.Residual or bsnn.Concat there, which hand the trace on."
        )
    return _Flow(spiking=True, cut_by=f"{name} ({type(layer).__name__})")


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
        self._follow_through(_CURRENT, "")

    def _follow_through(self, flow: _Flow, prefix: str) -> _Flow:
        """What leaves this composition; see `_follow`."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(named_layers(self))

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(named_layers(self).values())

    def __getitem__(self, index: int) -> nn.Module:
        return list(self)[index]

    @property
    def _num_states(self) -> int:
        return sum(isinstance(layer, Stateful) for layer in self)

    def _with_states(self, state: tuple[Any, ...] | None) -> Iterable[tuple[nn.Module, Any]]:
        if state is not None and len(state) != self._num_states:
            raise UserError(
                f"state: received one for {len(state)} stateful layers; this {type(self).__name__} has "
                f"{self._num_states}. Make one with net.initial_state(x) of this network."
            )
        states = iter(state if state is not None else (None,) * self._num_states)
        for layer in self:
            yield layer, next(states) if isinstance(layer, Stateful) else None

    def _kept(self, states: Sequence[Any]) -> tuple[Any, ...]:
        stateful = (isinstance(layer, Stateful) for layer in self)
        return tuple(state for state, keep in zip(states, stateful, strict=True) if keep)


class Sequential(_Composition):
    """Layers one after another, stateful or not.

    Any `nn.Module` fits. Pooling and flattening pass the trace on; behind a neuron, a layer that is neither
    linear nor a synapse sees the spikes alone.

    Example:
        >>> net = Sequential(nn.Linear(4, 8), LIF(), bsnn.BinaryLinear(8, 8), LIF(), nn.Linear(8, 2))
        >>> logits, state = net(torch.randn(3, 4), None)
        >>> logits.shape, len(state)
        (torch.Size([3, 2]), 2)
    """

    def _follow_through(self, flow: _Flow, prefix: str) -> _Flow:
        for name, layer in named_layers(self).items():
            flow = _follow(layer, flow, prefix + name)
        return flow

    @opaque
    def forward(self, x: Value, state: tuple[Any, ...] | None) -> tuple[Any, tuple[Any, ...]]:
        """One time step through all layers."""
        states, layers, place = [], list(self._with_states(state)), 0
        modules = [layer for layer, _ in layers]
        while place < len(layers):
            run = find_run(modules, place, x)
            if run is None or not isinstance(x, Tensor):
                layer, past = layers[place]
                x, now = _step(layer, x, past)
                states.append(now)
                place += 1
            else:
                past = layers[place + (run.norm is not None)][1]
                x, now = run_step(run, x, past, spare=place > 0 and _forgets(modules[place - 1]))
                states += [now if module is run.neuron else None for module in run.modules]
                place += len(run.modules)
        return x, self._kept(states)


class _Branches(_Composition):
    """Layers side by side on the same input."""

    def _follow_through(self, flow: _Flow, prefix: str) -> _Flow:
        leaving = [_follow(layer, flow, prefix + name) for name, layer in named_layers(self).items()]
        return max(leaving, key=lambda flow: (flow.spiking, flow.cut_by), default=flow)

    def _merge(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    @opaque
    def forward(self, x: Value, state: tuple[Any, ...] | None) -> tuple[Any, tuple[Any, ...]]:
        """One time step through all branches."""
        steps = [_step(layer, x, past) for layer, past in self._with_states(state)]
        outputs, states = [output for output, _ in steps], [now for _, now in steps]
        activities = [output for output in outputs if isinstance(output, Activity)]
        if not activities:
            return self._merge([o for o in outputs if isinstance(o, Tensor)]), self._kept(states)
        if len(activities) < len(outputs):
            raise UserError(
                f"{type(self).__name__}: some branches yield spikes and others currents; expected the same "
                "of all. End each branch with a neuron, or none."
            )
        return Activity.join(self._merge, activities), self._kept(states)


class Residual(_Branches):
    """The sum of a body and its shortcut, the input itself if none is given.

    Example:
        >>> block = Residual(Sequential(LIF(), bsnn.BinaryLinear(4, 4)))
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
        >>> block = Concat(LIF(), Sequential(LIF(), bsnn.BinaryLinear(4, 2), LIF()))
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

    @opaque
    def forward(self, x: Value, state: tuple[Any, ...] | None) -> tuple[Tensor, tuple[Any, ...]]:
        """Logits of one time step, and the new state."""
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
        return super().forward(x.contiguous(memory_format=torch.channels_last), state)
