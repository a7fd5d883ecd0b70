"""One training run in memory: network, optimizers, schedules and the place in the data, built from a config.

All that the future of a run depends on goes into `Trainer.state`: weights as bits, momentum, second moments, real
parameters, schedules, random states, the place in the data, and the metrics so far.
"""

import dataclasses
import functools
import itertools
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from bsnn.data.augment import Augmentation
from bsnn.data.dataset import Dataset
from bsnn.data.loader import Loader
from bsnn.data.spec import DataSpec
from bsnn.errors import UserError
from bsnn.kernels.memory import peak_bytes
from bsnn.nn.bits import BinaryParameter
from bsnn.nn.neuron import LIF
from bsnn.nn.norm import synchronize_statistics
from bsnn.nn.size import model_size
from bsnn.online.bptt import bptt_update
from bsnn.online.evaluate import estimate_statistics, evaluate, over_time
from bsnn.online.loss import step_loss
from bsnn.online.update import online_update
from bsnn.optim import NotFinite
from bsnn.optim.momentum import dense
from bsnn.train.build import build_optimizers, build_schedules, network_for
from bsnn.train.checkpoint import random_state, set_random_state
from bsnn.train.config import Config
from bsnn.train.distributed import World, average_buffers, average_gradients, check_identical, summed
from bsnn.train.metrics import EpochMetrics, Tally, warnings_of


class Diverged(UserError):
    """A training that cannot go on because its numbers are no longer finite."""


class Trainer:
    """One training run in memory.

    Args:
        config: What to train, and how.
        train: Training samples.
        test: Samples to measure accuracy on after each epoch.
        world: Which of how many processes this is.
        workers: Processes that read files.
        source: State of another run, whose weights and momentum to start from.

    Example:
        >>> from bsnn.train.build import load_data
        >>> config = Config(dataset="digits", model="vgg", plan=(4, 4), epochs=1, train_samples=64)
        >>> trainer = Trainer(config, *load_data(config, None))
        >>> trainer.train_epoch()
        >>> trainer.finish_epoch()["epoch"]
        1
    """

    def __init__(
        self,
        config: Config,
        train: Dataset,
        test: Dataset,
        world: World = World(),  # noqa: B008, a tuple
        workers: int = 0,
        source: dict[str, Any] | None = None,
    ) -> None:
        if config.batch_size % world.size:
            raise UserError(
                f"batch_size: received {config.batch_size} for {world.size} processes; expected a multiple of them."
            )
        self.config, self.world = config, world
        self.spec, self.num_samples, self._num_test_samples = DataSpec.of(train), len(train), len(test)
        self.frames = None if train.kind == "event" else config.time_steps
        augmentation = Augmentation(config.crop_padding, config.flip, config.cutout, config.autoaugment)
        share = {"rank": world.rank, "world_size": world.size, "device": world.device, "workers": workers}
        local_batch = config.batch_size // world.size
        self.train_loader = Loader(train, local_batch, augment=augmentation, seed=config.seed, **share)
        self.test_loader = Loader(test, local_batch, **share)

        torch.manual_seed(config.seed)
        self.net = network_for(config, self.spec).to(world.device)
        if source is not None:
            self._take_weights(source)
        if world.size > 1 and config.sync_batchnorm:
            synchronize_statistics(self.net)
        self.flip, self.sgd = build_optimizers(config, self.net)
        if self.flip is not None:
            self.flip.register_step_post_hook(lambda *_: self._count_flips())
        if source is not None and self.flip is not None and not config.initial_momentum:
            self._take_momentum(source)
        if world.size > 1:
            average_gradients(self.net.parameters())
        self.schedules = build_schedules(config, self.flip, self.sgd, len(self.train_loader))
        self.epoch = self.batch = self.update = 0
        self.history: list[EpochMetrics] = []
        self._binary = {n: p for n, p in self.net.named_parameters() if isinstance(p, BinaryParameter)}
        self.tally = Tally(flips=[0] * len(self._binary))

    @property
    def optimizers(self) -> list[Optimizer]:
        """The flip optimizer, if there are binary weights, and SGD."""
        return [self.sgd] if self.flip is None else [self.flip, self.sgd]

    def _take_weights(self, source: dict[str, Any]) -> None:
        try:
            self.net.load_state_dict(source["net"])
        except (RuntimeError, UserError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise UserError(f"init_from: it holds another network ({reason}); expected the same one.") from error

    def _take_momentum(self, source: dict[str, Any]) -> None:
        """Starts at the momentum of the source: at 0, the first update would flip half of its weights."""
        assert self.flip is not None
        saved = source["optimizers"][0]["state"]
        for index, parameter in enumerate(p for group in self.flip.param_groups for p in group["params"]):
            self.flip.set_momentum(parameter, dense(saved[index], parameter.shape).to(parameter.device))

    def _count_flips(self) -> None:
        assert self.flip is not None
        pairs = zip(self.tally.flips, self.flip.flip_counts, strict=True)
        self.tally.flips = [total + count for total, count in pairs]
        self.tally.flip_updates += 1

    def train_epoch(self, after_batch: Callable[[], object] = lambda: None) -> None:
        """Trains from the present place in the data to the end of the epoch."""
        self.net.train()
        started = time.perf_counter()
        for inputs, labels in self.train_loader.epoch(self.epoch, self.batch):
            if self.update < 2:
                # Counting changes no number, and updates are alike but for the first: SGD makes its momentum there.
                standing = self._standing_bytes()
                held = standing + peak_bytes(functools.partial(self._train_batch, inputs, labels))
                self.tally.training_bytes = max(held, self.tally.training_bytes)
            else:
                self._train_batch(inputs, labels)
            now = time.perf_counter()
            self.tally.seconds, started = self.tally.seconds + now - started, now
            after_batch()

    def _train_batch(self, inputs: Tensor, labels: Tensor) -> None:
        config, tally = self.config, self.tally
        # The share of this process in the global batch, which the last one may split unevenly.
        global_size = min(config.batch_size, self.num_samples - self.batch * config.batch_size)
        share = len(labels) * self.world.size / global_size
        loss = functools.partial(self._loss, labels=labels, share=share)
        frames = over_time(inputs, self.frames)
        place = f"epoch {self.epoch + 1}, batch {self.batch + 1}"
        try:
            if config.gradient == "bptt":
                outcome = bptt_update(self.net, frames, loss, self.optimizers)
            else:
                accumulate = config.updates == "accumulated"
                outcome = online_update(self.net, frames, loss, self.optimizers, accumulate=accumulate)
        except NotFinite as error:
            raise _diverged(f"a gradient in {place}") from error
        for schedule in self.schedules:
            schedule.step()
        correct = int((outcome.logits.argmax(dim=1) == labels).sum())
        # The sums of all processes, so that any number of them can go on from a checkpoint.
        sums = summed([float(outcome.loss) / share * len(labels), correct, len(labels)], self.world)
        if not np.isfinite(sums[0]):
            raise _diverged(f"the loss in {place}")
        tally.loss, tally.correct, tally.seen = tally.loss + sums[0], tally.correct + sums[1], tally.seen + sums[2]
        self.batch += 1
        self.update += 1

    def _standing_bytes(self) -> int:
        """Of weights, BatchNorm's statistics and optimizer states."""
        entries = [entry for optimizer in self.optimizers for entry in optimizer.state.values()]
        states = [value for entry in entries for value in entry.values() if isinstance(value, Tensor)]
        return model_size(self.net).stored_bytes + sum(tensor.nbytes for tensor in [*self.net.buffers(), *states])

    def _loss(self, logits: Tensor, labels: Tensor, share: float) -> Tensor:
        steps = self.config.time_steps
        return share * step_loss(logits, labels, time_steps=steps, mse_share=self.config.mse_share)

    def estimate_statistics(self) -> None:
        """Estimates BatchNorm's statistics anew, from as many training batches as the config says."""
        batches = itertools.islice(self.train_loader.epoch(self.epoch), self.config.statistics_batches)
        estimate_statistics(self.net, (inputs for inputs, _ in batches), self.frames)
        if self.world.size > 1:
            average_buffers(self.net)

    def evaluate(self) -> dict[str, Any]:
        """Accuracy and loss on all test samples, over all processes, firing rates by layer, and confusions."""
        names, side = [n for n, module in self.net.named_modules() if isinstance(module, LIF)], len(self.spec.classes)
        numbers = [0.0] * (1 + len(names) + side**2)
        if self.world.rank < self._num_test_samples:  # else it has no sample of its own
            found = evaluate(self.net, self.test_loader.ordered(), self.frames)
            rates = [found.firing_rates.get(name, 0.0) * found.samples for name in names]
            numbers = [found.total_loss, *rates, *found.confusion.view(-1).tolist()]
        loss, *numbers = summed(numbers, self.world)
        rates, confusion = numbers[: len(names)], np.array(numbers[len(names) :], np.int64).reshape(side, side)
        samples = int(confusion.sum())
        return {
            "test_accuracy": int(confusion.trace()) / samples,
            "test_loss": loss / samples,
            "samples": samples,
            "firing_rates": {name: rate / samples for name, rate in zip(names, rates, strict=True)},
            "confusion": confusion.tolist(),
        }

    def finish_epoch(self) -> EpochMetrics:
        """Measures, and moves on to the next epoch; returns the epoch's line of metrics."""
        self.estimate_statistics()
        measured, tally = self.evaluate(), self.tally
        line: EpochMetrics = {
            "epoch": self.epoch + 1,
            "train_loss": tally.loss / tally.seen,
            "train_accuracy": tally.correct / tally.seen,
            "test_accuracy": measured["test_accuracy"],
            "test_loss": measured["test_loss"],
            "learning_rate": self.sgd.param_groups[0]["lr"],
            "firing_rates": measured["firing_rates"],
            "seconds": tally.seconds,
            "peak_bytes": peak_bytes_of_process(self.world.device),
            "warnings": [],
        }
        if self.flip is not None:
            group, sizes = self.flip.param_groups[0], [p.numel() for p in self._binary.values()]
            counts = zip(self._binary, tally.flips, sizes, strict=True)
            line["gamma"], line["one_minus_beta1"] = group["gamma"], group["one_minus_beta1"]
            line["flip_ratio"] = sum(tally.flips) / sum(sizes) / tally.flip_updates
            line["flip_ratios"] = {name: flips / size / tally.flip_updates for name, flips, size in counts}
        if tally.training_bytes:
            line["training_bytes"] = tally.training_bytes
        line["warnings"] = warnings_of(line, self.history)
        self.history.append(line)
        self.epoch, self.batch = self.epoch + 1, 0
        self.tally = Tally(flips=[0] * len(self._binary), training_bytes=tally.training_bytes)
        return line

    def state(self) -> dict[str, Any]:
        """All that the future of the run depends on.

        Raises:
            Diverged: If a weight is not finite.
            TrainedApart: If the processes do not hold the same.
        """
        for name, parameter in self.net.named_parameters():
            if name not in self._binary and not parameter.isfinite().all():
                raise _diverged(f"a weight of {name} after update {self.update}")
        # Within an epoch, running statistics are each process's own. Nothing uses them before they are estimated anew.
        check_identical(self.net, self.optimizers, self.world, statistics=not self.batch)
        return {
            "config": dataclasses.asdict(self.config),
            "data": self.spec.as_json(),
            "num_samples": self.num_samples,
            "net": dict(self.net.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "random": random_state(),
            "place": [self.epoch, self.batch, self.update],
            "tally": dataclasses.asdict(self.tally),
            "history": self.history,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken.

        Raises:
            UserError: If the data is not what the state was trained on.
        """
        saved = DataSpec.from_json(state["data"])
        if (self.spec.classes, self.num_samples) != (saved.classes, state["num_samples"]):
            raise UserError(
                f"data: received {self.num_samples} samples of {len(self.spec.classes)} classes; expected the "
                f"{state['num_samples']} of {len(saved.classes)} classes that the run was started with."
            )
        self.net.load_state_dict(state["net"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for schedule, saved in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)
        set_random_state(state["random"])
        self.epoch, self.batch, self.update = state["place"]
        self.tally = Tally(**state["tally"])
        self.history = state["history"]


def _diverged(what: str) -> Diverged:
    return Diverged(
        f"{what} is not finite; expected finite numbers. Lower --learning-rate, or look for bad inputs. The last "
        "checkpoint is intact."
    )


def peak_bytes_of_process(device: torch.device) -> int:
    """The most memory that this process has held so far: on its GPU, or else on the machine."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
