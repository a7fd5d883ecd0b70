"""Training runs: build from a recipe, run epochs, log, checkpoint, resume bit for bit.

A run directory holds config.json, metrics.jsonl (a line an epoch), checkpoints/ and tensorboard/. All that the
future depends on is in a checkpoint: weights as bits, momentum, second moments, real parameters, schedules,
random states and the place in the data.
"""

import dataclasses
import functools
import json
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

import bso
from bso import checkpoint, surrogate
from bso.bits import BinaryParameter, split_parameters
from bso.bptt import bptt_update
from bso.checkpoint import Checkpoints, write_atomically
from bso.data.augment import Augmentation
from bso.data.dataset import Dataset
from bso.data.loader import Loader
from bso.distributed import World, average_buffers, average_gradients, check_identical, joined_world, summed
from bso.errors import UserError
from bso.evaluation import counting_spikes, over_time, predict
from bso.loss import step_loss
from bso.models import resnet18, vgg, vgg11
from bso.network import ImageNetwork
from bso.neuron import LIF
from bso.norm import estimating_statistics, synchronize_statistics
from bso.online import online_update
from bso.optim import BSO, TBSO, FlipOptimizer, Schedule, constant, cosine, inverse_sqrt, step_decay
from bso.recipes import Config

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
    """Training and test set of a recipe, from a folder or where `bso.data` keeps downloads."""
    if config.dataset == "folder" and root is None:
        raise UserError("the recipe trains on your own data; say where it is with --data DIR (a folder a class).")
    settings: dict[str, Any] = {}
    if config.dataset in ("imagenet", "dvs_cifar10", "nmnist", "folder") and config.image_size:
        settings["size"] = config.image_size
    if config.dataset in ("dvs_cifar10", "nmnist", "folder"):
        settings["time_steps"] = config.time_steps
    if config.dataset != "digits":
        settings["root"] = root
    reader: Callable[..., Dataset] = getattr(bso.data, config.dataset)
    held_out = "val" if config.dataset == "imagenet" else "test"
    train, test = reader(split="train", **settings), reader(split=held_out, **settings)
    if config.train_samples:
        train = first_samples(train, config.train_samples)
    return train, test


def first_samples(dataset: Any, count: int) -> Any:
    """The data set of its first `count` samples."""
    content = "samples" if hasattr(dataset, "samples") else "paths"
    return dataclasses.replace(dataset, labels=dataset.labels[:count], **{content: getattr(dataset, content)[:count]})


class Trainer:
    """One training run in memory: network, optimizers, schedules and the place in the data.

    Args:
        config: The recipe.
        train: Training samples.
        test: Samples to measure accuracy on after each epoch.
        world: Which of how many processes this is.
        workers: Processes that read files.
    """

    def __init__(self, config: Config, train: Dataset, test: Dataset, world: World, workers: int = 0) -> None:
        if config.batch_size % world.size:
            raise UserError(
                f"batch_size: received {config.batch_size} for {world.size} processes; expected a multiple of them."
            )
        self.config, self.world = config, world
        self.classes = train.classes
        self.num_samples = len(train)
        self.frames = None if train.kind == "event" else config.time_steps
        augmentation = Augmentation(config.crop_padding, config.flip, config.cutout, config.autoaugment)
        share = {"rank": world.rank, "world_size": world.size, "device": world.device, "workers": workers}
        local_batch = config.batch_size // world.size
        self.train_loader = Loader(train, local_batch, augment=augmentation, seed=config.seed, **share)
        self.test_loader = Loader(test, local_batch, **share)

        torch.manual_seed(config.seed)
        self.net = build_network(config, len(train.classes), train.shape[-3]).to(world.device)
        if config.init_from:
            self.net.load_state_dict(_weights_of(Path(config.init_from)))
        if world.size > 1 and config.sync_batchnorm:
            synchronize_statistics(self.net)
        self.flip, self.sgd = self._optimizers()
        if world.size > 1:
            average_gradients(self.optimizers)
        self.schedules = self._schedules()
        self.epoch = self.batch = self.update = 0
        self.best_accuracy = 0.0
        self._clear_tally()

    @property
    def optimizers(self) -> list[Optimizer]:
        """The flip optimizer, if there are binary weights, and SGD."""
        return [self.sgd] if self.flip is None else [self.flip, self.sgd]

    def _optimizers(self) -> tuple[FlipOptimizer | None, Optimizer]:
        config, flip = self.config, None
        parameters: list[nn.Parameter] = list(self.net.parameters())
        if config.weights == "binary":
            binary, parameters = split_parameters(self.net)
            beta1, beta2 = 1 - config.one_minus_beta1, 1 - config.one_minus_beta2
            settings = {"gamma": config.gamma, "initial_momentum": config.initial_momentum}
            if config.optimizer == "bso":
                flip = BSO(binary, beta=beta1, **settings)
            else:
                steps = 1 if config.gradient == "bptt" else config.time_steps
                flip = TBSO(binary, betas=(beta1, beta2), eps=config.eps, time_steps=steps, **settings)
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

    def _clear_tally(self) -> None:
        self.loss_sum, self.correct, self.seen = 0.0, 0, 0
        num_binary = sum(isinstance(p, BinaryParameter) for p in self.net.parameters())
        self.flips, self.flip_updates = [0] * num_binary, 0

    def _count_flips(self) -> None:
        assert self.flip is not None
        self.flips = [total + count for total, count in zip(self.flips, self.flip.flip_counts, strict=True)]
        self.flip_updates += 1

    def train_epoch(self, after_batch: Callable[[], None]) -> None:
        """Trains from the present place in the data to the end of the epoch."""
        config = self.config
        self.net.train()
        for inputs, labels in self.train_loader.epoch(self.epoch, self.batch):
            # The share of this process in the global batch, which the last one may split unevenly.
            global_size = min(config.batch_size, self.num_samples - self.batch * config.batch_size)
            share = len(labels) * self.world.size / global_size
            loss = functools.partial(self._loss, labels=labels, share=share)
            frames = over_time(inputs, self.frames)
            if config.gradient == "bptt":
                outcome = bptt_update(self.net, frames, loss, self.optimizers)
            else:
                accumulate = config.updates == "accumulated"
                outcome = online_update(self.net, frames, loss, self.optimizers, accumulate=accumulate)
            for schedule in self.schedules:
                schedule.step()
            self.loss_sum += float(outcome.loss) / share * len(labels)
            self.correct += int((outcome.logits.argmax(dim=1) == labels).sum())
            self.seen += len(labels)
            self.batch += 1
            self.update += 1
            if not torch.isfinite(outcome.loss):
                raise UserError(
                    f"the loss became {float(outcome.loss)} in epoch {self.epoch + 1}, batch {self.batch}; expected a "
                    "finite number. Lower --learning_rate, or look for bad inputs. The last checkpoint is intact."
                )
            after_batch()

    def _loss(self, logits: Tensor, labels: Tensor, share: float) -> Tensor:
        steps = self.config.time_steps
        return share * step_loss(logits, labels, time_steps=steps, mse_share=self.config.mse_share)

    @torch.no_grad()
    def evaluate(self) -> tuple[float, int, dict[str, float]]:
        """Test accuracy over all processes with newly estimated statistics, samples, and firing rates."""
        with estimating_statistics(self.net):
            for number, (inputs, _) in enumerate(self.train_loader.epoch(self.epoch)):
                if number == self.config.statistics_batches:
                    break
                predict(self.net, inputs, self.frames)
        if self.world.size > 1:
            average_buffers(self.net)
        self.net.eval()
        correct = samples = 0
        with counting_spikes(self.net) as rates:
            for inputs, labels in self.test_loader.ordered():
                correct += int((predict(self.net, inputs, self.frames).argmax(dim=1) == labels).sum())
                samples += len(labels)
        correct, samples = summed([correct, samples], self.world)
        return correct / samples, int(samples), rates.by_layer()

    def finish_epoch(self, seconds: float) -> dict[str, Any]:
        """Measures, and moves on to the next epoch; returns the epoch's line of metrics."""
        loss, correct, seen = summed([self.loss_sum, self.correct, self.seen], self.world)
        accuracy, _, firing_rates = self.evaluate()
        names = [n for n, p in self.net.named_parameters() if isinstance(p, BinaryParameter)]
        sizes = [p.numel() for p in self.net.parameters() if isinstance(p, BinaryParameter)]
        updates = max(self.flip_updates, 1)
        line = {
            "epoch": self.epoch + 1,
            "train_loss": loss / seen,
            "train_accuracy": correct / seen,
            "test_accuracy": accuracy,
            "learning_rate": self.sgd.param_groups[0]["lr"],
            "firing_rates": firing_rates,
            "seconds": seconds,
            "peak_bytes": peak_resident_bytes(),
        }
        if self.flip is not None:
            group = self.flip.param_groups[0]
            line |= {
                "gamma": group["gamma"],
                "one_minus_beta1": group["one_minus_beta1"],
                "flip_ratio": sum(self.flips) / sum(sizes) / updates,
                "flip_ratios": {
                    name: flips / size / updates for name, flips, size in zip(names, self.flips, sizes, strict=True)
                },
            }
        self.epoch, self.batch = self.epoch + 1, 0
        self._clear_tally()
        return line

    def state(self) -> dict[str, Any]:
        """All that the future of the run depends on."""
        state: dict[str, Any] = {
            "config": dataclasses.asdict(self.config),
            "classes": list(self.classes),
            "net": dict(self.net.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "random": checkpoint.random_state(),
            "place": [self.epoch, self.batch, self.update],
            "tally": [self.loss_sum, self.correct, self.seen, self.flips, self.flip_updates],
            "best_accuracy": self.best_accuracy,
        }
        check_identical(self._shared_tensors(), self.world)
        return state

    def _shared_tensors(self) -> dict[str, Tensor]:
        """What must be the same on all processes: weights, and the optimizers' state."""
        tensors = {f"net.{name}": value for name, value in self.net.state_dict().items()}
        if self.batch:
            # In the middle of an epoch, running statistics are each process's own; the next evaluation ends that.
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
        """Goes on where `state` was taken."""
        self.net.load_state_dict(state["net"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for schedule, saved in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)
        checkpoint.set_random_state(state["random"])
        self.epoch, self.batch, self.update = state["place"]
        self.loss_sum, self.correct, self.seen, self.flips, self.flip_updates = state["tally"]
        self.best_accuracy = state["best_accuracy"]


def _weights_of(path: Path) -> dict[str, Tensor]:
    """The network of a run directory's best checkpoint, or of a checkpoint file."""
    if not path.exists():
        raise UserError(f"init_from: {path} does not exist; expected a run directory or a checkpoint.")
    return checkpoint.load(Checkpoints(path / "checkpoints").best if path.is_dir() else path)["net"]


def peak_resident_bytes() -> int:
    """The most memory that this process has held so far."""
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


class RunDirectory:
    """The files of one run.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")

    def start(self, config: Config, data: str | None) -> None:
        """Makes the directory and writes config.json."""
        self.path.mkdir(parents=True, exist_ok=True)
        content = {
            "config": dataclasses.asdict(config),
            "data": data,
            "versions": {"bso": bso.__version__, "python": platform.python_version(), "torch": torch.__version__},
            "git_commit": _git_commit(),
        }
        write_atomically(self.path / "config.json", (json.dumps(content, indent=1) + "\n").encode())

    def _started(self) -> dict[str, Any]:
        path = self.path / "config.json"
        try:
            saved = json.loads(path.read_text())
            plan = tuple(saved["config"]["plan"])
            return {**saved, "config": Config(**{**saved["config"], "plan": plan})}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: {error}; expected the config.json of a run of bso train.") from error

    def config(self) -> Config:
        """The config that the run was started with."""
        return self._started()["config"]

    def data(self) -> str | None:
        """The folder of data that the run was started with."""
        return self._started()["data"]

    def history(self) -> list[dict[str, Any]]:
        """The metrics of the epochs so far; a last line that was cut short is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def write_history(self, history: list[dict[str, Any]]) -> None:
        """Writes the metrics anew."""
        text = "".join(json.dumps(line) + "\n" for line in history)
        write_atomically(self.path / "metrics.jsonl", text.encode())


def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def train(
    config: Config,
    out: Path,
    *,
    data: str | None = None,
    resume: bool = False,
    workers: int = 0,
    checkpoint_minutes: float = 10.0,
) -> dict[str, Any]:
    """Runs a recipe to its end and returns its result.

    Args:
        config: The recipe.
        out: The run directory.
        data: Folder of the data; None uses what `bso.data` has downloaded, or downloads it.
        resume: Go on from the last checkpoint in `out`, if there is one.
        workers: Processes that read files.
        checkpoint_minutes: Also write a checkpoint within an epoch after so many minutes.
    """
    with joined_world() as world:
        run = RunDirectory(out)
        state, passed_over = None, []
        if resume or world.restarted:
            state, passed_over = run.checkpoints.load_newest()
        elif any(run.checkpoints.newest_first()):
            raise UserError(f"{out} holds a run already; go on with --resume, or choose another --out.")
        if state is not None:
            _check_same(config, run.config())
        trainer = Trainer(config, *load_data(config, data), world, workers)
        if state is not None:
            trainer.load_state(state)
        elif world.is_first:
            run.start(config, data)
        return _run_epochs(trainer, run, passed_over, checkpoint_minutes)


def _check_same(config: Config, saved: Config) -> None:
    changed = [f.name for f in dataclasses.fields(Config) if getattr(config, f.name) != getattr(saved, f.name)]
    if changed:
        pairs = ", ".join(f"{name} {getattr(saved, name)} → {getattr(config, name)}" for name in changed)
        raise UserError(f"--resume goes on with the config of the run; it differs in {pairs}. Use another --out.")


def _run_epochs(trainer: Trainer, run: RunDirectory, notes: list[str], checkpoint_minutes: float) -> dict[str, Any]:
    config, first = trainer.config, trainer.world.is_first
    history = run.history()[: trainer.epoch]
    finished = trainer.epoch >= config.epochs
    writer = _tensorboard(run.path / "tensorboard", trainer.epoch) if first and not finished else None
    bar = tqdm(
        total=config.epochs * len(trainer.train_loader),
        initial=trainer.update,
        unit="batch",
        disable=None if first and not finished else True,
    )
    saved_at = time.monotonic()

    def report(text: str) -> None:
        if first:
            tqdm.write(f"bso: {text}", file=sys.stderr)

    def save(best: bool = False) -> None:
        nonlocal saved_at
        state = trainer.state()
        if first:
            run.checkpoints.save(trainer.update, state, best=best)
        saved_at = time.monotonic()

    def after_batch() -> None:
        bar.update()
        accuracy, memory = trainer.correct / trainer.seen, peak_resident_bytes() / 1e9
        flips = f", {trainer.flip.flip_ratio:.2%} flips" if trainer.flip else ""
        bar.set_description(
            f"epoch {trainer.epoch + 1}, accuracy {accuracy:.3f}{flips}, {memory:.2f} GB", refresh=False
        )
        in_epoch = trainer.batch < len(trainer.train_loader)
        # All processes must save together, so only a lone one can go by its own clock.
        if trainer.world.size == 1 and in_epoch and time.monotonic() - saved_at > 60 * checkpoint_minutes:
            save()

    for note in notes:
        report(f"warning: {note}")
    try:
        while trainer.epoch < config.epochs:
            started = time.perf_counter()
            trainer.train_epoch(after_batch)
            line = trainer.finish_epoch(time.perf_counter() - started)
            line["warnings"] = warnings_of(line, history)
            history.append(line)
            best = line["test_accuracy"] > trainer.best_accuracy
            trainer.best_accuracy = max(trainer.best_accuracy, line["test_accuracy"])
            if first:
                run.write_history(history)
            save(best)
            _log(writer, line)
            report(_summary(line, config.epochs))
            for warning in line["warnings"]:
                report(f"warning: {warning}")
    finally:
        bar.close()
        if writer is not None:
            writer.close()
    return {
        "run": str(run.path),
        "finished_before": finished,
        "epochs": config.epochs,
        "test_accuracy": history[-1]["test_accuracy"],
        "best_test_accuracy": trainer.best_accuracy,
        "train_seconds": sum(line["seconds"] for line in history),
        "peak_bytes": max(line["peak_bytes"] for line in history),
    }


def _summary(line: dict[str, Any], epochs: int) -> str:
    flips = f", flips {line['flip_ratio']:.3%}" if "flip_ratio" in line else ""
    return (
        f"epoch {line['epoch']}/{epochs}: test accuracy {line['test_accuracy']:.4f}, train accuracy "
        f"{line['train_accuracy']:.4f}, loss {line['train_loss']:.4f}{flips}, {line['seconds']:.0f} s"
    )


def _tensorboard(folder: Path, epoch: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorBoard's own imports warn
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(folder), purge_step=epoch + 1)


def _log(writer: Any, line: dict[str, Any]) -> None:
    if writer is None:
        return
    for name, value in line.items():
        if isinstance(value, dict):
            for layer, number in value.items():
                writer.add_scalar(f"{name}/{layer}", number, line["epoch"])
        elif isinstance(value, int | float) and name != "epoch":
            writer.add_scalar(name, value, line["epoch"])
    writer.flush()


def evaluate_run(path: Path, data: str | None = None) -> dict[str, Any]:
    """Accuracy of a run's last checkpoint on its test set.

    Args:
        path: The run directory.
        data: Folder of the data; None takes the one that the run was trained from.
    """
    run = RunDirectory(path)
    config = run.config()
    state, notes = run.checkpoints.load_newest()
    if state is None:
        raise UserError(f"{path} has no checkpoint yet; expected a run that has finished an epoch.")
    for note in notes:
        print(f"bso: warning: {note}", file=sys.stderr)
    with joined_world() as world:
        trainer = Trainer(config, *load_data(config, data or run.data()), world)
        trainer.load_state(state)
        accuracy, samples, firing_rates = trainer.evaluate()
    return {"test_accuracy": accuracy, "samples": samples, "epoch": trainer.epoch, "firing_rates": firing_rates}


def default_out(name: str) -> Path:
    """Where a run goes when no place is given: runs/NAME, or the first free runs/NAME-2, -3, ..."""
    number = 1
    while (path := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path
