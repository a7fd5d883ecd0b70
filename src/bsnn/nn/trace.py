"""The presynaptic trace that replaces backpropagation through time (paper, Section 3.2, Eq. 6 and 7).

    â[t] = μ[t] â[t−1] + s[t]        ∇_W L[t] = ζ[t] â[t]ᵀ

A gradient rule says what μ is: λ (OTTT), the ratio of membranes (NDOT), 0 (SLTT). BPTT is the rule to compare
with: no trace, and the state keeps its graph.

Legend: â trace, s spikes, μ trace factor, λ leak, u membrane, V_th threshold, ζ gradient of the membrane.
"""

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from bsnn.errors import UserError
from bsnn.extras import named_instance
from bsnn.kernels.formulas import leaky_trace, membrane_ratio
from bsnn.kernels.torch_internals import mark


class Activity(NamedTuple):
    """What a spiking layer sends on: its spikes now and, if the gradient rule has one, their trace."""

    spikes: Tensor
    """s[t]."""
    trace: Tensor | None
    """â[t]; None if the rule has no trace."""

    def map(self, linear: Callable[..., Tensor], *args: object, **kwargs: object) -> "Activity":
        """Applies a linear operation that is the same at every time step, such as pooling, to both parts.

        Example:
            >>> activity = Activity(torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 1.5))
            >>> activity.map(torch.nn.functional.avg_pool2d, 2).trace
            tensor([[[[1.5000]]]])
        """
        trace = None if self.trace is None else linear(self.trace, *args, **kwargs)
        return Activity(linear(self.spikes, *args, **kwargs), trace)

    @staticmethod
    def join(combine: Callable[[list[Tensor]], Tensor], activities: Sequence["Activity"]) -> "Activity":
        """Combines several activities by a linear operation, such as concatenation.

        Example:
            >>> one = Activity(torch.ones(1, 2), None)
            >>> Activity.join(lambda parts: torch.cat(parts, dim=1), [one, one]).spikes.shape
            torch.Size([1, 4])
        """
        traces = [a.trace for a in activities if a.trace is not None]
        if traces and len(traces) < len(activities):
            raise UserError(
                "Activity.join: some activities have a trace and others have none; expected one gradient "
                "rule throughout. Give all neurons of the network the same one."
            )
        return Activity(combine([a.spikes for a in activities]), combine(traces) if traces else None)


def as_output(output: object) -> Tensor:
    """What a network sends out: a tensor as it is, and of the neurons that a network ends in, their spikes.

    Example:
        >>> as_output(Activity(torch.ones(2), torch.zeros(2)))
        tensor([1., 1.])
    """
    sent = output.spikes if isinstance(output, Activity) else output
    if not isinstance(sent, Tensor):
        raise UserError(
            f"net: its output is a {type(output).__name__}; expected a tensor of logits or, from neurons, an Activity. "
            "Let forward(x, state) return one of these, and the new state."
        )
    return sent


class GradientRule:
    """How gradients relate to time. For a trace of your own, subclass it and override `trace`.

    What `elementwise` and `kernel` say holds for a subclass only if it adds no method, or says it again.

    Attributes:
        has_trace: Whether a trace is kept beside the membrane.
        needs_membrane: Whether the trace depends on the membrane.
        keeps_graph: Whether the state stays connected to the past (only BPTT).
        detach_reset: Whether the reset passes no gradient on to the spike that caused it.
        elementwise: Whether `trace` treats every neuron by itself. Then the fused step may hand it a part of the batch,
            with channels as the last axis; any other rule sees the whole layer, `[batch, channels, ...]`.
        kernel: The trace's name in `bsnn.kernels` if some backend computes it too.
    """

    has_trace = True
    needs_membrane = True
    keeps_graph = False
    detach_reset = True
    elementwise: ClassVar[bool] = False
    kernel: ClassVar[str | None] = None

    def trace(self, past: Tensor, spikes: Tensor, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        """The new trace â[t] of a neuron, from tensors of the same shape.

        Args:
            past: â[t−1].
            spikes: s[t].
            membrane: u[t] − V_th s[t], the membrane after its reset.
            previous: u[t−1] − V_th s[t−1].
            leak: λ.
        """
        raise NotImplementedError


class OTTT(GradientRule):
    """μ = λ: online training through time; the default, as in Algorithm 1.

    Example:
        >>> zero = torch.zeros(1)
        >>> OTTT().trace(torch.tensor([1.0]), torch.tensor([1.0]), zero, zero, leak=0.5)
        tensor([1.5000])
    """

    needs_membrane = False
    elementwise = True
    kernel = "leaky"

    def trace(self, past: Tensor, spikes: Tensor, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        """â[t] = λ â[t−1] + s[t]."""
        return leaky_trace(past, spikes, leak)


class NDOT(GradientRule):
    """μ[t] = (u[t] − V_th s[t]) / (u[t−1] − V_th s[t−1]), and λ where the denominator is 0.

    The ratio is unbounded: a membrane that passes near zero makes it explode. By default it is clamped to
    [−λ, λ], as the authors' code does; `saturation` says how often that happened. A model copies its neuron into
    every layer, rule included: read it there, as `net.lif2.gradient.saturation`.

    Args:
        clamp: Whether to clamp the ratio to [−λ, λ].

    Example:
        >>> rule = NDOT()
        >>> rule.ratio(torch.tensor([0.1, 0.9, 0.3]), torch.tensor([0.4, 0.2, 0.0]), leak=0.5)
        tensor([0.2500, 0.5000, 0.5000])
        >>> rule.saturation  # the second ratio, 4.5, of the two that have a denominator
        0.5
    """

    elementwise = True
    kernel = "ratio"

    def __init__(self, clamp: bool = True) -> None:
        self.clamp = clamp
        self._saturated: Tensor | int = 0
        self._ratios: Tensor | int = 0

    @property
    def saturation(self) -> float:
        """Share of the ratios so far whose magnitude was over λ."""
        return float(self._saturated) / max(float(self._ratios), 1.0)

    def ratio(self, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        """μ[t], safe where the previous membrane is zero."""
        ratio, saturated, ratios = membrane_ratio(membrane, previous, leak)
        self.count(saturated, ratios)
        return ratio.clamp(-leak, leak) if self.clamp else ratio

    def count(self, saturated: Tensor, ratios: Tensor) -> None:
        """Adds to what `saturation` is the share of."""
        self._saturated = self._saturated + saturated
        self._ratios = self._ratios + ratios

    def trace(self, past: Tensor, spikes: Tensor, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        """â[t] = μ[t] â[t−1] + s[t]."""
        return self.ratio(membrane, previous, leak).mul_(past).add_(spikes)


class SLTT(GradientRule):
    """μ = 0: only the present spikes; no trace is kept."""

    has_trace = False
    elementwise = True
    kernel = "none"


class BPTT(GradientRule):
    """Backpropagation through time, to compare with: the state keeps its graph, memory grows with T.

    Args:
        detach_reset: Whether to leave out the first term of Eq. 5, ∂u[i+1]/∂s[i] · ∂s[i]/∂u[i], by which the reset
            passes a gradient on to the spike that caused it; False, by name `"bptt-full"`, gives Eq. 5 in full. Online
            rules leave it out.
    """

    has_trace = False
    keeps_graph = True

    def __init__(self, detach_reset: bool = True) -> None:
        self.detach_reset = detach_reset


RuleName = Literal["ottt", "ndot", "sltt", "bptt", "bptt-full"]
_RULES: dict[str, Callable[[], GradientRule]] = {
    "ottt": OTTT,
    "ndot": NDOT,
    "sltt": SLTT,
    "bptt": BPTT,
    "bptt-full": functools.partial(BPTT, detach_reset=False),
}


def gradient_rule(rule: RuleName | str | GradientRule) -> GradientRule:
    """A gradient rule by its name, or by `module:Class` for your own; a rule passes through.

    Example:
        >>> type(gradient_rule("ndot")).__name__
        'NDOT'
    """
    made = rule
    if isinstance(rule, str) and ":" in rule:
        made = named_instance(rule, "gradient")
    elif isinstance(rule, str) and rule in _RULES:
        made = _RULES[rule]()
    if not isinstance(made, GradientRule):
        raise UserError(
            f"gradient: received {rule!r}; expected one of {', '.join(_RULES)}, module:Class for your own, or an "
            "object of a subclass of bsnn.GradientRule, such as bsnn.NDOT(clamp=False)."
        )
    return made


# The attribute of a tensor that came from spikes with a trace through a layer that no trace passes through. The tensor
# carries it, and not the layer, so that the check holds however the network was put together.
_LOST = "bsnn_lost_trace"


def lose_trace(x: Tensor, layer: str) -> Tensor:
    """Marks a tensor as one whose trace was lost in `layer`; use the one that is returned."""
    return mark(x, _LOST, layer)


def where_lost(x: object) -> str:
    """The layer in which a tensor's trace was lost; empty if none was."""
    return getattr(x, _LOST, "")
