"""Checks at every export that the deployed network computes what the trained one does, on random input.

Rounding moves a spike now and then, and a moved spike moves others behind it. So the trained network's spikes take the
place of the deployed network's own, layer by layer: what differs then is near the threshold, or differs in meaning.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bsnn.deploy.comparison import Watch, spikes_of, watching
from bsnn.deploy.deployed import Deployed
from bsnn.deploy.lowering import Lowered
from bsnn.errors import UserError
from bsnn.kernels import backend
from bsnn.kernels.torch_internals import has_forward_hooks, tensors_in
from bsnn.nn.neuron import LIFState, evaluating
from bsnn.nn.trace import Activity

_TIME_STEPS, _BOUND = 4, 2.0
# A spike may differ if the membrane is nearer to the threshold than this share of it. Outputs may differ by this share
# of the largest.
_NEAR = 0.02
# Share of the spikes that may differ otherwise. VGG-11, ResNet-18 and a small VGG had none.
_TOLERATED = 0.001


@torch.no_grad()
def verify(net: nn.Module, lowered: Lowered, shape: Sequence[int]) -> None:
    """Compares a trained network with the deployed one.

    Args:
        net: The trained network.
        lowered: The deployed one.
        shape: Of a sample at one time step.

    Raises:
        UserError: They differ, a hook changes what a layer computes, or the trained network does not run.
    """
    module, watch = Deployed(lowered.artifact), Watch(lowered)
    samples = max(1, min(16, 4096 // math.prod(shape)))
    noise = torch.randn(_TIME_STEPS, samples, *shape, generator=torch.Generator().manual_seed(0))
    frames = module.integers(noise.clamp(-_BOUND, _BOUND))
    logits = _trained(net, lowered, watch, frames * 2.0**-lowered.artifact.input.fraction_bits)
    unseen = any(len(watch.spikes.get(name, ())) != _TIME_STEPS for name in watch.lifs)
    if unseen or any(watch.currents_cut().values()):
        # Neurons that only a `lowered_as` has, which was checked by itself; or noise that goes beyond what 16 bits of
        # a current are to hold, which is a matter for the comparison on samples.
        return
    forced = [_Forced(watch.spikes[name]) for name in watch.lifs]
    made, state = [], None
    for layer, hook in zip(module.children(), forced, strict=True):
        layer.register_forward_hook(hook)
    for frame in frames:
        outputs, state = module(frame, state)
        made.append(outputs * lowered.artifact.output_scale)
    for name, layer in zip(watch.lifs, forced, strict=True):
        if layer.share > _TOLERATED:
            raise _differs(f"{layer.share:.1%} of the spikes of layer {name} differ")
    found, expected = torch.stack(made), torch.stack(logits).flatten(2)
    furthest, largest = float((found - expected).abs().max()), float(expected.abs().max())
    if furthest > _NEAR * max(largest, 1e-3):
        raise _differs(f"outputs differ by up to {furthest:.3g}, and the largest is {largest:.3g}")


def _differs(how: str) -> UserError:
    return UserError(
        f"export: the deployed network does not compute what the trained one does: on random input, {how}. Is a layer "
        "changed by something that the export cannot see, such as a global hook or a method replaced in its class?"
    )


def _trained(net: nn.Module, lowered: Lowered, watch: Watch, frames: Tensor) -> list[Tensor]:
    """Outputs of every time step; `watch` keeps the spikes."""
    like, logits, state = next(net.parameters(), torch.empty(0)), [], None
    with evaluating(net), backend("reference"), _refusing_changes(net), watching(lowered.modules, watch):
        for frame in frames:
            try:
                outputs, state = net(frame.to(like.device, like.dtype), state)
            except UserError:
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                raise UserError(
                    f"export: the network does not run on inputs of shape {tuple(frame.shape)} "
                    f"({type(error).__name__}: {error}); expected the input_shape that it was built for."
                ) from error
            logits.append(spikes_of(outputs).double().cpu())
    return logits


class _Forced:
    """A forward hook of a deployed layer of neurons that puts the trained network's spikes in the place of its own."""

    def __init__(self, spikes: list[Tensor]) -> None:
        self._spikes = iter(spikes)
        self._wrong = self._all = 0

    def __call__(self, module: Any, inputs: Any, output: tuple[Activity, LIFState]) -> tuple[Activity, LIFState]:
        """Counts what differs, and replaces it."""
        threshold = module.layer.threshold
        ours = output[0].spikes
        theirs = next(self._spikes).cpu().reshape(ours.shape).long()
        potential = output[1].membrane + threshold * ours
        far = (potential - threshold).abs() > _NEAR * threshold
        self._wrong += int(((ours != theirs) & far).sum())
        self._all += ours.numel()
        return Activity(theirs, None), LIFState(potential - threshold * theirs, None)

    @property
    def share(self) -> float:
        """Share of the spikes that differ although the membrane is not near the threshold."""
        return self._wrong / self._all


@contextmanager
def _refusing_changes(net: nn.Module) -> Iterator[None]:
    """Within it, a user's hook that changes what a layer takes or returns is refused; one that watches may stay."""
    with ExitStack() as stack:
        for name, module in net.named_modules():
            if has_forward_hooks(module):
                for register in (module.register_forward_pre_hook, module.register_forward_hook):
                    around = _Around(name)
                    stack.callback(register(around.before, prepend=True).remove)
                    stack.callback(register(around.after).remove)
        yield


class _Around:
    """The first and the last of a module's hooks: what the one sees, the other must see too."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: list[Tensor] = []

    def before(self, _module: nn.Module, *values: Any) -> None:
        """Keeps a copy of the inputs, or of the output."""
        self._seen = [tensor.clone() for tensor in tensors_in(values[-1])]

    def after(self, _module: nn.Module, *values: Any) -> None:
        """Compares."""
        now = list(tensors_in(values[-1]))
        if len(now) != len(self._seen) or not all(map(torch.equal, now, self._seen)):
            raise UserError(
                f"export: a hook of layer {self._name or 'the network'} changes what it computes, and a model file has "
                "no hooks; remove it (handle.remove()), or make it a layer."
            )
