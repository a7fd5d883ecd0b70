"""Means over processes: of gradients, as every backward pass makes them, and of buffers.

A large gradient is averaged as soon as it is there, so that it can be folded and freed. Small ones, such as those of
BatchNorm, wait for the end of the backward pass and are sent together: a message has a price, however short it is.
"""

import os
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, distributed, nn

from bsnn.errors import UserError
from bsnn.kernels.torch_internals import after_backward_pass, backward_pass, copy_together
from bsnn.nn.bits import BinaryParameter

# Numbers in a gradient up to which it is sent together with others: four megabytes in single precision.
_SMALL = 1 << 20


def average(tensors: Iterable[Tensor]) -> None:
    """Replaces tensors by their means over all processes, in place; without torchrun it does nothing.

    Raises:
        UserError: If torchrun has started several processes and this one has left them, so that it would train apart.
    """
    if not distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError(
                "received tensors to average after the block of joined_world has ended; expected them within it. Put "
                "the whole training loop into `with bsnn.train.joined_world() as world:`."
            )
        return
    for tensor in tensors:
        distributed.all_reduce(tensor)
        tensor /= distributed.get_world_size()


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """From now on, every backward pass makes the gradients that it adds to these parameters the means over processes.

    When `backward` returns, whatever looks at gradients, such as clipping, a scaler or a check for NaN, sees the same
    on all processes. Those of binary weights are means before they reach `.grad` or the momentum. As under
    DistributedDataParallel, what `torch.autograd.grad` returns for small parameters is each process's own.
    """
    small = _Together()
    for parameter in dict.fromkeys(parameters):
        trained = parameter.requires_grad
        parameter.requires_grad_(True)  # also a frozen one, which may be trained later
        if isinstance(parameter, BinaryParameter) or parameter.numel() > _SMALL:
            parameter.register_hook(_averaged)
        else:
            small.take(parameter)
        parameter.requires_grad_(trained)


def _averaged(gradient: Tensor) -> Tensor:
    mean = gradient.clone(memory_format=torch.contiguous_format)  # autograd may use the gradient elsewhere
    average([mean])
    return mean


class _Together:
    """Averages the gradients of many parameters at the end of each backward pass, by one message for each type."""

    def __init__(self) -> None:
        self._parameters: list[nn.Parameter] = []
        # What `.grad` was before the backward pass that is running, and who has received a gradient in it.
        self._before: dict[nn.Parameter, Tensor | None] = {}
        self._received: set[Tensor] = set()
        self._pass: int | None = None

    def take(self, parameter: nn.Parameter) -> None:
        """Averages the gradients of a parameter from now on."""
        self._parameters.append(parameter)
        parameter.register_hook(partial(self._put_aside, parameter))
        parameter.register_post_accumulate_grad_hook(self._received.add)

    def _put_aside(self, parameter: nn.Parameter, _gradient: Tensor) -> None:
        """Keeps what `.grad` holds out of the way, so that it holds this pass's gradient alone."""
        if self._pass != backward_pass():
            self._clear()  # of a pass that has failed, half of whose gradients are missing
            self._pass = backward_pass()
            after_backward_pass(self._finish)
        self._before[parameter], parameter.grad = parameter.grad, None

    @torch.no_grad()
    def _finish(self) -> None:
        try:
            gradients = [p.grad for p in self._parameters if p in self._received and p.grad is not None]
            for kind in dict.fromkeys((gradient.dtype, gradient.device) for gradient in gradients):
                alike = [gradient for gradient in gradients if (gradient.dtype, gradient.device) == kind]
                flat = torch.cat([gradient.reshape(-1) for gradient in alike])
                average([flat])
                parts = flat.split([gradient.numel() for gradient in alike])
                copy_together(alike, [part.view_as(one) for part, one in zip(parts, alike, strict=True)])
            for parameter, before in self._before.items():
                if before is not None:  # adds up as autograd would have added it
                    parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
        finally:
            self._clear()

    def _clear(self) -> None:
        self._before.clear()
        self._received.clear()
        self._pass = None


def average_buffers(net: nn.Module) -> None:
    """Makes BatchNorm's running statistics the same on all processes, by their means."""
    average(buffer for buffer in net.buffers() if buffer.is_floating_point())
