"""Rows of Table 2: what the paper reports, and the same method trained by us. Figure 5 shows some of them."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bsnn.paper._target import Settings
from bsnn.paper._trained import CIFAR10, check_all, config_at, scaled_down, trained, tuned
from bsnn.paper.compared import COMPARED
from bsnn.paper.numbers import TABLE_2, Published
from bsnn.paper.recipes import RECIPE_OF, recipe
from bsnn.train.config import Config

FLIP_RULES = ("BSO", "T-BSO")
# BSO's γ is a size of the momentum, T-BSO's a share of the gradient's. This one, the best on held-out images
# (benchmarks/cifar10_methods.py), tells what of the difference between the rules is that of their thresholds' sizes.
_SMALL_GAMMA = 4e-9
_CONTROL = "BSO, γ = 4e-9"
_WHAT_THE_CONTROL_TELLS = (
    "The same number γ holds back far more in BSO, where it is a size of the momentum, than in T-BSO, where it is a "
    "share of the gradient's. This γ is BSO's best on held-out images (CIFAR-10 methods below); what is left of the "
    "difference is that of the rules."
)
_METHOD_FIELDS = ("weights", "gradient", "optimizer", "gamma", "sgd_momentum")
# A converted network needs many time steps; at the small scale, it has to do with these.
_MOST_TIME_STEPS = 8
_TUNED_AT = 2


# Recipes of ours that train with real-valued weights under the name of a gradient rule.
OWN_METHODS = {name for row, name in RECIPE_OF.items() if row.method not in FLIP_RULES and name not in COMPARED}


class Row(NamedTuple):
    """A method on a data set."""

    dataset: str
    method: str
    time_steps: int
    megabytes: float | None
    accuracy: float | None
    """None, like the megabytes, for what the paper does not have."""
    recipe: str
    knob: tuple[str, float] | None = None
    """A field of the config and its value; None if all are the recipe's."""


def _rows() -> Iterator[Row]:
    for published in TABLE_2:
        yield Row(
            published.dataset,
            _label(published),
            published.time_steps,
            published.megabytes,
            published.accuracy,
            RECIPE_OF[published],
        )
        # Our own baselines, which the paper does not have, follow the row that they belong to.
        if (published.dataset, published.method) == ("cifar10", "OTTT"):
            yield from (_baseline("real", steps) for steps in (4, 2))
        if (published.dataset, published.method) == ("cifar10", "NDOT"):
            yield from (_baseline("latent", steps) for steps in (6, 4, 2))


def _label(published: Published) -> str:
    """The paper's name of a method, or ours if we train it with real weights; the network unless it is VGG-11."""
    method = published.method
    if RECIPE_OF[published] in OWN_METHODS:
        method = f"real weights, {recipe(RECIPE_OF[published]).gradient.upper()}"
    return method if published.network == "VGG-11" else f"{method}, {published.network}"


def _baseline(weights: str, time_steps: int) -> Row:
    return Row("cifar10", f"{weights} weights, OTTT", time_steps, None, None, f"cifar10-{weights}-ottt-t6")


ROWS = tuple(_rows())
"""Table 2, with baselines that the paper does not have."""

CONTROLS = tuple(
    Row("cifar10", _CONTROL, steps, None, None, f"cifar10-bso-t{steps}", ("gamma", _SMALL_GAMMA)) for steps in (2, 4, 6)
)
"""BSO with a threshold that suits it."""


def config_of(settings: Settings, row: Row) -> Config:
    """The row's own recipe, or at the small scale its method."""
    knob = dict([row.knob]) if row.knob else {}
    paper = dataclasses.replace(recipe(row.recipe), time_steps=row.time_steps)
    if settings.scale == "paper":
        return dataclasses.replace(paper, **knob)
    if row.recipe in COMPARED:
        steps = min(row.time_steps, _MOST_TIME_STEPS)
        return dataclasses.replace(scaled_down(settings, CIFAR10, row.recipe), time_steps=steps, **knob)
    fields = {name: getattr(paper, name) for name in _METHOD_FIELDS}
    config = config_at(settings, CIFAR10, row.recipe)
    return dataclasses.replace(config, time_steps=row.time_steps, **{**fields, **knob})


def tuned_rows(settings: Settings, rows: Sequence[Row]) -> tuple[list[Row], dict[str, dict[str, Any]]]:
    """The rows with the knob of each method, and how it was chosen: once, at the fewest time steps of the table.

    A converted network keeps the time steps that it needs.
    """
    _check(settings, rows)
    chosen: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.method not in chosen:
            first = _first_stage(settings, row)
            tried = row if first else row._replace(time_steps=_TUNED_AT)
            chosen[row.method] = tuned(settings, _run_name(tried), config_of(settings, tried), first)
    return [_with_knob(settings, row, chosen[row.method]) for row in rows], chosen


def _with_knob(settings: Settings, row: Row, knob: Mapping[str, Any]) -> Row:
    """The row with what was chosen, unless that is what it has anyway."""
    published = getattr(config_of(settings, row), knob["knob"])
    return row if knob["chosen"] == published else row._replace(knob=(knob["knob"], knob["chosen"]))


def train_rows(settings: Settings, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with what was trained, after it is known that all can be. Table 2 and Figure 5 share their runs."""
    _check(settings, rows)
    return [
        {**row._asdict(), **point}
        for row in rows
        for point in trained(settings, _run_name(row), config_of(settings, row), first=_first_stage(settings, row))
    ]


def _check(settings: Settings, rows: Sequence[Row]) -> None:
    """What a row begins with may still have to be trained, so each of the two is checked by itself."""
    firsts = [_first_stage(settings, row) for row in rows]
    alone = {_run_name(row): dataclasses.replace(config_of(settings, row), init_from="") for row in rows}
    check_all(settings, {**dict(first for first in firsts if first), **alone})


def _run_name(row: Row) -> str:
    knob = f"-{row.knob[1]:g}" if row.knob and row.method != _CONTROL else ""
    return re.sub(r"[^\w.-]+", "-", f"table2-{row.dataset}-{row.method}-t{row.time_steps}{knob}", flags=re.ASCII)


def _first_stage(settings: Settings, row: Row) -> tuple[str, Config] | None:
    """The name and the config of the run that a row begins with, if it does not begin from nothing."""
    if not recipe(row.recipe).init_from:
        return None
    name = recipe(row.recipe).init_from.removeprefix("runs/")
    return name, recipe(name) if settings.scale == "paper" else scaled_down(settings, CIFAR10, name)


def order_of_rules(points: list[dict[str, Any]]) -> list[str]:
    """Notes on whether T-BSO is above BSO at each T, and whether it still is with a smaller threshold."""
    by_rule = {(point["method"], point["time_steps"]): point["accuracies"] for point in points}
    notes = []
    for other, words in (("BSO", "The paper has T-BSO above BSO at each T."), (_CONTROL, _WHAT_THE_CONTROL_TELLS)):
        steps = sorted({steps for method, steps in by_rule if method == other})
        differences = [f"T = {t}: {_differences(by_rule['T-BSO', t], by_rule[other, t])}" for t in steps]
        if differences:
            notes.append(f"T-BSO minus {other}, in percent points, by seed: {'; '.join(differences)}. {words}")
    return notes


def _differences(ours: list[float | None], others: list[float | None]) -> str:
    """Of runs with the same seeds."""
    return ", ".join(
        "–" if a is None or b is None else f"{100 * (a - b):+z.2f}" for a, b in zip(ours, others, strict=True)
    )


SCALE = (
    "Ours is far below the paper's because of the scale: fewer images, a narrower and shallower network, a few epochs."
)
"""Why ours differs from the paper's."""
