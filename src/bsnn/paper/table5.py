"""Table 5: T-BSO on Google Speech Commands."""

import dataclasses

from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import config_at, mean_and_spread, setup, trained
from bsnn.paper.numbers import TABLE_5
from bsnn.paper.recipes import RECIPE_OF, recipe


def measure(settings: Settings) -> Findings:
    """Trains T-BSO on the words that are in the folder of the data."""
    config = config_at(settings, recipe("speech-commands-small"), "speech-commands-tbso")
    if settings.scale == "smoke":
        config = dataclasses.replace(config, time_steps=4)
    (point,) = trained(settings, "table5", config)
    findings = Findings(
        "Table 5: Google Speech Commands", setup(settings, config, "all 35 words, VGG-11, T = 4"), data=point
    )
    ours = mean_and_spread(point["accuracies"])
    findings.add_table(
        "Test accuracy, %",
        ["method", "T", "size, MB (paper)", "paper", "ours"],
        [
            [
                row.method,
                row.time_steps,
                row.megabytes,
                row.accuracy,
                ours if row in RECIPE_OF else "cited by the paper",
            ]
            for row in TABLE_5
        ],
    )
    if settings.scale != "paper":
        findings.notes.append(
            "On a few of the words and recordings the task is another one: the values do not compare."
        )
    return findings
