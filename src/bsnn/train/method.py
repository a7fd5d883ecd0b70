"""What a training method does around gradients and updates, such as a penalty or a schedule of its own.

Most methods are a network, a neuron, a loss or a flip rule, and need none of this. `bsnn.paper` has those that do.
"""

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bsnn.errors import UserError
from bsnn.extras import named_object
from bsnn.nn.neuron import Stateful
from bsnn.train.config import Config
from bsnn.train.metrics import EpochMetrics

if TYPE_CHECKING:
    from bsnn.train.trainer import Trainer


class Method:
    """Base of methods: override what yours needs, and name the class by `--method module:Class`.

    Unlike a callback, a method is part of the config and of every checkpoint, and acts on every process.

    Args:
        net: The network that is trained.
        config: What it is trained with.

    Example:
        >>> class SmallWeights(Method):
        ...     def after_update(self, trainer, loss):
        ...         for parameter in self.net.parameters():
        ...             parameter.data.clamp_(-1, 1)
    """

    def __init__(self, net: Stateful, config: Config) -> None:
        self.net, self.config = net, config

    def start(self, trainer: "Trainer") -> None:
        """Before the first batch of a run; not when it is resumed."""

    def before_update(self, trainer: "Trainer") -> None:
        """Before each batch."""

    def penalty(self, state: Any) -> Tensor:
        """Added to the loss of a sequence; only under BPTT.

        Args:
            state: The network's last state, with its graph.
        """
        raise NotImplementedError

    def after_update(self, trainer: "Trainer", loss: float) -> None:
        """After the updates of each batch.

        Args:
            trainer: The run.
            loss: Of the batch, the penalty included.
        """

    def after_epoch(self, trainer: "Trainer", metrics: EpochMetrics) -> None:
        """After an epoch was measured."""

    def state_dict(self) -> dict[str, Any]:
        """What the method's future depends on, for the checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was called."""


def build_method(config: Config, net: Stateful, by_bptt: bool) -> Method | None:
    """The method that a config names, if it names one."""
    if not config.method:
        return None
    found = named_object(config.method, "method")
    if not (inspect.isclass(found) and issubclass(found, Method)):
        raise UserError(f"method: {config.method} is {found!r}; expected a subclass of bsnn.train.Method.")
    if config.stages:
        raise UserError(
            f"stages: received {len(config.stages)} with method={config.method}, which is given the settings of the "
            "whole run; expected none."
        )
    method = found(net, config)
    if has_penalty(method) and not by_bptt:
        raise UserError(
            f"method: {config.method} adds a penalty to the loss of a sequence, and gradient={config.gradient} has a "
            "loss for each time step; expected gradient=bptt or bptt-full."
        )
    return method


def check_sequences(config: Config, *, by_bptt: bool) -> None:
    """Refuses what looks at whole sequences if gradients are computed online."""
    for field, default in {"batchnorm": "step", "loss_of": "steps"}.items():
        if getattr(config, field) != default and not by_bptt:
            raise UserError(
                f"{field}: received {getattr(config, field)} with gradient={config.gradient}, which sees one time "
                f"step at a time; expected {default}, or gradient=bptt or bptt-full."
            )


def has_penalty(method: Method) -> bool:
    """Whether a method adds something to the loss."""
    return type(method).penalty is not Method.penalty
