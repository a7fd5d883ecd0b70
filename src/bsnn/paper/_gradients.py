"""Gradients of every time step, by layer, under a gradient rule, for Figure 3 and the comparison of rules.

A network is trained first, by OTTT and T-BSO. Its weights then stand still while each rule computes the gradients
of the same batches, time step by time step.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from bsnn.data.finder import find
from bsnn.errors import UserError
from bsnn.nn.bits import BinaryParameter
from bsnn.nn.trace import RuleName
from bsnn.online.evaluate import over_time
from bsnn.online.loss import step_loss
from bsnn.paper._target import Settings
from bsnn.paper._trained import first_run
from bsnn.paper.recipes import recipe
from bsnn.train.build import network_for
from bsnn.train.load import loaded_run
from bsnn.train.loop import train
from bsnn.train.trainer import Trainer

Gradients = Mapping[str, Sequence[Tensor]]
"""By layer, then by time step."""


@contextlib.contextmanager
def trained_network(settings: Settings) -> Iterator[tuple[Trainer, str]]:
    """A network to look into, and how it was trained. All who ask for it share its run."""
    config = dataclasses.replace(recipe("digits"), time_steps=6, epochs=5)
    if settings.scale == "smoke":
        config = dataclasses.replace(config, plan=(4, 4), time_steps=2, epochs=1, train_samples=64)
    run = settings.runs / f"{settings.scale}-gradients"
    if settings.scale == "paper":
        name = _recipe_of(settings)
        config, run = recipe(name), settings.runs / f"paper-gradients-{name}"
        if config.init_from:
            first = config.init_from.removeprefix("runs/")
            begun = first_run(settings, first, recipe(first), 0, settings.data)
            config = dataclasses.replace(config, init_from=begun)
    train(config, run, data=settings.data if settings.scale == "paper" else None, resume=True)
    with loaded_run(run) as trainer:
        yield (
            trainer,
            f"{config.dataset}, T = {config.time_steps}, after {config.epochs} epochs by OTTT and T-BSO, seed 0 "
            f"(scale {settings.scale})",
        )


def _recipe_of(settings: Settings) -> str:
    """T-BSO at T = 6 on what is in the folder of the data."""
    name = "cifar10" if settings.data is None else find(settings.data).name
    if name not in ("cifar10", "cifar100", "imagenet"):
        raise UserError(f"--data: received {name}; expected cifar10, cifar100 or imagenet.")
    return f"{name}-tbso-t6"


def step_gradients(trainer: Trainer, rule: RuleName, inputs: Tensor, labels: Tensor) -> Gradients:
    """The gradients of L[t] for every t, with weights that stand still."""
    config = dataclasses.replace(trainer.config, gradient=rule)
    net = network_for(config, trainer.spec)
    net.load_state_dict(trainer.net.state_dict())
    binary = binary_parameters(net)
    found: dict[str, list[Tensor]] = {name: [] for name in binary}
    state = None
    for frame in over_time(inputs, trainer.frames):
        # BPTT's gradient of L[t] reaches back through all steps before t, so their graph is kept.
        logits, state = net(frame, state)
        step_loss(logits, labels, time_steps=config.time_steps).backward(retain_graph=rule == "bptt")
        for name, parameter in binary.items():
            assert parameter.grad is not None
            found[name].append(parameter.grad.clone())
        net.zero_grad()
    return found


def first_batches(trainer: Trainer, count: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of training samples."""
    return [batch for _, batch in zip(range(count), trainer.train_loader.epoch(0), strict=False)]


def binary_parameters(net: nn.Module) -> dict[str, BinaryParameter]:
    """The one-bit weights of a network, by name."""
    return {name: p for name, p in net.named_parameters() if isinstance(p, BinaryParameter)}
