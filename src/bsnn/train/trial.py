"""A trial of a device: a small network trained there and on the CPU, and compared.

Apple's GPUs have no part in the tests of this package, and PyTorch's operators for them have returned wrong numbers
without an error before. So a device is tried before it trains.
"""

import functools
import itertools
from typing import Any

import torch
from torch import Tensor

from bsnn.errors import UserError
from bsnn.models import vgg
from bsnn.nn.bits import split_parameters
from bsnn.online.evaluate import predict
from bsnn.online.loss import step_loss
from bsnn.online.update import online_update
from bsnn.optim.rules.tbso import TBSO

# Of the largest number in a tensor. Sums in another order differ by 1e-6 of it, wrong ones by far more.
_TOLERANCE = 1e-3
# A weight that is as close to its threshold as rounding may flip on one device only.
_FLIPS = 3


@functools.cache
def check_device(device: torch.device) -> None:
    """Raises if a device does not compute a prediction and an update of a small network as the CPU does.

    Example:
        >>> check_device(torch.device("cpu"))
    """
    expected = _results(torch.device("cpu"))
    try:
        received = _results(device)
    except (RuntimeError, TypeError, UserError) as error:  # an operator is missing, or made NaN
        reason = str(error).splitlines()[0]
        raise UserError(
            f"device: {device} cannot train a small network with torch {torch.__version__} ({reason}); expected it to. "
            "Use --device cpu."
        ) from error
    wrong = next((name for name in expected if _differ(received[name], expected[name])), None)
    if wrong is not None:
        raise UserError(
            f"device: {device} computes something else than the CPU with torch {torch.__version__}: {wrong} of a small "
            "network; expected the same. Use --device cpu, or another version of torch."
        )


def _differ(received: Tensor, expected: Tensor) -> bool:
    if expected.dtype == torch.uint8:
        turned = torch.bitwise_xor(received, expected)
        return sum(int((turned >> place).bitwise_and_(1).sum()) for place in range(8)) > _FLIPS
    return not bool((received - expected).abs().max() <= _TOLERANCE * expected.abs().max())  # NaN differs


def _results(device: torch.device) -> dict[str, Tensor]:
    """What a prediction and an update leave, by name, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = vgg((8, 16, "pool", 8), in_channels=2, num_classes=4)
        x, labels = torch.randn(4, 2, 8, 8).to(device), torch.arange(4).to(device)
    net.to(device)
    binary, real = split_parameters(net)
    flip = TBSO(binary, gamma=1e-4, time_steps=2)
    optimizers: list[Any] = [flip, torch.optim.SGD(real, lr=0.1)]
    found = {"logits": predict(net.eval(), x, 2)}
    loss = functools.partial(step_loss, labels=labels, time_steps=2)
    net.train()
    # Accumulated, so that the last thing that happens is a flip, and one weight that differs has no consequences.
    online_update(net, itertools.repeat(x, 2), loss, optimizers, accumulate=True)
    found |= {f"momentum {index}": flip.momentum(parameter) for index, parameter in enumerate(binary)}
    found |= {f"bits {index}": parameter.bits for index, parameter in enumerate(binary)}
    found |= {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
    return {name: value.detach().cpu() for name, value in found.items()}
