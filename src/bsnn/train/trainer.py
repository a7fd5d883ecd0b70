"""One training run in memory: network, optimizers, schedules and the place in the data, built from a config.

When a stage ends, batches, loss and schedules are exchanged; all else stays. What the future of a run depends on is in
`Trainer.state`: weights, momentum, second moments, schedules, random states, the place in the data, metrics so far.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from bsnn.data.augment import shrunk_batch
from bsnn.data.dataset import Dataset
from bsnn.data.loader import Loader, num_batches
from bsnn.data.resizing import at_size
from bsnn.data.spec import DataSpec
from bsnn.data.subset import some_samples
from bsnn.errors import UserError
from bsnn.kernels.memory import keeping_memory, peak_bytes
from bsnn.kernels.precision import precision
from bsnn.nn.bits import BinaryParameter
from bsnn.nn.norm import synchronize_statistics
from bsnn.nn.size import model_size
from bsnn.nn.trace import gradient_rule
from bsnn.online.bptt import bptt_update
from bsnn.online.evaluate import estimate_statistics, over_time
from bsnn.online.update import online_update
from bsnn.optim import FlipOptimizer, NotFinite, Schedule
from bsnn.train.averaging import average_buffers, average_gradients
from bsnn.train.build import (
    Span,
    build_augmentation,
    build_loss,
    build_optimizers,
    build_schedules,
    change_settings,
    network_for,
)
from bsnn.train.checkpoint import random_state, set_random_state
from bsnn.train.config import Config
from bsnn.train.distributed import World, check_identical, summed
from bsnn.train.effects import is_own
from bsnn.train.initial import take_momentum, take_weights
from bsnn.train.measure import Measurement, judged, measure, measured_as, peak_bytes_of_process
from bsnn.train.method import build_method, check_sequences, has_penalty
from bsnn.train.metrics import EpochMetrics, Split, Tally, warnings_of
from bsnn.train.origin import Origin, changes, origin
from bsnn.train.own import NOTHING, Own, check_loss, check_network, keeps_graph
from bsnn.train.stage_checks import (
    check_last_batches,
    check_stage_data,
    check_stage_optimizers,
    check_stage_sizes,
    naming,
)
from bsnn.train.stages import Stage, stage_at, stages_of
from bsnn.train.teacher import Teacher
from bsnn.train.whitening import NUM_SAMPLES, whiten


class Diverged(UserError):
    """A training that cannot go on because its numbers are no longer finite."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not finite; expected finite numbers. Lower --learning-rate, or look for bad inputs. The last "
            "checkpoint is intact."
        )


class Trainer:
    """One training run in memory.

    Args:
        config: What to train, and how.
        train: Training samples.
        held_out: Samples to measure accuracy on: the test set, or with `validation_samples` those.
        world: Which of how many processes this is.
        workers: Processes that read files.
        source: State of another run, whose weights and momentum to start from.
        own: Parts that were passed as objects rather than named in the config.
        teacher: What answers beside the labels.

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
        held_out: Dataset,
        world: World = World(),  # noqa: B008, a tuple
        workers: int = 0,
        source: dict[str, Any] | None = None,
        own: Own = NOTHING,
        teacher: Teacher | None = None,
    ) -> None:
        self.config, self.world, self.teacher = config, world, teacher
        self.split: Split = "validation" if config.validation_samples else "test"
        self.spec, self.num_samples = DataSpec.of(train), len(train)
        self._own, self._sets, self._workers = own, (train, held_out), workers
        self.stages = stages_of(config)
        if teacher is not None:
            teacher.check(self.spec)
            teacher.net.to(world.device)
        check_stage_data(self.stages, self.spec, world)
        for stage in self.stages[1:]:
            # A batch of each stage to come, so that none of them fails when its time has come.
            few = (some_samples(data, world.size) for data in self._sets)
            next(self._loaders(stage, *few)[0].epoch(0))
        self.stage = self.stages[0]
        self.train_loader, self.held_out_loader = self._loaders(self.stage, *self._sets)

        torch.manual_seed(config.seed)
        net = network_for(config, self.spec, own)
        if is_own(config.model) or is_own(config.neuron):
            check_network(net, config, self.spec, gradient_rule(config.gradient))
        self.net = net.to(world.device)
        self._by_bptt, self._step_loss = keeps_graph(self.net), build_loss(self.stage.config, own)
        check_stage_sizes(self.net, self.stages, self.spec)
        check_last_batches(self.net, self.stages, self.spec, self.num_samples, world)
        check_sequences(config, by_bptt=self._by_bptt)
        if is_own(config.loss):
            mixed = bool(config.teacher) or any(stage.config.mixup for stage in self.stages)
            check_loss(own.part("loss", config), config.loss, self.net, self.spec, distributions=mixed)
        if config.first_layer == "whitened" and source is None:
            few = some_samples(train, min(len(train), NUM_SAMPLES))
            whiten(self.net, (samples for samples, _ in Loader(few, config.batch_size, device=world.device).ordered()))
        if source is not None:
            take_weights(self.net, source, "init_from: expected the same network; it holds another")
        if world.size > 1 and config.sync_batchnorm:
            synchronize_statistics(self.net)
        self.method = build_method(config, self.net, self._by_bptt)
        self._binary = {n: p for n, p in self.net.named_parameters() if isinstance(p, BinaryParameter)}
        self.optimizers = build_optimizers(self.stage.config, self.net, own)
        check_stage_optimizers(self.stages, self.optimizers, own, self.net)
        flips = [optimizer for optimizer in self.optimizers if isinstance(optimizer, FlipOptimizer)]
        self._ordinary = [optimizer for optimizer in self.optimizers if optimizer not in flips]
        self.flip = flips[0] if flips else None
        for flip in flips:
            flip.register_step_post_hook(self._count_flips)
        if source is not None and self.flip is not None and not config.initial_momentum:
            take_momentum(self.flip, self._binary.values(), source)
        if world.size > 1:
            average_gradients(self.net.parameters())
        self.schedules = self._build_schedules()
        self.epoch = self.batch = self.batches = 0
        self.origins: list[Origin] = [{"from_batch": 0, **origin(config, world)}]
        self.stop_reason = ""
        self.keeps_memory = False
        self.history: list[EpochMetrics] = []
        self._places = {parameter: place for place, parameter in enumerate(self._binary.values())}
        # Of the teacher, if it is asked once; a run that goes on asks again.
        self._answers: Tensor | None = None
        self.tally = Tally(flips=[0] * len(self._binary))
        # Of the batch at work, on their device.
        self._flips: dict[BinaryParameter, Tensor | int] = {}
        # The time of this process's processor up to which the tally has it.
        self._processor = time.process_time()

    @property
    def frames(self) -> int | None:
        """How often a still sample is shown; None for events."""
        return None if self.spec.kind == "event" else self.stage.config.time_steps

    @property
    def total_batches(self) -> int:
        """Of the whole run."""
        return self._batches_of(self.stages)

    def _batches_of(self, stages: Iterable[Stage]) -> int:
        sizes = [(stage.config.epochs, stage.config.batch_size) for stage in stages]
        return sum(epochs * num_batches(self.num_samples, size, self.world.size) for epochs, size in sizes)

    def _loaders(self, stage: Stage, train: Dataset, held_out: Dataset) -> tuple[Loader, Loader]:
        """The batches of a stage."""
        config, world = stage.config, self.world
        share = {"rank": world.rank, "world_size": world.size, "device": world.device, "workers": self._workers}
        local_batch = config.batch_size // world.size
        with naming(stage, self.stages):
            small, held_out = (at_size(data, stage.shrunk_to) for data in (train, held_out))
            # A teacher sees images as large as those that it was trained on; `_shown` shrinks them afterwards.
            train = train if self._asks_about_batches else small
            augment = build_augmentation(config, train.shape[-1] / self.spec.shape[-1])
            batches = Loader(train, local_batch, augment=augment, seed=config.seed, **share)
            return batches, Loader(held_out, local_batch, **share)

    def _build_schedules(self) -> list[Schedule]:
        stage, span = self.stage, None
        if self.config.schedule_span == "run":
            span = Span(self.config.epochs, stage.start, self._batches_of(self.stages[: stage.number - 1]))
        return build_schedules(stage.config, self.optimizers, len(self.train_loader), span)

    def _enter(self, stage: Stage) -> None:
        """Goes on with another stage; weights and the state of optimizers are carried over."""
        before, self.stage = self.stage.config, stage
        self.train_loader, self.held_out_loader = self._loaders(stage, *self._sets)
        self._step_loss = build_loss(stage.config, self._own)
        change_settings(self.schedules, before, stage.config, 1 if self._by_bptt else stage.config.time_steps)
        self.schedules = self._build_schedules()

    def _count_flips(self, flip: Optimizer, *_: Any) -> None:
        assert isinstance(flip, FlipOptimizer)
        for parameter in (p for group in flip.param_groups for p in group["params"]):
            self._flips[parameter] = self._flips.get(parameter, 0) + flip.flipped(parameter)
        self.tally.flip_updates += flip is self.flip

    def _tally_flips(self) -> None:
        """Takes the flips of a batch from the device, once for all of its time steps."""
        for flip in self.optimizers:
            if isinstance(flip, FlipOptimizer):
                flip.check_refused()
        for parameter, count in self._flips.items():
            self.tally.flips[self._places[parameter]] += int(count)
        self._flips = {}

    def stop(self, reason: str) -> None:
        """Ends training after this epoch; for callbacks.

        Args:
            reason: Why, for the metrics.
        """
        self.stop_reason = reason

    def train_epoch(self, after_batch: Callable[[], object] = lambda: None) -> None:
        """Trains from the present place in the data to the end of the epoch."""
        stage = stage_at(self.config, self.epoch)
        if stage.number != self.stage.number:
            self._enter(stage)
        if self.method is not None and not self.batches:
            self.method.start(self)
        self.net.train()
        since, self._processor = time.perf_counter(), time.process_time()
        with precision(self.config.precision), keeping_memory(self.keeps_memory):
            if self.teacher is not None and not self._asks_about_batches and self._answers is None:
                self._answers = self._ask_once(self.teacher)
            for inputs, labels in self.train_loader.epoch(self.epoch, self.batch):
                if (self.epoch - stage.start) * len(self.train_loader) + self.batch < 2:
                    # Counting changes no number, and updates are alike but for the first: SGD makes its momentum there.
                    standing = self.standing_bytes()
                    held = standing + peak_bytes(functools.partial(self._train_batch, inputs, labels))
                    self.tally.training_bytes = max(held, self.tally.training_bytes)
                else:
                    self._train_batch(inputs, labels)
                since = self.tally.add_time(since)
                after_batch()

    def _shown(self, inputs: Tensor) -> Tensor:
        """A batch as the network sees it in this stage."""
        size = self.stage.shrunk_to
        return shrunk_batch(inputs, size) if size and self._asks_about_batches else inputs

    @property
    def _asks_about_batches(self) -> bool:
        return self.teacher is not None and self.config.teacher_answers == "batch"

    def _ask_once(self, teacher: Teacher) -> Tensor:
        """The teacher's answers for all training samples, as they are without augmentation."""
        batches = Loader(self._sets[0], self.config.batch_size, workers=self._workers, device=self.world.device)
        return teacher.answers_once((inputs for inputs, _ in batches.ordered()), mirrored=self.config.flip)

    def _targets(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """What the loss of a batch takes for labels."""
        if self.teacher is None:
            return labels
        if self._answers is None:
            return self.teacher.targets(self.teacher.answers(inputs), labels)
        numbers = self.train_loader.numbers(self.epoch, self.batch)
        return self.teacher.targets(self._answers[torch.from_numpy(numbers).to(labels.device)], labels)

    def _train_batch(self, inputs: Tensor, labels: Tensor) -> None:
        config, tally = self.stage.config, self.tally
        # The share of this process in the global batch, which the last one may split unevenly.
        global_size = min(config.batch_size, self.num_samples - self.batch * config.batch_size)
        share = len(labels) * self.world.size / global_size
        targets = self._targets(inputs, labels)
        loss = lambda logits: share * self._step_loss(logits, targets)  # noqa: E731
        frames = over_time(self._shown(inputs), self.frames)
        place = f"epoch {self.epoch + 1}, batch {self.batch + 1}"
        clip_norm, method = config.clip_norm or None, self.method
        if method is not None:
            method.before_update(self)
        try:
            if self._by_bptt:
                outcome = bptt_update(
                    self.net,
                    frames,
                    loss,
                    self.optimizers,
                    clip_norm=clip_norm,
                    layer_by_layer=config.batchnorm == "sequence",
                    mean_output=config.loss_of == "mean",
                    penalty=method.penalty if method is not None and has_penalty(method) else None,
                )
            else:
                accumulate = config.updates == "accumulated"
                outcome = online_update(
                    self.net, frames, loss, self.optimizers, accumulate=accumulate, clip_norm=clip_norm
                )
            self._tally_flips()
        except NotFinite as error:
            raise Diverged(f"a gradient in {place}") from error
        for schedule in self.schedules:
            schedule.step()
        # The sums of all processes, so that any number of them can go on from a checkpoint.
        loss_sum = float(outcome.loss) / share * len(labels)
        before, self._processor = self._processor, time.process_time()
        sums = [loss_sum, len(labels), *judged(outcome.logits, labels), self._processor - before]
        sums = summed(sums, self.world)
        if not np.isfinite(sums[0]):
            raise Diverged(f"the loss in {place}")
        tally.add(*sums)
        self.batch += 1
        self.batches += 1
        if method is not None:
            method.after_update(self, sums[0] / sums[1])

    def standing_bytes(self) -> int:
        """Of weights, BatchNorm's statistics and optimizer states, and of the teacher."""
        entries = [entry for optimizer in self.optimizers for entry in optimizer.state.values()]
        states = [value for entry in entries for value in entry.values() if isinstance(value, Tensor)]
        taught = 0 if self.teacher is None else self.teacher.num_bytes
        taught += 0 if self._answers is None else self._answers.nbytes
        return taught + model_size(self.net).stored_bytes + sum(t.nbytes for t in [*self.net.buffers(), *states])

    def estimate_statistics(self) -> None:
        """Estimates BatchNorm's statistics anew, from as many training batches as the config says."""
        # Of single images, as they are evaluated, also if training mixes them.
        batches = itertools.islice(self.train_loader.epoch(self.epoch, mixed=False), self.config.statistics_batches)
        together = self._by_bptt and self.config.batchnorm == "sequence"
        shown = (self._shown(inputs) for inputs, _ in batches)
        estimate_statistics(self.net, shown, self.frames, layer_by_layer=together)
        if self.world.size > 1:
            average_buffers(self.net)

    def evaluate(self, loader: Loader | None = None) -> Measurement:
        """Measures the network on the held-out samples, or on those of another loader, by all processes together."""
        return measure(self.net, loader or self.held_out_loader, self.frames, self.world)

    def measure_into(self, line: EpochMetrics) -> None:
        """Adds what the network makes of the held-out samples to a line of metrics."""
        found = self.evaluate()
        line |= measured_as(self.split, found)
        line["firing_rates"] = found.firing_rates

    def finish_epoch(self) -> EpochMetrics:
        """Measures, if it is time to, and moves on to the next epoch; returns the epoch's line of metrics."""
        self.estimate_statistics()
        tally = self.tally
        line: EpochMetrics = {
            "epoch": self.epoch + 1,
            "train_loss": tally.loss / tally.seen,
            "train_accuracy": tally.accuracy,
            "learning_rate": next((o.param_groups[0]["lr"] for o in self._ordinary), 0.0),
            "seconds": tally.seconds,
            "processor_seconds": tally.processor_seconds,
            "peak_bytes": peak_bytes_of_process(self.world.device),
            "warnings": [],
        }
        if self.config.stages:
            line["stage"] = self.stage.number
        if self.epoch + 1 == self.stage.end or (self.epoch + 1) % self.config.evaluation_interval == 0:
            self.measure_into(line)
        if self.flip is not None:
            group, sizes = self.flip.param_groups[0], [p.numel() for p in self._binary.values()]
            counts = zip(self._binary, tally.flips, sizes, strict=True)
            line["gamma"], line["one_minus_beta1"] = group["gamma"], group["one_minus_beta1"]
            line["flip_ratio"] = sum(tally.flips) / sum(sizes) / tally.flip_updates
            line["flip_ratios"] = {name: flips / size / tally.flip_updates for name, flips, size in counts}
        if tally.training_bytes:
            line["training_bytes"] = tally.training_bytes
        if self.method is not None:
            self.method.after_epoch(self, line)
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
                raise Diverged(f"a weight of {name} after {self.batches} batches")
        # Within an epoch, running statistics are each process's own. Nothing uses them before they are estimated anew.
        check_identical(self.net, self.optimizers, self.world, statistics=not self.batch)
        return {
            "config": dataclasses.asdict(self.config),
            "data": self.spec.as_json(),
            "num_samples": self.num_samples,
            "net": dict(self.net.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "method": {} if self.method is None else self.method.state_dict(),
            "teacher": "" if self.teacher is None else self.teacher.digest,
            "random": random_state(),
            "stage": self.stage.number,
            "place": [self.epoch, self.batch, self.batches],
            "tally": dataclasses.asdict(self.tally),
            "history": self.history,
            "origins": self.origins,
        }

    def load_state(self, state: dict[str, Any]) -> list[str]:
        """Goes on where `state` was taken.

        Returns:
            What a person should know: that something else than before computes.

        Raises:
            UserError: If the data is not what the state was trained on.
        """
        saved = DataSpec.from_json(state["data"])
        if (self.spec.classes, self.num_samples) != (saved.classes, state["num_samples"]):
            raise UserError(
                f"data: received {self.num_samples} samples of {len(self.spec.classes)} classes; expected the "
                f"{state['num_samples']} of {len(saved.classes)} classes that the run was started with."
            )
        if self.teacher is not None and self.teacher.digest != state["teacher"]:
            raise UserError(
                f"teacher: {self.config.teacher} holds other weights than when the run was started; expected the same "
                "network. Put the former run there again, or start a new run."
            )
        take_weights(self.net, state, "resume: expected the same network; the run holds another")
        if state["stage"] != self.stage.number:
            self._enter(self.stages[state["stage"] - 1])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for schedule, saved in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)
        if self.method is not None:
            self.method.load_state_dict(state["method"])
        set_random_state(state["random"])
        self.epoch, self.batch, self.batches = state["place"]
        self.tally = Tally(**state["tally"])
        self.history = state["history"]
        now, self.origins = {**self.origins[-1], "from_batch": self.batches}, state["origins"]
        notes = changes(self.origins[-1], now)
        if {**self.origins[-1], "from_batch": 0} != {**now, "from_batch": 0}:
            self.origins.append(now)
        return notes
