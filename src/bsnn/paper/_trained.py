"""What the targets that train networks share: configs by scale, points trained over seeds, and their spread."""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bsnn.paper._target import Settings
from bsnn.paper.compared import small_version
from bsnn.paper.recipes import recipe
from bsnn.train.config import Config
from bsnn.train.effects import PLAN_WORDS
from bsnn.train.loop import check_ready, train
from bsnn.train.sweep import sweep

# A quarter of the digits and a narrow network: with all of them nearly every setting ends above 99 %.
DIGITS = dataclasses.replace(recipe("digits"), width=0.5, train_samples=400, batch_size=32, time_steps=2)
# Part of CIFAR-10 and half the width of the narrow recipe, for all rows of Table 2 within an hour. Two epochs, because
# testing takes as long as training on half of the images.
CIFAR10 = dataclasses.replace(
    recipe("cifar10-narrow"), width=0.5, train_samples=20_480, epochs=2, statistics_batches=20
)
# Speech Commands at the small scale has about as many words to train on.
_WORDS = 1000
_SMOKE = dataclasses.replace(
    recipe("digits"), plan=(4, "pool", 4), train_samples=64, batch_size=32, epochs=1, time_steps=2
)

OTHER_TASK = (
    "Ours is above the paper's because ten classes of small digits are an easier task than CIFAR-100; what is to be "
    "compared is how far a setting moves it."
)


def config_at(settings: Settings, small: Config, paper: str) -> Config:
    """The config of a scale: `small` at the small one, the recipe named `paper` at the paper's own."""
    return {"smoke": _SMOKE, "small": small, "paper": recipe(paper)}[settings.scale]


# What a method that the paper compares with brings along to any scale; the rest is the scale's own.
_BROUGHT = (
    "model", "neuron", "leak", "threshold", "surrogate", "weights", "gradient", "batchnorm", "method", "loss",
    "loss_of", "mse_share", "clip_norm", "real_optimizer", "learning_rate", "learning_rate_schedule", "sgd_momentum",
    "weight_decay",
)  # fmt: skip


def scaled_down(settings: Settings, small: Config, name: str) -> Config:
    """A recipe of a method that the paper compares with, below the paper's scale.

    It keeps the method's own settings, and takes data, plan, width, epochs and batches from the scale.
    """
    kept = recipe(small_version(name))
    fields = {field: getattr(kept, field) for field in _BROUGHT}
    return dataclasses.replace(config_at(settings, small, name), time_steps=kept.time_steps, **fields)


def setup(settings: Settings, config: Config, paper: str) -> str:
    """What is measured in words, and what the paper measured."""
    samples = f"{config.train_samples:,} training samples" if config.train_samples else "all training samples"
    network = "-".join(map(str, config.plan)) if config.model in PLAN_WORDS else config.model
    seeds = ", ".join(map(str, settings.seeds))
    return (
        f"{config.dataset}, {samples}, {network} of width {config.width:g}, {config.epochs} epochs, seeds {seeds} "
        f"(scale {settings.scale}). The paper: {paper}."
    )


def trained(
    settings: Settings,
    name: str,
    config: Config,
    grid: Mapping[str, Sequence[Any]] | None = None,
    first: tuple[str, Config] | None = None,
) -> list[dict[str, Any]]:
    """Trains a config at every point of a grid and with every seed, all points of the first seed first.

    Args:
        settings: How the target is measured.
        name: Of the folder of its runs.
        config: What to train.
        grid: Fields to vary.
        first: The name and the config of a run that each run begins with, with the same seed.

    Returns:
        The points in the order of the grid, each with its fields and, over the seeds, its accuracies, those on the
        training samples in the last epoch, minutes, runs (below `settings.runs`) and the commits that trained them.
    """
    grid = grid or {}
    points: dict[tuple[Any, ...], dict[str, Any]] = {}
    rows = _swept(settings, name, config, grid, first, settings.seeds)
    for row in rows:
        fields = {name: row[name] for name in grid}
        lists = ("accuracies", "train_accuracies", "minutes", "runs", "git_commits")
        point = points.setdefault(tuple(fields.values()), {**fields, **{name: [] for name in lists}})
        point["accuracies"].append(row["test_accuracy"])
        point["train_accuracies"].append(_train_accuracy(Path(row["run"])))
        point["minutes"].append(row["train_seconds"] / 60 if "train_seconds" in row else None)
        point["runs"].append(str(Path(row["run"]).relative_to(settings.runs)))
        point["git_commits"].append(json.loads((Path(row["run"]) / "config.json").read_text())["git_commit"])
    return list(points.values())


def _train_accuracy(run: Path) -> float | None:
    """Accuracy on the training samples in the last epoch; None if there was none."""
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return json.loads(lines[-1])["train_accuracy"] if lines else None


def _swept(
    settings: Settings,
    name: str,
    config: Config,
    grid: Mapping[str, Sequence[Any]],
    first: tuple[str, Config] | None,
    seeds: Sequence[int],
) -> list[dict[str, Any]]:
    """The points of a sweep over seeds and a grid; see `trained`."""
    data, folder = _data(settings, config), _folder(settings, name)
    if first is None:
        return sweep(config, {"seed": seeds, **grid}, folder, data=data)["points"]
    points = []
    for seed in seeds:
        begun = dataclasses.replace(config, init_from=first_run(settings, *first, seed, data))
        points += sweep(begun, {"seed": [seed], **grid}, folder, data=data)["points"]
    return points


# What sizes the steps of a method, and the factor between values to try: thresholds that suit different rules are
# orders of magnitude apart, rates are not.
_FACTORS = {"learning_rate": 3.0, "gamma": 10.0}
_MOST_BEYOND = 3
KNOBS = (
    "γ of a flip rule, the learning rate of any other; as long as the best value is at the edge of those tried, one "
    "beyond it is tried, too"
)
"""What `tuned` chooses, and how, in words."""


def tuned(settings: Settings, name: str, config: Config, first: tuple[str, Config] | None = None) -> dict[str, Any]:
    """Chooses the knob of a method, γ of a flip rule or else the learning rate, on held-out training samples.

    The published value is tried with the first seed, and those a factor above and below; as long as the best is at the
    edge, one beyond it, too. A tenth of the training samples is held out.

    Args:
        settings: How the target is measured.
        name: Of the folder of its runs.
        config: What to train.
        first: The name and the config of a run that each run begins with.

    Returns:
        The name of the knob, the value that was chosen, and the accuracies by value.
    """
    held_out: dict[str, Any] = {"validation_samples": (config.train_samples or _WORDS) // 10, "final_test": False}
    config = dataclasses.replace(config, **held_out)
    if first:
        first = (f"{first[0]}-held-out", dataclasses.replace(first[1], **held_out))
    knob = "gamma" if config.weights == "binary" else "learning_rate"

    def value(power: int) -> float:
        return float(f"{getattr(config, knob) * _FACTORS[knob] ** power:.3g}")

    def accuracy(power: int) -> float | None:
        (point,) = _swept(settings, f"{name}-held-out", config, {knob: [value(power)]}, first, settings.seeds[:1])
        return point.get("validation_accuracy")

    tried = {power: accuracy(power) for power in (-1, 0, 1)}
    for _ in range(0 if settings.scale == "smoke" else _MOST_BEYOND):
        best = _best(tried)
        if best not in (min(tried), max(tried)):
            break
        beyond = best + (1 if best > 0 else -1)
        tried[beyond] = accuracy(beyond)
    return {
        "knob": knob,
        "chosen": value(_best(tried)),
        "tried": {value(power): tried[power] for power in sorted(tried)},
    }


def _best(accuracies: Mapping[int, float | None]) -> int:
    """The power with the highest accuracy; of equals, the one nearest to 0."""
    return min(accuracies, key=lambda power: (-(accuracies[power] or 0.0), abs(power)))


def first_run(settings: Settings, name: str, config: Config, seed: int, data: str | None) -> str:
    """Trains what other runs begin with, once for all of them; returns where it is."""
    run = _folder(settings, name) / f"seed={seed}"
    train(dataclasses.replace(config, seed=seed), run, data=data, resume=True)
    return str(run)


def check_all(settings: Settings, configs: Mapping[str, Config], *, points: int = 1) -> None:
    """Refuses work that cannot be finished before any of it begins: data, memory and stages of what is not trained yet.

    Args:
        settings: How a target is measured.
        configs: What `trained` will be called with, by name.
        points: How many points its grid has.
    """
    checked: set[str] = set()
    for name, config in configs.items():
        runs = _folder(settings, name).glob("*/metrics.jsonl")
        finished = [run for run in runs if run.read_text().count("\n") >= config.epochs]
        # What can go wrong before an epoch does not depend on these.
        alike = repr(dataclasses.replace(config, seed=0, gamma=0.0, one_minus_beta1=0.0, beta_schedule="cosine"))
        if len(finished) < points * len(settings.seeds) and alike not in checked:
            check_ready(config, _data(settings, config))
            checked.add(alike)


def _folder(settings: Settings, name: str) -> Path:
    return settings.runs / f"{settings.scale}-{name}"


def _data(settings: Settings, config: Config) -> str | None:
    return None if config.dataset == "digits" else settings.data


def mean_and_spread(accuracies: Sequence[float | None]) -> str:
    """Accuracies in percent: mean and standard deviation.

    Example:
        >>> mean_and_spread([0.5, 0.52, 0.54])
        '52.00 ± 2.00'
        >>> mean_and_spread([0.5, None])
        '50.00 (1 of 2 diverged)'
    """
    numbers = [100 * accuracy for accuracy in accuracies if accuracy is not None]
    if not numbers:
        return "diverged"
    lost = len(accuracies) - len(numbers)
    spread = f" ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.2f}{spread}" + (f" ({lost} of {len(accuracies)} diverged)" if lost else "")


def knob_table(chosen: Mapping[str, Mapping[str, Any]]) -> tuple[str, list[str], list[list[str]]]:
    """Caption, columns and rows of a table of what `tuned` chose for each method."""
    rows = []
    for method, knob in chosen.items():
        tried = (
            f"{value:g}: {'diverged' if accuracy is None else f'{100 * accuracy:.2f}'}"
            for value, accuracy in knob["tried"].items()
        )
        words = {"gamma": "γ", "learning_rate": "learning rate"}
        rows.append([method, words[knob["knob"]], "; ".join(tried), f"{knob['chosen']:g}"])
    caption = "The knob of each method, chosen by accuracy on held-out training samples"
    return caption, ["method", "knob", "held-out accuracy, %", "chosen"], rows


def order_of_methods(rows: Sequence[tuple[str, float, Sequence[float | None]]]) -> list[str]:
    """Notes on the order of methods, by their names, the paper's accuracies in percent and ours.

    Example:
        >>> for note in order_of_methods([("A", 90.0, [0.5, 0.52]), ("B", 91.0, [0.4, 0.42]), ("C", 92.0, [0.6])]):
        ...     print(note)
        From best to worst, each method at the paper's largest T: C > B > A in the paper, C > A > B in ours.
        Contrary to the paper, and beyond the range of the seeds: A is above B.
    """
    ran = [(name, paper, [a for a in ours if a is not None]) for name, paper, ours in rows]
    ran = [row for row in ran if row[2]]
    paper = " > ".join(name for name, *_ in sorted(ran, key=lambda row: -row[1]))
    ours = " > ".join(name for name, *_ in sorted(ran, key=lambda row: -statistics.mean(row[2])))
    against = [f"{a[0]} is above {b[0]}" for a in ran for b in ran if a[1] < b[1] and min(a[2]) > max(b[2])]
    words = "; ".join(against) if against else "nothing"
    return [
        f"From best to worst, each method at the paper's largest T: {paper} in the paper, {ours} in ours.",
        f"Contrary to the paper, and beyond the range of the seeds: {words}.",
    ]


def mean(accuracies: Sequence[float | None]) -> float | None:
    """The mean over the runs that did not diverge."""
    numbers = [accuracy for accuracy in accuracies if accuracy is not None]
    return statistics.mean(numbers) if numbers else None
