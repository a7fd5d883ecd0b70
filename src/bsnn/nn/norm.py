"""Batch normalization between synapse and neuron, and its statistics when weights flip.

In training it normalizes with the statistics of each single time step, as torch's does. In evaluation it is
one multiply and one add with folded numbers, `x * scale + shift`, rounded after each: an engine that stores the
same two numbers per channel gives the same bits, where torch's own evaluation differs in the last place.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from bsnn.errors import UserError
from bsnn.kernels.batch_norm import count_batch, folded, scaled, traced_batch_norm
from bsnn.nn.neuron import evaluating

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class _SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes; what flows back is summed likewise."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        total = local.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = grad_outputs[0].contiguous().clone()
        distributed.all_reduce(total)
        return total


class _Folded(nn.Module):
    """What both classes below add to torch's."""

    num_features: int
    eps: float
    momentum: float | None
    weight: nn.Parameter
    bias: nn.Parameter
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    num_axes: ClassVar[tuple[int, ...]]
    """Of an input that is accepted."""
    synchronized = False

    def _normalize_over_processes(self, x: Tensor) -> Tensor:
        """Training with the statistics of the global batch, in two passes as a single process would."""
        axes = [axis for axis in range(x.dim()) if axis != 1]
        channels = (1, -1) + (1,) * (x.dim() - 2)
        count = _SumOverProcesses.apply(x.new_tensor(x.numel() / x.shape[1]))
        mean = _SumOverProcesses.apply(x.sum(axes)) / count
        centered = x - mean.view(channels)
        variance = _SumOverProcesses.apply(centered.square().sum(axes)) / count
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                rate = self.count_batch()
                self.running_mean.lerp_(mean, rate)
                self.running_var.lerp_(variance * (count / (count - 1)), rate)
        normal = centered * torch.rsqrt(variance + self.eps).view(channels)
        return normal if self.weight is None else normal * self.weight.view(channels) + self.bias.view(channels)

    def count_batch(self) -> float:
        """Counts a batch of training; returns its share in the running statistics, as torch has it."""
        assert self.num_batches_tracked is not None
        return count_batch(self.num_batches_tracked, self.momentum)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of evaluation, one number per channel, computed in double precision if the device has it."""
        if self.running_mean is None or self.running_var is None:
            raise UserError(
                "folded: this BatchNorm keeps no running statistics; build it with track_running_stats=True."
            )
        return folded(self.weight, self.bias, self.running_mean, self.running_var, self.eps)

    def forward(self, input: Tensor) -> Tensor:
        """Normalizes; in evaluation by the folded scale and shift."""
        if self.training and self.synchronized:
            if torch.compiler.is_compiling():
                raise UserError(
                    f"{type(self).__name__}: has statistics of many processes (bsnn.train.distribute) and was given to "
                    "torch.compile; expected a network of one process, or one that is not compiled."
                )
            return self._normalize_over_processes(input)
        if self.training and torch.compiler.is_compiling() and input.numel() > input.shape[1]:  # else torch refuses
            self._check_axes(input)
            running = self.running_mean, self.running_var, self.num_batches_tracked
            return traced_batch_norm(input, self.weight, self.bias, running, self.momentum, self.eps)
        if self.training:
            return super().forward(input)
        if self.running_mean is None:  # without running statistics, evaluation takes the batch's, as torch's does
            return super().forward(input)
        self._check_axes(input)
        return scaled(input, *self.folded(), in_place=False)

    def _check_axes(self, x: Tensor) -> None:
        if x.dim() not in self.num_axes:
            expected = " or ".join(f"{number}D" for number in self.num_axes)
            raise UserError(f"{type(self).__name__}: received an input of {x.dim()} axes; expected {expected} input.")


class BatchNorm1d(_Folded, nn.BatchNorm1d):
    """`nn.BatchNorm1d` whose evaluation is one folded multiply and add."""

    num_axes = (2, 3)


class BatchNorm2d(_Folded, nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose evaluation is one folded multiply and add.

    Example:
        >>> norm = BatchNorm2d(3).eval()
        >>> scale, shift = norm.folded()
        >>> x = torch.randn(2, 3, 4, 4)
        >>> torch.equal(norm(x), x * scale.view(1, 3, 1, 1) + shift.view(1, 3, 1, 1))
        True
    """

    num_axes = (4,)


def synchronize_statistics(net: nn.Module) -> None:
    """From now on, BatchNorm in training uses the statistics of all processes' batches together.

    torch's SyncBatchNorm refuses CPU tensors; sums that are reduced over the processes serve on any device.
    """
    for module in net.modules():
        if isinstance(module, _Folded):
            module.synchronized = True


def norms_of(net: nn.Module) -> dict[str, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm]:
    """The BatchNorm layers of a network that keep running statistics, by name."""
    modules = net.named_modules()
    return {name: module for name, module in modules if isinstance(module, _NORMS) and module.track_running_stats}


@contextmanager
def estimating_statistics(net: nn.Module) -> Iterator[None]:
    """Within it, every forward pass counts toward new running statistics, equally; weights stay as they are.

    Flips outrun running averages: with one weight in a hundred flipping at each update, the average describes
    networks that no longer exist. Pass some training batches through before an evaluation.

    Example:
        >>> net = bsnn.models.vgg11(width=0.125)
        >>> with estimating_statistics(net):
        ...     _ = bsnn.predict(net, torch.randn(8, 3, 8, 8), time_steps=2)
    """
    norms = norms_of(net)
    momenta = {name: norm.momentum for name, norm in norms.items()}
    before = {name: {k: v.clone() for k, v in norm.named_buffers()} for name, norm in norms.items()}
    with evaluating(net), torch.no_grad():
        for norm in norms.values():
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # torch's name for a cumulative average
        try:
            yield
            for name, norm in norms.items():
                if norm.num_batches_tracked == 0:
                    raise UserError(
                        f"estimating_statistics: layer {name} received no batch; expected at least one forward pass "
                        "through it in the block."
                    )
        except BaseException:
            for name, norm in norms.items():
                for key, value in norm.named_buffers():
                    value.copy_(before[name][key])
            raise
        finally:
            for name, norm in norms.items():
                norm.momentum = momenta[name]
