"""The command `bsnn`: parse, call, print.

Results go to standard output (with `--json` as one JSON object on one line), everything else to standard
error. Exit status: 0 done, 2 the user's mistake (one line, no traceback), 1 our fault.
"""

import argparse
import dataclasses
import io
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import bsnn
from bsnn.atomic import check_writable
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.paper.markdown import markdown_table
from bsnn.paper.recipes import RECIPES, recipe
from bsnn.train.config import Config, choices_of, data_of_run, written

_OPTION = re.compile(r"^--\w+")


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try {self.prog} --help)\n")


def _parser(shown: Config | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; the help of `train` shows the numbers of a config as defaults."""
    parser = _Parser(prog="bsnn", description="Train binary spiking networks in constant memory.")
    parser.add_argument("--version", action="version", version=f"bsnn {bsnn.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo = _command(commands, "demo", _demo, _describe_demo)
    demo.add_argument("--seed", type=_whole, default=0, metavar="N", help="seed of weights and batches (0)")
    demo.add_argument("--out", metavar="DIR", default="runs/demo", help="folder to write into (runs/demo)")

    data = _command(commands, "data", _data, _data_text)
    data.add_argument("root", metavar="DIR", help="a folder of data, or an archive of a known set")
    data.add_argument("--plot", metavar="FILE", help="draw a contact sheet (.png, .pdf or .svg)")

    _command(commands, "recipes", _recipes, _recipes_text)

    train = _command(commands, "train", _train, _train_text)
    train.usage = "bsnn train RECIPE [--data DIR] [--out RUN] [--resume] [--FIELD VALUE ...] [--sweep FIELD=V1,V2,...]"
    train.add_argument("recipe", metavar="RECIPE", help="one of those that `bsnn recipes` lists")
    train.add_argument("--data", metavar="DIR", help="where the data is (by default what was downloaded before)")
    train.add_argument("--out", metavar="RUN", help="run directory (runs/RECIPE, or the next free one)")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint in RUN, bit for bit")
    train.add_argument(
        "--sweep",
        metavar="FIELD=V1,V2,...",
        action="append",
        default=[],
        help="train a grid of values, a run each, and tabulate; repeat it for more fields",
    )
    train.add_argument("--workers", type=_whole, default=0, metavar="N", help="processes that read files (0)")
    train.add_argument(
        "--checkpoint-minutes",
        type=_real,
        default=10.0,
        metavar="X",
        help="also save within an epoch after so many minutes (10)",
    )
    _add_fields(train, shown)

    evaluate = _command(commands, "evaluate", _evaluate, _evaluate_text)
    evaluate.add_argument("path", metavar="RUN|MODEL", help="a run directory, or a model file")
    evaluate.add_argument("--data", metavar="DIR", help="where the data is (by default where it was in training)")

    export = _command(commands, "export", _export, _export_text)
    export.add_argument("path", metavar="RUN|MODEL", help="a run directory; for C also a model file")
    export.add_argument(
        "--format", choices=("bsnn", "c"), default="bsnn", help="model file (default), or a folder of C99"
    )
    export.add_argument("--out", metavar="PATH", help="where to write (RUN/model.bsnn, or a folder RUN/c or MODEL-c)")
    export.add_argument(
        "--data",
        metavar="DIR",
        help="where the data is (by default where it was in training); for C, golden vectors of it",
    )

    predict = _command(commands, "predict", _predict, _predict_text)
    predict.add_argument("path", metavar="MODEL", help="a model file, a run directory, or `digits` for the one shipped")
    predict.add_argument("inputs", metavar="INPUT", nargs="+", help="pictures, sounds, recordings, .npy, or a folder")

    inspect = _command(commands, "inspect", _inspect, _inspect_text)
    inspect.add_argument("path", metavar="RUN|MODEL", help="a model file, a run directory, or `digits`")

    bench = commands.add_parser("bench", help="Measure memory and speed here.", description="Measure here.")
    benches = bench.add_subparsers(metavar="WHAT", required=True)
    for what, lengths in (("memory", [1, 35, 1000]), ("training", [])):
        update = _command(benches, what, _bench, _bench_text)
        update.set_defaults(what=what)
        update.add_argument("--batch", type=_whole, nargs="+", default=[32, 128], metavar="N", help="sizes (32 128)")
        update.add_argument("--time-steps", type=_whole, nargs="+", default=[4], metavar="T", help="lengths (4)")
        update.add_argument(
            "--lengths",
            type=_whole,
            nargs="*",
            default=lengths,
            metavar="T",
            help=f"of T-BSO and BPTT at a batch of 2, against T = 1 ({' '.join(map(str, lengths)) or 'none'})",
        )
        update.add_argument("--width", type=_real, default=1.0, metavar="X", help="factor on VGG-11's channels (1.0)")
        update.add_argument("--threads", type=_whole, default=2, metavar="N", help="threads of torch (2)")
        update.add_argument("--repetitions", type=_whole, default=5, metavar="N", help="processes a configuration (5)")
        update.add_argument("--methods", nargs="+", metavar="NAME", help="some of those that are compared (all)")
        update.add_argument("--peers", metavar="PYTHON", help="python of an environment that has SpikingJelly")
    inference = _command(benches, "inference", _bench_inference, _bench_inference_text)
    inference.add_argument(
        "--model", metavar="RUN|MODEL", help="also a trained network: a model file, or a run directory"
    )
    inference.add_argument("--data", metavar="DIR", help="a data set whose test images it is shown (random numbers)")

    report = _command(commands, "report", _report, _report_text)
    report.add_argument("runs", metavar="RUN", nargs="+", help="run directories")
    report.add_argument("--out", metavar="FILE", help="the page (report.html in the run, or here for several)")
    report.add_argument("--data", metavar="DIR", help="where the data is (by default where it was in training)")

    reproduce = _command(commands, "reproduce", _reproduce, _reproduce_text)
    reproduce.add_argument("name", metavar="NAME", help="table1 to table5, figure3 to figure5, ...")
    reproduce.add_argument("--scale", choices=("small", "paper", "smoke"), default="small", help="(small)")
    reproduce.add_argument("--data", metavar="DIR", help="where the data is (by default what was downloaded before)")
    reproduce.add_argument("--results", metavar="DIR", default="results", help="where NAME.json goes (results)")
    reproduce.add_argument("--runs", metavar="DIR", default="runs/reproduce", help="where runs go (runs/reproduce)")
    return parser


def _add_fields(train: argparse.ArgumentParser, shown: Config | None) -> None:
    """Adds an option for each field of a recipe, with type, choices and help from the config itself."""
    group: Any = train
    for field in dataclasses.fields(Config):
        if field.metadata["heading"]:
            group = train.add_argument_group(field.metadata["heading"])
        read, metavar = _reader(field)
        default = "" if shown is None else f" ({written(getattr(shown, field.name))})"
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=f"field_{field.name}",
            type=read,
            help=f"{field.metadata['help']}{default}".replace("%", "%%"),
            default=argparse.SUPPRESS,
            choices=choices_of(field) or None,
            metavar=metavar,
        )
    if shown is None:
        train.epilog = "`bsnn train RECIPE --help` shows the numbers of that recipe."


def _data(options: argparse.Namespace) -> dict[str, Any]:
    """Says what data is in a folder: kind, classes, counts, shape, mean and deviation."""
    if options.plot:
        check_writable(Path(options.plot))
    return need("bsnn.data.description").describe(options.root, options.plot)


def _data_text(result: dict[str, Any]) -> str:
    return need("bsnn.data.description").describe_text(result)


def _reader(field: dataclasses.Field) -> tuple[Callable[[str], Any], str | None]:
    """How to read a field from text, and what stands for its value in the help."""
    if choices_of(field):
        return str, None
    readers: dict[Any, tuple[Callable[[str], Any], str]] = {
        int: (_integer, "N"),
        float: (_real, "X"),
        bool: (_yes_or_no, "yes|no"),
        str: (str, "PATH"),
    }
    return readers.get(field.type, (_plan, "C1,C2,..."))


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number") from None


def _real(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a number such as 5e-7")
    return value


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no", "true", "false"):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected yes or no")
    return text.lower() in ("yes", "true")


def _plan(text: str) -> tuple[int | str, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(part != "pool" and not (part.isdigit() and int(part)) for part in parts):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected channels and pools, as 32,64,pool,128")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _recipes(options: argparse.Namespace) -> dict[str, Any]:
    """What can be trained: the paper's runs and their small versions."""
    return {
        "recipes": [
            {"name": name, "help": entry.description, **dataclasses.asdict(entry.config)}
            for name, entry in RECIPES.items()
        ]
    }


def _recipes_text(result: dict[str, Any]) -> str:
    width = max(len(entry["name"]) for entry in result["recipes"])
    groups: dict[str, list[str]] = {"For two CPU cores:": []}
    for entry in result["recipes"]:
        small = entry["name"].endswith("-small") or entry["name"] in ("digits", "folder")
        heading = "For two CPU cores:" if small else f"The paper's, on {entry['dataset']}:"
        groups.setdefault(heading, []).append(f"  {entry['name']:{width}}  {entry['help']}")
    advice = "Train one with: bsnn train NAME --data DIR. Its numbers: bsnn train NAME --help"
    return "\n".join(f"{heading}\n" + "\n".join(lines) + "\n" for heading, lines in groups.items()) + f"\n{advice}"


def _train(options: argparse.Namespace) -> dict[str, Any]:
    """Train a recipe; every number of it can be set."""
    given = {key.removeprefix("field_"): value for key, value in vars(options).items() if key.startswith("field_")}
    config = dataclasses.replace(recipe(options.recipe), **given)
    grid: dict[str, list[Any]] = {}
    for text in options.sweep:
        name, values = _grid_line(text)
        if name in grid:
            raise UserError(f"--sweep: received {name} twice; give all its values at once, as {name}=V1,V2.")
        grid[name] = values
    if options.data and config.dataset == "digits":
        raise UserError(f"--data: received {options.data}; the digits come with bsnn. For own data: bsnn train folder.")
    if options.checkpoint_minutes < 0:
        raise UserError(f"--checkpoint-minutes: received {options.checkpoint_minutes}; expected 0 or more.")
    if "LOCAL_RANK" in os.environ and not options.out:
        raise UserError("--out: received none; under torchrun all processes need the same one. Give --out RUN.")
    default_out = need("bsnn.train.run").default_out
    name = f"{options.recipe}-sweep" if grid else options.recipe
    # A sweep goes on by itself, so its folder is always the same one.
    out = Path(options.out) if options.out else Path("runs", name) if grid else default_out(name, resume=options.resume)
    shared = {"data": options.data, "workers": options.workers, "checkpoint_minutes": options.checkpoint_minutes}
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        if grid:
            return need("bsnn.train.sweep").sweep(config, grid, out, **shared)
        return need("bsnn.train.loop").train(config, out, resume=options.resume, **shared)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(*_: object) -> NoReturn:
    """Ends a training on SIGTERM, which torchrun and cluster managers send, as Ctrl-C does."""
    raise KeyboardInterrupt(signal.SIGTERM)


def _grid_line(text: str) -> tuple[str, list[Any]]:
    """The field and the values of FIELD=V1,V2,...; values that hold commas are separated by semicolons."""
    name, _, values = text.partition("=")
    found = {field.name: field for field in dataclasses.fields(Config)}.get(name.strip().replace("-", "_"))
    if found is None or not values:
        raise UserError(f"--sweep: received {text!r}; expected FIELD=V1,V2,... with a field of the recipe.")
    read, _ = _reader(found)
    try:
        return found.name, [read(value) for value in values.split(";" if ";" in values else ",")]
    except argparse.ArgumentTypeError as error:
        raise UserError(f"--sweep {found.name}: {error}.") from error


def _train_text(result: dict[str, Any]) -> str:
    if "points" in result:
        return f"{need('bsnn.train.sweep').table(result)}\n\nin {result['sweep']} (sweep.json, sweep.md)"
    if result["finished_before"]:
        return f"{result['run']} was finished already: test accuracy {result['test_accuracy']:.4f}"
    return (
        f"test accuracy {result['test_accuracy']:.4f} after {result['epochs']} epochs and "
        f"{result['train_seconds'] / 60:.1f} minutes, {result['peak_bytes'] / 1e9:.2f} GB at most; in {result['run']}"
    )


def _evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Test accuracy of a trained run, or of a model file."""
    if _is_model(options.path):
        data = options.data or data_of_run(Path(options.path).parent)
        return need("bsnn.deploy.files").evaluate_model(_model(options.path), data)
    return need("bsnn.train.loop").evaluate_run(Path(options.path), options.data)


def _evaluate_text(result: dict[str, Any]) -> str:
    return f"test accuracy {result['test_accuracy']:.4f} on {result['samples']} samples"


def _is_model(path: str) -> bool:
    return (path == "digits" and not Path(path).exists()) or Path(path).is_file()


def _model(path: str) -> Any:
    """The engine of a model file, of a run that holds one, or of the model that ships with the package."""
    if path == "digits" and not Path(path).exists():
        return bsnn.load(bsnn.digits_model())
    if Path(path).is_dir() and not (Path(path) / "model.bsnn").exists():
        raise UserError(f"{path} holds no model.bsnn; make it with: bsnn export {path}")
    return bsnn.load(path)


def _export(options: argparse.Namespace) -> dict[str, Any]:
    """Write a trained network as a model file that runs without torch, or as C99 for a microcontroller."""
    path = Path(options.path)
    if options.format == "c":
        out = Path(options.out or (path / "c" if path.is_dir() else f"{path.with_suffix('')}-c"))
        check_writable(out / "model.c", making_folders=True)
        engine = _model(options.path)
        samples = need("bsnn.deploy.files").held_out_samples(engine, options.data, 4) if options.data else None
        return need("bsnn.deploy.formats.c").export_c(engine.artifact, out, samples)
    if _is_model(options.path):
        raise UserError(f"{path}: received a file; expected a run directory (or, for a model file, --format c).")
    out = Path(options.out or path / "model.bsnn")
    if options.out or path.is_dir():
        check_writable(out)
    return need("bsnn.train.loop").export_run(path, out, options.data)


def _export_text(result: dict[str, Any]) -> str:
    lines = [f"{result['path']}: {result['bytes']:,} bytes"]
    if "samples" in result:
        worst = max(result["spikes_changed"].values(), default=0.0)
        lines.append(
            f"  of {result['samples']} test samples {result['predictions_changed']} got another class; accuracy "
            f"{result['accuracy_before']:.4f} before, {result['accuracy_after']:.4f} after; at most {worst:.3%} of the "
            "spikes of a layer changed"
        )
        cut = {name: share for name, share in result["currents_cut"].items() if share}
        if cut:
            worst = max(cut, key=lambda name: cut[name])
            lines.append(f"  warning: {cut[worst]:.3%} of the currents that enter {worst} are cut to 16 bits")
    if "ram_bytes" in result:
        lines.append(f"  {result['flash_bytes']:,} bytes of constants, {result['ram_bytes']:,} bytes of memory")
    return "\n".join(lines)


def _predict(options: argparse.Namespace) -> dict[str, Any]:
    """Say what a deployed network sees in pictures, sounds, event recordings or arrays."""
    paths = [Path(text) for text in options.inputs]
    return {"predictions": need("bsnn.deploy.files").predict_files(_model(options.path), paths)}


def _predict_text(result: dict[str, Any]) -> str:
    lines = result["predictions"]
    width = max(len(line["input"]) for line in lines)
    return "\n".join(f"{line['input']:<{width}}  {line['label']}  {line['share']:.0%}" for line in lines)


def _bench_inference(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds an image takes, against the best eager torch, at several firing rates."""
    model = None if options.model is None else _model(options.model).artifact
    if options.data is not None and model is None:
        raise UserError("bench inference: received --data without --model; expected the network that it is for.")
    bench = need("bsnn.bench.inference")
    return bench.bench_inference(model, None if options.data is None else bench.test_images(options.data))


def _bench_inference_text(result: dict[str, Any]) -> str:
    return need("bsnn.bench.inference").inference_text(result)


def _inspect(options: argparse.Namespace) -> dict[str, Any]:
    """Say what a deployed network costs by layer: weights, bytes, firing rate, operations, energy."""
    return need("bsnn.deploy.inspection").inspect(_model(options.path).artifact)


def _inspect_text(result: dict[str, Any]) -> str:
    return need("bsnn.deploy.inspection").inspect_text(result)


def _report(options: argparse.Namespace) -> dict[str, Any]:
    """One HTML page of one or more runs: curves, flips, firing rates, memory, confusions, commands."""
    runs = [Path(run) for run in options.runs]
    out = Path(options.out or (runs[0] / "report.html" if len(runs) == 1 else "report.html"))
    if options.out or out.parent.is_dir():
        check_writable(out)
    return need("bsnn.report").write_report(runs, out, options.data)


def _reproduce(options: argparse.Namespace) -> dict[str, Any]:
    """Measure a table or figure of the paper again, or try its theory.

    table1 to table5, figure3 to figure5; gradients: online rules beside BPTT, by layer and time step; regret: the
    growth of regret beside the claimed one; ablation: what drives the result. At scale `small` each is done within
    an hour on two CPU cores.
    """
    results = Path(options.results)
    check_writable(results / f"{options.name}.json", making_folders=True)
    reproduce = need("bsnn.paper").reproduce
    return reproduce(options.name, results, scale=options.scale, data=options.data, runs=Path(options.runs))


def _reproduce_text(result: dict[str, Any]) -> str:
    tables = [f"{part['caption']}\n\n{markdown_table(part['columns'], part['rows'])}" for part in result["tables"]]
    return "\n\n".join([result["title"], result["ran"], *tables, *result["notes"], result["path"]])


def _report_text(result: dict[str, Any]) -> str:
    return "\n".join([*result["notes"], f"{result['path']}, {result['bytes'] / 1000:.0f} kB"])


def _bench(options: argparse.Namespace) -> dict[str, Any]:
    """Memory and time of an online update, each configuration in a process of its own."""
    training = need("bsnn.bench.training")
    return training.bench(
        options.methods or training.METHODS,
        options.batch,
        options.time_steps,
        lengths=options.lengths,
        width=options.width,
        threads=options.threads,
        repetitions=options.repetitions,
        sequences=1 if options.what == "training" else 0,
        peers=options.peers,
    )


def _bench_text(result: dict[str, Any]) -> str:
    return need("bsnn.bench.training").describe(result)


def _demo(options: argparse.Namespace) -> dict[str, Any]:
    """Train T-BSO on the bundled digits, in half a minute; export, check the export, report."""
    out = Path(options.out)
    check_writable(out / "model.bsnn", making_folders=True)
    return need("bsnn.cli.demo").run_demo(options.seed, out)


def _describe_demo(result: dict[str, Any]) -> str:
    return need("bsnn.cli.demo").describe_demo(result)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number, 0 or more")
    return int(text)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], dict[str, Any]], text: Callable[[dict], str]
) -> argparse.ArgumentParser:
    """Adds a command: `run` computes a JSON-ready result, `text` words it for a person."""
    parser = commands.add_parser(name, help=(run.__doc__ or "").splitlines()[0], description=run.__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.set_defaults(run=run, text=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    # Names of files need not be text; what standard output cannot write is escaped there, as on standard error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if arguments is None else list(arguments)
    # A field may be written as in the config, --time_steps, or as is usual for options, --time-steps.
    given = [_OPTION.sub(lambda match: match[0].replace("_", "-"), argument, count=1) for argument in given]
    named = next((word for word in given[1:] if word in RECIPES), None)
    options = _parser(recipe(named) if named else None).parse_args(given)
    try:
        result = options.run(options)
    except (UserError, OSError) as error:
        print(f"bsnn: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        hint = "; what was saved is intact, go on with --resume" if options.run is _train else ""
        what, number = ("terminated", signal.SIGTERM) if stop.args else ("interrupted", signal.SIGINT)
        print(f"bsnn: {what}{hint}", file=sys.stderr)
        return 128 + number
    # Under torchrun, the first process speaks for all.
    if os.environ.get("RANK", "0") == "0":
        try:
            print(json.dumps(result) if options.json else options.text(result), flush=True)
        except BrokenPipeError:  # as in `bsnn recipes | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            print(f"bsnn: the result cannot be written ({error.strerror or error})", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 2
    return 0
