"""Table 2: the comparison of methods."""

from pathlib import Path

from bsnn.data.finder import find
from bsnn.data.tree import folders_below, split_folders
from bsnn.errors import UserError
from bsnn.paper._comparison import FLIP_RULES, ROWS, SCALE, Row, config_of, order_of_rules, train_rows, tuned_rows
from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import KNOBS, knob_table, mean_and_spread, order_of_methods, setup
from bsnn.paper.recipes import recipe
from bsnn.paper.sizes import CLASSES_AND_CHANNELS, sizes, stored_bytes

_RULE = (
    "The rule for all methods: data, plan, epochs and batches are those of this scale; the published settings are "
    "kept, but for one knob, which is chosen on a tenth of the training images with seed 0 and T = 2 (CBP: its own T): "
    f"{KNOBS}. Figure 5 has the published γ for both flip rules.",
    "CBP's first stage, a network of rectifiers, has as many epochs again; its second has fewer time steps, and a "
    "larger rate of its multipliers, so that the weights reach ±a in the few updates there are.",
)


def measure(settings: Settings) -> Findings:
    """Trains every method of the table on one of its data sets; below the paper's scale, with its knob tuned."""
    dataset = _dataset(settings)
    rows, knobs = [row for row in ROWS if row.dataset == dataset], {}
    if settings.scale != "paper":
        rows, knobs = tuned_rows(settings, rows)
    # The flip rules last: Figure 5 has the same runs and may be training them at the same time.
    order = sorted(rows, key=lambda row: (row.method in FLIP_RULES, row.time_steps))
    points = dict(zip(order, train_rows(settings, order), strict=True))
    config, original = config_of(settings, order[-1]), recipe(order[-1].recipe)
    findings = Findings(
        "Table 2: comparison of methods",
        setup(settings, config, f"{original.model} of width 1, all images, {original.epochs} epochs"),
        data=[{**point, "tuning": knobs.get(row.method)} for row, point in points.items()],
    )
    shown = []
    for row in rows:
        ran = config_of(settings, row)
        accuracies = mean_and_spread(points[row]["accuracies"])
        shown.append([*_reported(row), ran.time_steps, f"{stored_bytes(ran) / 1e6:.3g}", accuracies])
    columns = ["method", "T (paper)", "size, MB (paper)", "accuracy, % (paper)"]
    ours = ["T (ours)", "size, MB (ours)", "accuracy, % (ours)"]
    findings.add_table(f"Test accuracy on {config.dataset}", [*columns, *ours], shown)
    if knobs:
        findings.add_table(*knob_table(knobs))
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
    # The paper's rows have the most time steps first.
    compared = {
        row.method: (row.method, row.accuracy, points[row]["accuracies"])
        for row in reversed(rows)
        if row.accuracy is not None
    }
    findings.notes = [*order_of_methods(list(compared.values())), *order_of_rules(findings.data)]
    if settings.scale != "paper":
        findings.notes += [SCALE, *_RULE]
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
    megabytes: str | float | None = row.megabytes
    if row.method.startswith("CBP") and row.dataset != "imagenet":
        megabytes = f"{row.megabytes} (actually megabits)"
    return [row.method, row.time_steps, megabytes, row.accuracy]
