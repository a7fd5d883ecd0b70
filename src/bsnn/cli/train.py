"""`bsnn train`: train a recipe, or a grid of its variations; every field of the recipe is an option."""

import argparse
import dataclasses
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bsnn.cli._fields import add_fields, given_fields, option, reader, refuse_for_other_data, refuse_unused
from bsnn.cli._parser import Result, add_budget, add_command, budget_of, count, real
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.paper.recipes import RECIPES, recipe
from bsnn.train.config import Config, config_of_run, data_of_run
from bsnn.train.devices import DEVICES, check_model
from bsnn.train.fields import written

_USAGE = (
    "bsnn train RECIPE [--data DIR] [--out RUN] [--resume] [--FIELD VALUE ...] [--ram SIZE] [--flash SIZE] "
    "[--sweep FIELD=V1,V2,...]"
)


def add(commands: Any, words: Sequence[str] = ()) -> None:
    """Adds the command; its help shows the numbers of the recipe that the command line names, if it names one."""
    parser = add_command(commands, "train", run, text)
    parser.usage = _USAGE
    parser.add_argument("recipe", metavar="RECIPE", help="one of those that `bsnn recipes` lists")
    parser.add_argument("--data", metavar="DIR", help="where the data is (by default what was downloaded before)")
    parser.add_argument("--out", metavar="RUN", help="run directory (runs/RECIPE, or the next free one)")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in RUN, bit for bit, with its own config"
    )
    parser.add_argument(
        "--sweep",
        metavar="FIELD=V1,V2,...",
        action="append",
        default=[],
        help="train a grid of values, one run each, and tabulate; repeat it for more fields",
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="cpu|cuda|cuda:N|mps|auto",
        help="what computes (auto: CUDA if it is there, else the CPU); under torchrun, cuda is one device per process",
    )
    parser.add_argument("--workers", type=count, default=0, metavar="N", help="processes that read files (0)")
    parser.add_argument(
        "--checkpoint-minutes",
        type=real,
        default=10.0,
        metavar="X",
        help="also save within an epoch after this many minutes (10)",
    )
    add_budget(parser.add_argument_group("a device: a network that does not fit is refused before it is trained"))
    named = next((word for word in words[1:] if word in RECIPES), None)
    add_fields(parser, recipe(named) if named else None)
    if named is None:
        parser.epilog = "`bsnn train RECIPE --help` shows the numbers of that recipe."


def run(options: argparse.Namespace) -> Result:
    """Train a recipe; every number in it can be set."""
    given = given_fields(options)
    grid = _grid(options.sweep)
    for name in given.keys() & grid.keys():
        raise UserError(f"{option(name)}: --sweep {name} gives its values; expected one of the two. Leave one out.")
    named = recipe(options.recipe)
    first = {**given, **{name: values[0] for name, values in grid.items()}}
    check_model(options.recipe, first)
    if not options.resume:
        dataclasses.replace(named, **first)  # refuses wrong values before torch is imported
    default_out = need("bsnn.train.run").default_out
    name = f"{options.recipe}-sweep" if grid else options.recipe
    # A sweep goes on by itself, so its folder is always the same one.
    out = Path(options.out) if options.out else Path("runs", name) if grid else default_out(name, resume=options.resume)
    resumed = _resumed(out, named, given, options.recipe) if options.resume and not grid else None
    config = dataclasses.replace(resumed or named, **first)
    points = [point for _, point in need("bsnn.train.sweep").grid_points(config, grid)] if grid else [config]
    refuse_unused(points, given)
    refuse_for_other_data(config, given, options.data)
    if options.checkpoint_minutes < 0:
        raise UserError(f"--checkpoint-minutes: received {options.checkpoint_minutes}; expected 0 or more.")
    if "LOCAL_RANK" in os.environ and not options.out:
        raise UserError("--out: received none; under torchrun all processes need the same one. Give --out RUN.")
    budget = budget_of(options)
    # A run that goes on has its network already.
    limited = (options.recipe in DEVICES and resumed is None) or options.ram is not None or options.flash is not None
    if grid and limited:
        raise UserError("--sweep: received with --ram or --flash, which are for one run; leave one of them out.")
    figures = {}
    if limited:
        data = options.data or (data_of_run(out) if options.resume else None)
        going_on = out if resumed else None
        config, device = need("bsnn.cli._untrained").fitted(options.recipe, config, given, budget, data, going_on)
        need("bsnn.train.display").report(budget.told(device))
        figures = {"device": device.figures()}
    shared = {name: getattr(options, name) for name in ("data", "workers", "checkpoint_minutes", "device")}
    notice = need("bsnn.cli._runs").DeploymentNotice()
    shared["callbacks"] = [notice]
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        if grid:
            result = need("bsnn.train.sweep").sweep(config, grid, out, **shared)
            finished = [point["run"] for point in result["points"] if "error" not in point]
        else:
            result = need("bsnn.train.loop").train(config, out, resume=options.resume, **shared) | figures
            finished = [result["run"]]
        for path in map(Path, finished):
            _write_model(path, notice)
        return result
    except KeyboardInterrupt:
        saved = any(out.rglob("*.ckpt"))
        options.after_interrupt = (
            "; what was saved is intact, go on with --resume" if saved else "; nothing was saved yet"
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _resumed(out: Path, config: Config, given: Mapping[str, Any], name: str) -> Config | None:
    """The config of the run to go on with; None if there is no run, or its config cannot be read.

    Args:
        out: The run directory.
        config: That of the recipe.
        given: What the command line says of its fields; what contradicts the run is refused when it is loaded.
        name: The recipe.
    """
    saved = config_of_run(out)
    if saved is None:
        return None
    dataset = given.get("dataset", config.dataset)
    if saved.dataset != dataset:
        raise UserError(
            f"{out}: the run there trains on {saved.dataset}, not on {dataset}; give the recipe and the --dataset that "
            "it was started with, or choose another --out."
        )
    names = [field.name for field in dataclasses.fields(Config) if field.name not in given]
    own = [name for name in names if getattr(saved, name) != getattr(config, name)]
    if own:
        words = ", ".join(f"{option(name)} {written(getattr(saved, name))}" for name in own)
        need("bsnn.train.display").report(f"going on with what {out} has beyond the recipe {name}: {words}")
    return saved


def _write_model(path: Path, notice: Any) -> None:
    """Makes the model file of a finished run, unless it is there and no checkpoint is newer.

    A network without a deployed form is still trained.
    """
    out = path / "model.bsnn"
    saved = max(file.stat().st_mtime_ns for file in (path / "checkpoints").iterdir())
    if os.environ.get("RANK", "0") != "0" or (out.exists() and out.stat().st_mtime_ns >= saved):
        return
    try:
        need("bsnn.cli._runs").export_run(path, out)
    except UserError as error:
        notice.tell(error)


def _terminated(*_: object) -> NoReturn:
    """Ends training on SIGTERM, which torchrun and cluster managers send, just as Ctrl-C does."""
    raise KeyboardInterrupt(signal.SIGTERM)


def _grid(lines: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each field that `--sweep` names."""
    grid: dict[str, list[Any]] = {}
    for line in lines:
        name, values = grid_line(line)
        if name in grid:
            raise UserError(f"--sweep: received {name} twice; give all its values at once, as {name}=V1,V2.")
        grid[name] = values
    return grid


def grid_line(text: str) -> tuple[str, list[Any]]:
    """Reads FIELD=V1,V2,...; values that hold commas are separated by semicolons.

    Example:
        >>> grid_line("plan=32,pool,64;8")
        ('plan', [(32, 'pool', 64), (8,)])
    """
    name, _, values = text.partition("=")
    found = {field.name: field for field in dataclasses.fields(Config)}.get(name.strip().replace("-", "_"))
    if found is None or not values:
        raise UserError(f"--sweep: received {text!r}; expected FIELD=V1,V2,... with a field of the recipe.")
    read, _ = reader(found)
    try:
        return found.name, [read(value) for value in values.split(";" if ";" in values else ",")]
    except argparse.ArgumentTypeError as error:
        raise UserError(f"--sweep {found.name}: {error}.") from error


def text(result: Result) -> str:
    """Words the result."""
    if "points" in result:
        return f"{need('bsnn.train.sweep').table(result)}\n\nin {result['sweep']} (sweep.json, sweep.md)"
    keys = [key for key in ("test_accuracy", "validation_accuracy") if result.get(key) is not None]
    accuracies = ", ".join(f"{key.replace('_', ' ')} {result[key]:.4f}" for key in keys)
    if result["selected_by"] != "last":
        accuracies += f" in epoch {result['selected_epoch']}, the best by {result['selected_by']} accuracy,"
    if result["finished_before"]:
        return f"{result['run']} was finished already: {accuracies.rstrip(',')}"
    of_teacher = f" after the teacher's {result['teacher_seconds'] / 60:.1f}" if "teacher_seconds" in result else ""
    return (
        f"{accuracies} after {result['epochs']} epoch{'s' * (result['epochs'] > 1)} and "
        f"{result['train_seconds'] / 60:.1f} minutes{of_teacher}, {result['peak_bytes'] / 1e9:.2f} GB at most; in "
        f"{result['run']}" + (f"\nstopped: {result['stopped']}" if "stopped" in result else "")
    )
