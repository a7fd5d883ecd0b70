"""What a run starts or goes on from: the weights and the momentum in the state of another run, or of itself."""

import textwrap
from collections.abc import Collection
from typing import Any

from torch import nn

from bsnn.errors import UserError
from bsnn.nn.bits import BinaryParameter
from bsnn.optim import FlipOptimizer
from bsnn.optim.momentum import dense


def take_weights(net: nn.Module, source: dict[str, Any], otherwise: str) -> None:
    """Loads the weights of a state.

    Args:
        net: The network.
        source: The state.
        otherwise: What to say, before the reason, if they are those of another network.
    """
    try:
        net.load_state_dict(source["net"])
    except (RuntimeError, UserError) as error:
        # Of two networks that share no name, PyTorch lists every tensor.
        reason = textwrap.shorten(str(error).splitlines()[-1], 160, placeholder=" ...")
        raise UserError(f"{otherwise} ({reason}).") from error


def take_momentum(flip: FlipOptimizer, binary: Collection[BinaryParameter], source: dict[str, Any]) -> None:
    """Starts at the momentum of another run: at 0, the first update would flip half of its weights.

    Args:
        flip: The flip optimizer.
        binary: All one-bit weights of the network.
        source: The state of the other run.
    """
    saved = source["optimizers"][0]["state"]
    parameters = [p for group in flip.param_groups for p in group["params"]]
    known = all("momentum" in saved.get(index, {}) for index in range(len(parameters)))
    if not known or len(parameters) != len(binary):
        raise UserError(
            "init_from: it holds no momentum for the flip optimizer of this run; expected one optimizer for all "
            "one-bit weights in both. Set initial_momentum instead."
        )
    for index, parameter in enumerate(parameters):
        flip.set_momentum(parameter, dense(saved[index], parameter.shape).to(parameter.device))
