"""`bsnn export`: a trained network as a model file, as C99, or as a page for a browser."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.atomic import check_writable, write_file
from bsnn.cli._model import open_model
from bsnn.cli._parser import Result, add_checkpoint, add_command, refuse_checkpoint
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.zoo.cards import find, names

_SHOWN = 10
"""Samples of a page, which are its golden vectors too."""


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "export", run, text)
    parser.add_argument(
        "path",
        metavar="RUN|MODEL",
        help="a run directory, or the name of a shipped model; for C and for a page also a model file",
    )
    parser.add_argument(
        "--format",
        choices=("bsnn", *_FORMATS),
        default="bsnn",
        help="model file (default), a folder of C99, or one HTML file that runs the network as WebAssembly",
    )
    parser.add_argument(
        "--out",
        metavar="PATH",
        help="where to write (RUN/model.bsnn or MODEL.bsnn; for C a folder, RUN/c or MODEL-c; for a page "
        "RUN/page.html or MODEL.html)",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="where the data is (by default where it was in training); for C and for a page, the source of the golden "
        "vectors",
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--compare", action="store_true", help="compare the network before and after on test samples; needs the data"
    )


def run(options: argparse.Namespace) -> Result:
    """Write a trained network as a model file, as C99 for a microcontroller, or as a page for a browser."""
    path = find(options.path)
    if options.format in _FORMATS:
        refuse_checkpoint(options)
        if options.compare:
            raise UserError(
                f"--compare: received it with --format {options.format}, whose golden vectors compare it with the "
                f"engine; expected a model file. To compare that with the run: bsnn export {options.path} --compare."
            )
        return _FORMATS[options.format](options, path)
    if options.path in names():
        return _copy_shipped(options, path)
    if path.is_file():
        raise UserError(
            f"{path}: received a file; expected a run directory (or, for a model file, --format c or wasm)."
        )
    out = Path(options.out or path / "model.bsnn")
    if options.out or path.is_dir():
        check_writable(out)
    compare = options.compare or bool(options.data)
    return need("bsnn.cli._runs").export_run(
        path, out, compare=compare, data=options.data, checkpoint=options.checkpoint
    )


def _export_c(options: argparse.Namespace, path: Path) -> Result:
    out = Path(options.out or (path / "c" if path.is_dir() else f"{Path(options.path).with_suffix('')}-c"))
    check_writable(out / "model.c", making_folders=True)
    engine = open_model(options.path)
    samples = need("bsnn.deploy.files").golden_samples(engine, options.data, 4) if options.data else None
    return need("bsnn.deploy.formats.c").export_c(engine.artifact, out, samples)


def _export_page(options: argparse.Namespace, path: Path) -> Result:
    out = Path(options.out or (path / "page.html" if path.is_dir() else f"{Path(options.path).with_suffix('')}.html"))
    _refuse_present(options, out)
    engine = open_model(options.path)
    samples = None
    if options.data:
        samples = need("bsnn.deploy.files").golden_samples(engine, options.data, _SHOWN)
    elif (engine.artifact.name, engine.artifact.input.shape) == ("digits", (1, 8, 8)):  # which come with the package
        digits = need("bsnn.data.bundled").digits("test")
        samples = digits.samples[[digits.labels.tolist().index(label) for label in range(10)]]
    return need("bsnn.deploy.formats.wasm").export_wasm(engine.artifact, out, samples)


_FORMATS = {"c": _export_c, "wasm": _export_page}
"""Those that are made of a model file."""


def _refuse_present(options: argparse.Namespace, out: Path) -> None:
    """Refuses to write over a file outside of a run whose name the user has not given."""
    if out.exists() and not options.out and not find(options.path).is_dir():
        raise UserError(f"{out} is there already; expected a free name. To replace it, give --out {out}.")
    check_writable(out)


def _copy_shipped(options: argparse.Namespace, path: Path) -> Result:
    """Writes the file of a shipped model where the user wants it."""
    refuse_checkpoint(options)
    if options.compare or options.data:
        raise UserError(
            f"--{'compare' if options.compare else 'data'}: received {options.path}, a shipped model; expected a run, "
            f"which holds the network to compare with. Its accuracy: bsnn models {options.path}."
        )
    out = Path(options.out or path.name)
    _refuse_present(options, out)
    content = path.read_bytes()
    write_file(out, content)
    return {"path": str(out), "bytes": len(content)}


def text(result: Result) -> str:
    """Words the result."""
    lines = [f"{result['path']}: {result['bytes']:,} bytes"]
    if "golden_vectors" in result:
        lines.append(
            f"  open it in a browser; it checks {result['golden_vectors']} golden vectors and needs no network access"
        )
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
        lines.append(
            f"  {result['flash_bytes']:,} bytes of flash ({result['constant_bytes']:,} of constants), "
            f"{result['ram_bytes']:,} bytes of RAM with the input; as a stream {result['stream_ram_bytes']:,}"
        )
        if result["front_ram_bytes"]:
            lines.append(
                f"  of them for the front end: {result['front_flash_bytes']:,} bytes of flash, "
                f"{result['front_ram_bytes']:,} of RAM"
            )
        if result["no_events"]:
            lines.append(f"  {result['no_events']}")
        lines.append(f"  {'layer':<28}{'flash':>12}{'RAM':>10}{'scratch':>10}")
        for layer in result["layers"]:
            numbers = (layer[key] for key in ("flash_bytes", "ram_bytes", "scratch_bytes"))
            flash, ram, scratch = (f"{number:,}" if number else "" for number in numbers)
            lines.append(f"  {layer['name']:<28}{flash:>12}{ram:>10}{scratch:>10}".rstrip())
    return "\n".join(lines)
