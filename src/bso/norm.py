"""Batch normalization between synapse and neuron, and its statistics when weights flip.

In training it normalizes with the statistics of each single time step, as torch's does. In evaluation it is
one multiply and one add with folded numbers, `x * scale + shift`, rounded after each: an engine that stores the
same two numbers a channel gives the same bits, where torch's own evaluation differs in the last place.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bso.errors import UserError


class _Folded(nn.modules.batchnorm._BatchNorm):
    def folded(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of evaluation, one number a channel, computed in double precision."""
        if self.running_mean is None or self.running_var is None:
            raise UserError(
                "folded: this BatchNorm keeps no running statistics; build it with track_running_stats=True."
            )
        mean, deviation = self.running_mean.double(), (self.running_var.double() + self.eps).sqrt()
        scale = 1 / deviation if self.weight is None else self.weight.double() / deviation
        shift = -mean * scale if self.bias is None else self.bias.double() - mean * scale
        return scale.to(self.running_mean.dtype), shift.to(self.running_mean.dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Normalizes; in evaluation by the folded scale and shift."""
        if self.training:
            return super().forward(input)
        self._check_input_dim(input)
        scale, shift = self.folded()
        channels = (1, -1) + (1,) * (input.dim() - 2)
        return input * scale.view(channels) + shift.view(channels)


class BatchNorm1d(_Folded, nn.BatchNorm1d):
    """`nn.BatchNorm1d` whose evaluation is one folded multiply and add."""


class BatchNorm2d(_Folded, nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose evaluation is one folded multiply and add.

    Example:
        >>> norm = BatchNorm2d(3).eval()
        >>> scale, shift = norm.folded()
        >>> x = torch.randn(2, 3, 4, 4)
        >>> torch.equal(norm(x), x * scale.view(1, 3, 1, 1) + shift.view(1, 3, 1, 1))
        True
    """


def _norms(net: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def estimating_statistics(net: nn.Module) -> Iterator[None]:
    """Within it, every forward pass counts toward new running statistics, equally; weights stay as they are.

    Flips outrun running averages: with one weight in a hundred flipping at each update, the average describes
    networks that no longer exist. Pass some training batches through before an evaluation.

    Example:
        >>> net = bso.models.vgg11(width=0.125)
        >>> with estimating_statistics(net):
        ...     _ = bso.predict(net, torch.randn(8, 3, 8, 8), time_steps=2)
    """
    norms = _norms(net)
    modes = {module: module.training for module in net.modules()}
    kept = [norm.momentum for norm in norms]
    before = {norm: {k: v.clone() for k, v in norm.named_buffers()} for norm in norms}
    net.eval()
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # torch's name for a cumulative average
    try:
        with torch.no_grad():
            yield
        unseen = [norm for norm in norms if norm.num_batches_tracked == 0]
        if unseen:
            raise UserError(
                "estimating_statistics: received no batch; expected at least one forward pass in its block."
            )
    except BaseException:
        for norm, buffers in before.items():
            for name, value in norm.named_buffers():
                value.copy_(buffers[name])
        raise
    finally:
        for norm, momentum in zip(norms, kept, strict=True):
            norm.momentum = momentum
        for module, training in modes.items():
            module.training = training
