"""BatchNorm's statistics of each time step by itself, in evaluation.

In training, every time step is normalized with its own statistics; evaluation has one set for all, because a deployed
network folds them into two numbers per channel. With `StepStatistics` each time step has its own again.
"""

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.nn.norm import estimating_statistics, norms_of


class StepStatistics:
    """Running statistics for every time step of a network's BatchNorm layers, estimated from training inputs.

    Pass it to `evaluate` or `predict`; the network's own statistics stay as they are.

    Args:
        net: Called as `logits, state = net(frame, state)`.
        batches: Inputs, as `predict` takes them.
        time_steps: How often to show a still batch; None for inputs `[T, B, ...]`.

    Example:
        >>> net, x = bsnn.models.vgg((8, 8), in_channels=1), torch.randn(4, 1, 8, 8)
        >>> statistics = StepStatistics(net, [x], time_steps=3)
        >>> bsnn.predict(net.eval(), x, time_steps=3, step_statistics=statistics).shape
        torch.Size([4, 10])
    """

    def __init__(self, net: nn.Module, batches: Iterable[Tensor], time_steps: int | None) -> None:
        self._norms = list(norms_of(net).values())
        self._own = self._copy()
        self._steps: list[list[dict[str, Tensor]]] = []
        with estimating_statistics(net):
            fresh = self._copy()
            for inputs in batches:
                self._observe(net, inputs, time_steps, fresh)
        self.restore()

    def _observe(self, net: nn.Module, inputs: Tensor, time_steps: int | None, fresh: list[dict[str, Tensor]]) -> None:
        state = None
        with torch.no_grad():
            for t, frame in enumerate(inputs if time_steps is None else itertools.repeat(inputs, time_steps)):
                if t == len(self._steps):
                    self._steps.append([{name: value.clone() for name, value in norm.items()} for norm in fresh])
                self.use(t)
                _, state = net(frame, state)
                self._steps[t] = self._copy()

    def use(self, t: int) -> None:
        """Lets the network normalize with the statistics of a time step, until `restore`."""
        if t >= len(self._steps):
            raise UserError(
                f"StepStatistics: received time step {t + 1}; expected at most {len(self._steps)}, for which there are "
                "statistics. Estimate them with as many time steps."
            )
        self._write(self._steps[t])

    def restore(self) -> None:
        """Gives the network its own statistics back."""
        self._write(self._own)

    def _copy(self) -> list[dict[str, Tensor]]:
        return [{name: value.clone() for name, value in norm.named_buffers()} for norm in self._norms]

    def _write(self, saved: list[dict[str, Tensor]]) -> None:
        for norm, values in zip(self._norms, saved, strict=True):
            for name, buffer in norm.named_buffers():
                buffer.copy_(values[name])
