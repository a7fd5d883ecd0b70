"""Whether every stage of a run can be trained, checked before the first one begins."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

from bsnn.data.spec import DataSpec
from bsnn.errors import UserError
from bsnn.nn.neuron import Stateful, evaluating
from bsnn.optim import FlipOptimizer
from bsnn.train.distributed import World
from bsnn.train.own import Own, check_outputs, keeps_graph
from bsnn.train.stages import Stage

# What the config gives to the optimizers that it builds, and nobody to those of a function of the user's own.
_OF_OPTIMIZERS = ("learning_rate", "weight_decay", "gamma", "one_minus_beta1")


@contextmanager
def naming(stage: Stage, stages: Sequence[Stage]) -> Iterator[None]:
    """Names the stage in errors about its fields; those of the last one are the run's own.

    Args:
        stage: The one at hand.
        stages: All of the run.
    """
    try:
        yield
    except UserError as error:
        if stage.number == len(stages):
            raise
        raise UserError(f"stages: stage {stage.number}: {error}") from error


def check_stage_data(stages: Sequence[Stage], spec: DataSpec, world: World) -> None:
    """Refuses stages that the data or the number of processes does not allow.

    Args:
        stages: Those of a run.
        spec: Its data.
        world: How many processes share a batch.
    """
    for stage in stages:
        if stage.config.batch_size % world.size:
            with naming(stage, stages):
                raise UserError(
                    f"batch_size: received {stage.config.batch_size} for {world.size} processes; expected a multiple "
                    "of them."
                )
        if spec.kind == "event" and stage.config.time_steps != stages[-1].config.time_steps:
            raise UserError(
                f"stages: stage {stage.number} has time_steps={stage.config.time_steps}, and {spec.name} holds event "
                f"recordings, which are cut into {spec.shape[0]} frames when they are read; expected the same number "
                "in every stage."
            )


def check_stage_sizes(net: Stateful, stages: Sequence[Stage], spec: DataSpec) -> None:
    """Refuses images that are too small for the network."""
    for stage in stages:
        if not stage.shrunk_to:
            continue
        try:
            check_outputs(net, f"the network {stage.config.model}", stage.spec_of(spec))
        except UserError as error:
            raise UserError(f"stages: stage {stage.number} with image_size={stage.shrunk_to}: {error}") from error


def check_last_batches(net: Stateful, stages: Sequence[Stage], spec: DataSpec, num_samples: int, world: World) -> None:
    """Refuses batches of one sample if BatchNorm would have a single value per channel to normalize.

    Args:
        net: The network.
        stages: Those of the run.
        spec: Its data.
        num_samples: How many it is trained on.
        world: How many processes share a batch.
    """
    for stage in stages:
        config = stage.config
        rest = num_samples % config.batch_size
        batch = rest if rest >= world.size else min(config.batch_size, num_samples)
        # Time steps and samples that one pass of BatchNorm normalizes together.
        frames = spec.shape[0] if spec.kind == "event" else config.time_steps
        together = frames if config.batchnorm == "sequence" else 1
        shared = batch if config.sync_batchnorm else batch // world.size
        if shared * together > 1 or _normalizes_alone(net, stage.spec_of(spec)):
            continue
        samples = f"{num_samples} sample{'s' * (num_samples != 1)}"
        processes = f" by {world.size} processes" if world.size > 1 else ""
        with naming(stage, stages):
            raise UserError(
                f"batch_size: received {config.batch_size} for {samples}{processes}, which leaves a batch of one "
                "sample, of which a BatchNorm layer sees one value per channel; expected two samples or more in every "
                "batch. Change batch_size or train_samples."
            )


def _normalizes_alone(net: Stateful, spec: DataSpec) -> bool:
    """Whether a network in training takes a batch of one sample; it is left as it was."""
    sample = torch.zeros(1, *spec.shape[-3:], device=next(iter(net.parameters())).device)
    before = [(buffer, buffer.clone()) for buffer in net.buffers()]
    try:
        with evaluating(net), torch.no_grad(), torch.random.fork_rng(devices=[]):
            net.train()(sample, None)
    except Exception as error:  # of code of the user's own too; what else may be wrong, training tells
        return "more than 1 value per channel" not in str(error)
    finally:
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)
    return True


def check_stage_optimizers(stages: Sequence[Stage], optimizers: Sequence[Optimizer], own: Own, net: Stateful) -> None:
    """Refuses changes that the optimizers would not follow.

    Args:
        stages: Those of a run.
        optimizers: Its optimizers, as the first stage has them.
        own: Parts that were passed as objects.
        net: Its network.
    """
    run = stages[-1].config
    changed = {name for stage in stages for name in vars(run) if getattr(stage.config, name) != getattr(run, name)}
    rule = own.part("optimizer", run)
    if rule is not None and not inspect.isclass(rule):
        for name in (name for name in _OF_OPTIMIZERS if name in changed):
            raise UserError(
                f"stages: a stage changes {name}, and the optimizers are those of your own function {run.optimizer}; "
                "expected stages that leave their settings alone."
            )
    timed = [o for o in optimizers if isinstance(o, FlipOptimizer) and o.time_steps is not None]
    if "time_steps" not in changed or keeps_graph(net):
        return
    for optimizer in timed:
        if type(optimizer).change_time_steps is FlipOptimizer.change_time_steps:
            raise UserError(
                f"stages: a stage changes time_steps, and the flip rule {run.optimizer} tells time steps apart without "
                "saying what becomes of its state; expected a rule that overrides change_time_steps."
            )
        if optimizer.time_steps != stages[0].config.time_steps:
            raise UserError(
                f"stages: the first stage has time_steps={stages[0].config.time_steps}, and your own function "
                f"{run.optimizer} made an optimizer with time_steps={optimizer.time_steps}; expected that of the "
                "first stage. Each stage changes it."
            )
