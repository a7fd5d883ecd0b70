"""Table 5: Google Speech Commands."""

import dataclasses

from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import check_all, config_at, mean_and_spread, scaled_down, setup, trained
from bsnn.paper.compared import COMPARED
from bsnn.paper.numbers import TABLE_5, Published
from bsnn.paper.recipes import RECIPE_OF, recipe
from bsnn.paper.sizes import stored_bytes
from bsnn.train.config import Config
from bsnn.train.recipes import without_room


def measure(settings: Settings) -> Findings:
    """Trains every method on the words that are in the folder of the data."""
    configs = {_run_name(row): _config(settings, row) for row in TABLE_5}
    check_all(settings, configs)
    points, shown = [], []
    for row, (name, config) in zip(TABLE_5, configs.items(), strict=True):
        (point,) = trained(settings, name, config)
        points.append({"method": row.method, **point})
        size = f"{stored_bytes(config) / 1e6:.3f}"
        shown.append(
            [row.method, row.time_steps, row.megabytes, row.accuracy, size, mean_and_spread(point["accuracies"])]
        )
    findings = Findings(
        "Table 5: Google Speech Commands",
        setup(settings, configs[_run_name(TABLE_5[-1])], "all 35 words, VGG-11, T = 4"),
        data=points,
    )
    columns = ["method", "T", "size, MB (paper)", "paper", "size, MB (ours)", "ours"]
    findings.add_table("Test accuracy, %", columns, shown)
    if settings.scale != "paper":
        findings.notes = [
            "On a few of the words and recordings the task is another one: the values do not compare.",
            "ATIF and STS-T keep their own networks, at a quarter of the width, and their own settings, and share the "
            "data, the epochs and the batches of this scale.",
        ]
    return findings


def _run_name(row: Published) -> str:
    return "table5" if row.method == "T-BSO" else f"table5-{row.method}"


def _config(settings: Settings, row: Published) -> Config:
    """The row's own recipe, or at the small scale its method."""
    name, small = RECIPE_OF[row], without_room(recipe("speech-commands-small"))
    if settings.scale == "paper" or name not in COMPARED:
        config = config_at(settings, small, name)
    else:
        width = 0.25 if settings.scale == "small" else 0.0625
        config = dataclasses.replace(scaled_down(settings, small, name), width=width, plan=())
    return dataclasses.replace(config, time_steps=row.time_steps)
