"""One training run in memory: network, optimizers, schedules and the place in the data, built from a recipe.

All that the future of a run depends on goes into `Trainer.state`: weights as bits, momentum, second moments, real
parameters, schedules, random states, the place in the data, and the metrics so far.
"""

import dataclasses
import functools
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from bsnn.data.augment import Augmentation
from bsnn.data.dataset import Dataset
from bsnn.data.finder import named
from bsnn.data.loader import Loader
from bsnn.errors import UserError
from bsnn.kernels.memory import peak_bytes
from bsnn.models import resnet18, vgg, vgg11
from bsnn.nn import surrogate
from bsnn.nn.bits import BinaryParameter, split_parameters
from bsnn.nn.network import ImageNetwork
from bsnn.nn.neuron import LIF
from bsnn.nn.norm import estimating_statistics, synchronize_statistics
from bsnn.online.bptt import bptt_update
from bsnn.online.evaluate import counting_spikes, over_time, predict
from bsnn.online.loss import step_loss
from bsnn.online.update import online_update
from bsnn.optim import (
    BSO,
    TBSO,
    FlipOptimizer,
    NotFinite,
    Schedule,
    SigmaBSO,
    constant,
    cosine,
    inverse_sqrt,
    step_decay,
)
from bsnn.optim.momentum import decode
from bsnn.train import checkpoint
from bsnn.train.checkpoint import Checkpoints
from bsnn.train.config import Config
from bsnn.train.distributed import World, average_buffers, average_gradients, check_identical, summed

_SURROGATES = {
    "sigmoid": surrogate.Sigmoid,
    "rectangle": surrogate.Rectangle,
    "triangle": surrogate.Triangle,
    "arctan": surrogate.Arctan,
}


def build_network(config: Config, num_classes: int, in_channels: int) -> ImageNetwork:
    """The network of a recipe, initialized from torch's present random state."""
    neuron = LIF(config.leak, config.threshold, _SURROGATES[config.surrogate](), config.gradient)
    shared: dict[str, Any] = {
        "num_classes": num_classes,
        "in_channels": in_channels,
        "width": config.width,
        "weights": config.weights,
        "neuron": neuron,
    }
    if config.model == "vgg":
        return vgg(config.plan, **shared)
    if config.model == "vgg11":
        return vgg11(**shared)
    return resnet18(stem=224 if config.image_size >= 128 else 32, **shared)


def load_data(config: Config, root: str | None) -> tuple[Dataset, Dataset]:
    """Training and test set of a recipe, from a folder or where `bsnn.data` keeps downloads.

    With `validation_samples`, what to measure on is a part of the training set that is not trained on.
    """
    settings = {"size": config.image_size, "time_steps": config.time_steps}
    train = named(config.dataset, "train", root, **settings)
    if config.validation_samples:
        train, test = without_some_samples(train, config.validation_samples)
    else:
        test = named(config.dataset, "test", root, **settings)
    return some_samples(train, config.train_samples or len(train)), test


def without_some_samples(dataset: Any, count: int) -> tuple[Any, Any]:
    """A data set without the samples that `some_samples` takes, and the set of these.

    Example:
        >>> [len(part) for part in without_some_samples(bsnn.data.digits(), 100)]
        [1338, 100]
    """
    if count >= len(dataset):
        raise UserError(f"validation_samples: received {count}; expected fewer than the {len(dataset)} for training.")
    taken = _spread(len(dataset), count)
    return _subset(dataset, np.delete(np.arange(len(dataset)), taken)), _subset(dataset, taken)


def some_samples(dataset: Any, count: int) -> Any:
    """A data set of `count` samples, spread evenly over one that may be sorted by class.

    Example:
        >>> some_samples(bsnn.data.digits(), 4).labels.tolist()
        [0, 6, 6, 5]
    """
    return dataset if count >= len(dataset) else _subset(dataset, _spread(len(dataset), count))


def _spread(length: int, count: int) -> np.ndarray:
    return np.arange(count) * length // count


def _subset(dataset: Any, chosen: np.ndarray) -> Any:
    if hasattr(dataset, "samples"):
        return dataclasses.replace(dataset, labels=dataset.labels[chosen], samples=dataset.samples[chosen])
    return dataclasses.replace(dataset, labels=dataset.labels[chosen], paths=[dataset.paths[i] for i in chosen])


class Diverged(UserError):
    """A training that cannot go on because its numbers are no longer finite."""


@dataclass
class _Tally:
    """What adds up over an epoch, over all processes."""

    loss: float = 0.0
    correct: float = 0
    seen: float = 0
    seconds: float = 0.0
    flips: list[int] = field(default_factory=list)
    """By binary parameter."""
    flip_updates: int = 0
    training_bytes: int = 0
    """The most that the first two updates of the run held; 0 in checkpoints from before it was counted."""


class Trainer:
    """One training run in memory.

    Args:
        config: The recipe.
        train: Training samples.
        test: Samples to measure accuracy on after each epoch.
        world: Which of how many processes this is.
        workers: Processes that read files.
        source: State of another run, whose weights and momentum to start from.

    Example:
        >>> config = dataclasses.replace(bsnn.train.recipes.SMALL["digits"].config, plan=(4, 4), train_samples=64)
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
        self.classes, self.num_samples, self.shape = train.classes, len(train), train.shape
        self.frames = None if train.kind == "event" else config.time_steps
        augmentation = Augmentation(config.crop_padding, config.flip, config.cutout, config.autoaugment)
        share = {"rank": world.rank, "world_size": world.size, "device": world.device, "workers": workers}
        local_batch = config.batch_size // world.size
        self.train_loader = Loader(train, local_batch, augment=augmentation, seed=config.seed, **share)
        self.test_loader = Loader(test, local_batch, **share)

        torch.manual_seed(config.seed)
        self.net = build_network(config, len(train.classes), train.shape[-3]).to(world.device)
        if source is not None:
            self._take_weights(source)
        if world.size > 1 and config.sync_batchnorm:
            synchronize_statistics(self.net)
        self.flip, self.sgd = self._optimizers()
        if source is not None and self.flip is not None and not config.initial_momentum:
            self._take_momentum(source)
        if world.size > 1:
            average_gradients(self.optimizers)
        self.schedules = self._schedules()
        self.epoch = self.batch = self.update = 0
        self.history: list[dict[str, Any]] = []
        self._binary = {n: p for n, p in self.net.named_parameters() if isinstance(p, BinaryParameter)}
        self.tally = _Tally(flips=[0] * len(self._binary))

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
            entry = saved[index]
            dense = decode(entry["momentum"], entry["scales"]) if "scales" in entry else entry["momentum"].view(-1)
            self.flip.set_momentum(parameter, dense[: parameter.numel()].to(parameter.device))

    def _optimizers(self) -> tuple[FlipOptimizer | None, Optimizer]:
        config, flip = self.config, None
        parameters: list[nn.Parameter] = list(self.net.parameters())
        if config.weights == "binary":
            binary, parameters = split_parameters(self.net)
            beta1, beta2 = 1 - config.one_minus_beta1, 1 - config.one_minus_beta2
            settings: dict[str, Any] = {
                "gamma": config.gamma,
                "initial_momentum": config.initial_momentum,
                "momentum_bits": config.momentum_bits,
            }
            if config.optimizer == "tbso":
                steps = 1 if config.gradient == "bptt" else config.time_steps
                settings |= {"time_steps": steps, "eps": config.eps, "bias_correction": config.bias_correction}
                flip = TBSO(binary, betas=(beta1, beta2), **settings)
            else:
                flip = {"bso": BSO, "sigma": SigmaBSO}[config.optimizer](binary, beta=beta1, **settings)
            flip.register_step_post_hook(lambda *_: self._count_flips())
        return flip, torch.optim.SGD(parameters, lr=config.learning_rate, momentum=config.sgd_momentum)

    def _schedules(self) -> list[Schedule]:
        batches = len(self.train_loader)
        total = self.config.epochs * batches
        factors = {
            "constant": constant(),
            "step": step_decay(self.config.decay_epochs * batches),
            "cosine": cosine(total),
            "inverse_sqrt": inverse_sqrt(),
        }
        schedules = [Schedule(self.sgd, lr=factors[self.config.learning_rate_schedule])]
        if self.flip is not None:
            gamma, beta = factors[self.config.gamma_schedule], factors[self.config.beta_schedule]
            schedules.append(Schedule(self.flip, gamma=gamma, one_minus_beta1=beta))
        return schedules

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
        weights = [p.bits if isinstance(p, BinaryParameter) else p for p in self.net.parameters()]
        entries = [entry for optimizer in self.optimizers for entry in optimizer.state.values()]
        states = [value for entry in entries for value in entry.values() if isinstance(value, Tensor)]
        return sum(tensor.nbytes for tensor in [*weights, *self.net.buffers(), *states])

    def _loss(self, logits: Tensor, labels: Tensor, share: float) -> Tensor:
        steps = self.config.time_steps
        return share * step_loss(logits, labels, time_steps=steps, mse_share=self.config.mse_share)

    @torch.no_grad()
    def estimate_statistics(self) -> None:
        """Estimates BatchNorm's statistics anew, because flips outrun running averages."""
        with estimating_statistics(self.net):
            for number, (inputs, _) in enumerate(self.train_loader.epoch(self.epoch)):
                if number == self.config.statistics_batches:
                    break
                predict(self.net, inputs, self.frames)
        if self.world.size > 1:
            average_buffers(self.net)

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        """Accuracy and loss on all test samples, over all processes, and firing rates by layer."""
        self.net.eval()
        correct, samples, loss = 0, 0, 0.0
        with counting_spikes(self.net) as rates:
            for inputs, labels in self.test_loader.ordered():
                logits = predict(self.net, inputs, self.frames)
                correct += int((logits.argmax(dim=1) == labels).sum())
                loss += float(F.cross_entropy(logits / self.config.time_steps, labels, reduction="sum"))
                samples += len(labels)
        local, names = rates.by_layer(), [n for n, m in self.net.named_modules() if isinstance(m, LIF)]
        weighted = [local.get(name, 0.0) * samples for name in names]
        correct, samples, loss, *weighted = summed([correct, samples, loss, *weighted], self.world)
        return {
            "test_accuracy": correct / samples,
            "test_loss": loss / samples,
            "samples": int(samples),
            "firing_rates": {name: rate / samples for name, rate in zip(names, weighted, strict=True)},
        }

    @torch.no_grad()
    def confusion(self) -> list[list[int]]:
        """Test samples by true class, then by predicted class; of this process's share of them."""
        self.net.eval()
        count = len(self.classes)
        pairs = torch.zeros(count * count, dtype=torch.int64)
        for inputs, labels in self.test_loader.ordered():
            guesses = predict(self.net, inputs, self.frames).argmax(dim=1)
            pairs += torch.bincount((labels * count + guesses).cpu(), minlength=count * count)
        return pairs.view(count, count).tolist()

    def finish_epoch(self) -> dict[str, Any]:
        """Measures, and moves on to the next epoch; returns the epoch's line of metrics."""
        self.estimate_statistics()
        measured, tally = self.evaluate(), self.tally
        line = {
            "epoch": self.epoch + 1,
            "train_loss": tally.loss / tally.seen,
            "train_accuracy": tally.correct / tally.seen,
            "test_accuracy": measured["test_accuracy"],
            "test_loss": measured["test_loss"],
            "learning_rate": self.sgd.param_groups[0]["lr"],
            "firing_rates": measured["firing_rates"],
            "seconds": tally.seconds,
            "peak_bytes": peak_bytes_of_process(self.world.device),
        }
        if self.flip is not None:
            group, sizes = self.flip.param_groups[0], [p.numel() for p in self._binary.values()]
            counts = zip(self._binary, tally.flips, sizes, strict=True)
            line |= {
                "gamma": group["gamma"],
                "one_minus_beta1": group["one_minus_beta1"],
                "flip_ratio": sum(tally.flips) / sum(sizes) / tally.flip_updates,
                "flip_ratios": {name: flips / size / tally.flip_updates for name, flips, size in counts},
            }
        if tally.training_bytes:
            line["training_bytes"] = tally.training_bytes
        line["warnings"] = warnings_of(line, self.history)
        self.history.append(line)
        self.epoch, self.batch = self.epoch + 1, 0
        self.tally = _Tally(flips=[0] * len(self._binary), training_bytes=tally.training_bytes)
        return line

    def state(self) -> dict[str, Any]:
        """All that the future of the run depends on.

        Raises:
            Diverged: If a weight is not finite.
            RuntimeError: If the processes do not hold the same.
        """
        for name, parameter in self.net.named_parameters():
            if name not in self._binary and not parameter.isfinite().all():
                raise _diverged(f"a weight of {name} after update {self.update}")
        check_identical(self._shared_tensors(), self.world)
        return {
            "config": dataclasses.asdict(self.config),
            "classes": list(self.classes),
            "num_samples": self.num_samples,
            "net": dict(self.net.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "random": checkpoint.random_state(),
            "place": [self.epoch, self.batch, self.update],
            "tally": dataclasses.asdict(self.tally),
            "history": self.history,
        }

    def _shared_tensors(self) -> dict[str, Tensor]:
        """What must be the same on all processes: weights, and the optimizers' state."""
        tensors = {f"net.{name}": value for name, value in self.net.state_dict().items()}
        if self.batch:
            # Within an epoch, running statistics are each process's own. Nothing uses them before they are
            # estimated anew.
            tensors = {name: value for name, value in tensors.items() if "running_" not in name}
        for number, optimizer in enumerate(self.optimizers):
            for index, entry in optimizer.state_dict()["state"].items():
                tensors |= {
                    f"optimizer{number}.{index}.{key}": value
                    for key, value in entry.items()
                    if isinstance(value, Tensor)
                }
        return tensors

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken.

        Raises:
            UserError: If the data is not what the state was trained on.
        """
        if (list(self.classes), self.num_samples) != (state["classes"], state["num_samples"]):
            raise UserError(
                f"data: received {self.num_samples} samples of {len(self.classes)} classes; expected the "
                f"{state['num_samples']} of {len(state['classes'])} classes that the run was started with."
            )
        self.net.load_state_dict(state["net"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for schedule, saved in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)
        checkpoint.set_random_state(state["random"])
        self.epoch, self.batch, self.update = state["place"]
        self.tally = _Tally(**state["tally"])
        self.history = state["history"]


def _diverged(what: str) -> Diverged:
    return Diverged(
        f"{what} is not finite; expected finite numbers. Lower --learning-rate, or look for bad inputs. The last "
        "checkpoint is intact."
    )


def source_state(path: Path) -> dict[str, Any]:
    """The state of a run directory's last checkpoint, or of a checkpoint file, to start another run from."""
    if not path.exists():
        raise UserError(f"init_from: {path} does not exist; expected a run directory or a checkpoint. Train it first.")
    state = Checkpoints(path / "checkpoints").load_newest()[0] if path.is_dir() else checkpoint.load(path)
    if state is None:
        raise UserError(f"init_from: {path} has no checkpoint; expected a run that has finished an epoch.")
    return state


def peak_bytes_of_process(device: torch.device) -> int:
    """The most memory that this process has held so far: of its GPU, or else of the machine."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def warnings_of(line: dict[str, Any], history: list[dict[str, Any]]) -> list[str]:
    """What a person should know about an epoch: dead or saturated layers, flips that stop or grow."""
    found = []
    for name, rate in line["firing_rates"].items():
        if rate < 1e-4:
            found.append(f"layer {name} hardly ever fires ({rate:.2%})")
        elif rate > 0.99:
            found.append(f"layer {name} fires nearly always ({rate:.2%})")
    if "flip_ratios" not in line:
        return found
    annealed = history and line["one_minus_beta1"] < 0.02 * history[0]["one_minus_beta1"]
    for name, ratio in line["flip_ratios"].items():
        if ratio == 0 and not annealed:
            found.append(f"the weights of {name} have stopped flipping")
    if len(history) >= 2 and line["flip_ratio"] > 1.5 * history[-1]["flip_ratio"] > 1.5**2 * history[-2]["flip_ratio"]:
        found.append(f"flips grow: {line['flip_ratio']:.2%} of the weights an update; anneal 1 − β1 or lower it")
    return found
