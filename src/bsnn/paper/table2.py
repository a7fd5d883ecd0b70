"""Table 2: the comparison of methods."""

from pathlib import Path

from bsnn.data.finder import find
from bsnn.data.tree import folders_below, split_folders
from bsnn.errors import UserError
from bsnn.paper._comparison import FLIP_RULES, ROWS, Row, config_of, order_of_rules, reason, train_rows
from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import mean_and_spread, setup
from bsnn.paper.recipes import recipe
from bsnn.paper.sizes import CLASSES_AND_CHANNELS, sizes, stored_bytes


def measure(settings: Settings) -> Findings:
    """Trains every method of the table on one of its data sets."""
    dataset = _dataset(settings)
    rows = [row for row in ROWS if row.dataset == dataset]
    # The flip rules last: Figure 5 has the same runs and may be training them at the same time.
    order = sorted(rows, key=lambda row: (row.method in FLIP_RULES, row.time_steps))
    points = dict(zip(order, train_rows(settings, order), strict=True))
    config, original = config_of(settings, order[-1]), recipe(order[-1].recipe)
    findings = Findings(
        "Table 2: comparison of methods",
        setup(settings, config, f"{original.model} of width 1, all images, {original.epochs} epochs"),
        data=list(points.values()),
    )
    shown = []
    for row in rows:
        size = stored_bytes(config_of(settings, row))
        shown.append([*_reported(row), f"{size / 1e6:.3f}", mean_and_spread(points[row]["accuracies"])])
    columns = ["method", "T", "size, MB (paper)", "accuracy, % (paper)"]
    findings.add_table(f"Test accuracy on {config.dataset}", [*columns, "size, MB (ours)", "accuracy, % (ours)"], shown)
    findings.add_table(
        "The rest of the paper's table, not run at this scale",
        ["data set", *columns, "to run it"],
        [[row.dataset, *_reported(row), f"`bsnn train {row.recipe}`"] for row in ROWS if row.dataset != dataset],
    )
    findings.add_table(
        "Sizes at the paper's scale, MB",
        ["data set", "network", "method", "T", "paper", "counted", "remark"],
        [
            [
                *(size.published.dataset, size.published.network, size.published.method, size.published.time_steps),
                size.published.megabytes,
                f"{size.megabytes:.2f}",
                size.remark or None,
            ]
            for size in sizes()
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
    classes, wanted = len(folders_below(train)) if train else 0, CLASSES_AND_CHANNELS["imagenet"][0]
    if classes != wanted:
        raise UserError(
            f"--scale paper: {settings.data} holds {name}{f' with {classes} classes' if train else ''}; expected one "
            f"of {', '.join(known)}; imagenet as folders train and val with {wanted} classes each."
        )
    return "imagenet"


def _reported(row: Row) -> list[str | float | None]:
    return [row.method, row.time_steps, row.megabytes, row.accuracy]
