"""Table 2: the comparison of methods."""

import dataclasses
from pathlib import Path

from bsnn.data.finder import find
from bsnn.data.tree import folders_below, split_folders
from bsnn.errors import UserError
from bsnn.nn.size import model_size
from bsnn.paper._comparison import FLIP_RULES, ROWS, Row, config_of, order_of_rules, reason, train_rows
from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import mean_and_spread, setup
from bsnn.paper.recipes import recipe
from bsnn.train.build import build_network
from bsnn.train.config import Config

_CLASSES_AND_CHANNELS = {
    "digits": (10, 1), "cifar10": (10, 3), "cifar100": (100, 3), "imagenet": (1000, 3), "dvs_cifar10": (10, 2)
}  # fmt: skip
_CITED = "cited by the paper"


def measure(settings: Settings) -> Findings:
    """Trains every method of the table on one of its data sets."""
    dataset = _dataset(settings)
    rows = [row for row in ROWS if row.dataset == dataset]
    # The flip rules last: Figure 5 has the same runs and may be training them at the same time.
    order = sorted((row for row in rows if row.recipe), key=lambda row: (row.method in FLIP_RULES, row.time_steps))
    points = dict(zip(order, train_rows(settings, order), strict=True))
    config = config_of(settings, order[0])
    original = recipe(order[0].recipe or "")
    findings = Findings(
        "Table 2: comparison of methods",
        setup(settings, config, f"{original.model} of width 1, all images, {original.epochs} epochs"),
        data=list(points.values()),
    )
    shown = []
    for row in rows:
        ours = [None, _CITED]
        if row.recipe:
            size = stored_bytes(config_of(settings, row))
            ours = [f"{size / 1e6:.3f}", mean_and_spread(points[row]["accuracies"])]
        shown.append([*_reported(row), *ours])
    columns = ["method", "T", "size, MB (paper)", "accuracy, % (paper)"]
    findings.add_table(f"Test accuracy on {config.dataset}", [*columns, "size, MB (ours)", "accuracy, % (ours)"], shown)
    findings.add_table(
        "The rest of the paper's table, not run at this scale",
        ["data set", *columns, "to run it"],
        [
            [row.dataset, *_reported(row), f"`bsnn train {row.recipe}`" if row.recipe else _CITED]
            for row in ROWS
            if row.dataset != dataset
        ],
    )
    control = [] if settings.scale == "paper" else ["Figure 5 has BSO with a smaller γ, too."]
    findings.notes = [*order_of_rules(findings.data), *control, *reason(settings)]
    return findings


def _dataset(settings: Settings) -> str:
    """Which part of the table can be trained: CIFAR-10 at the small scale, else what is in the folder."""
    if settings.scale != "paper":
        return "cifar10"
    if settings.data is None:
        raise UserError("--scale paper: no data was given; expected --data DIR with one of the paper's data sets.")
    name, known = find(settings.data).name, sorted({row.dataset for row in ROWS})
    if name in known:
        return name
    # No file says that images are ImageNet's, but the number of its classes does.
    train = split_folders(Path(settings.data)).get("train") if name == "folder" else None
    classes, wanted = len(folders_below(train)) if train else 0, _CLASSES_AND_CHANNELS["imagenet"][0]
    if classes != wanted:
        raise UserError(
            f"--scale paper: {settings.data} holds {name}{f' with {classes} classes' if train else ''}; expected one "
            f"of {', '.join(known)}; imagenet as folders train and val with {wanted} classes each."
        )
    return "imagenet"


def _reported(row: Row) -> list[str | float | None]:
    return [row.method, row.time_steps, row.megabytes, row.accuracy]


def stored_bytes(config: Config) -> int:
    """The size of the network as it is deployed, where latent weights are binary."""
    deployed = dataclasses.replace(config, weights="real" if config.weights == "real" else "binary")
    return model_size(build_network(deployed, *_CLASSES_AND_CHANNELS[config.dataset])).stored_bytes
