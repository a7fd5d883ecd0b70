"""`bsnn export`: a trained network as a model file, or as C99."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.atomic import check_writable, write_file
from bsnn.cli._model import open_model
from bsnn.cli._parser import Result, add_checkpoint, add_command, refuse_checkpoint
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.zoo.cards import find, names


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "export", run, text)
    parser.add_argument(
        "path", metavar="RUN|MODEL", help="a run directory, or the name of a shipped model; for C also a model file"
    )
    parser.add_argument(
        "--format", choices=("bsnn", "c"), default="bsnn", help="model file (default), or a folder of C99"
    )
    parser.add_argument(
        "--out", metavar="PATH", help="where to write (RUN/model.bsnn or MODEL.bsnn; for C a folder, RUN/c or MODEL-c)"
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="where the data is (by default where it was in training); for C, the source of the golden vectors",
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--compare", action="store_true", help="compare the network before and after on test samples; needs the data"
    )


def run(options: argparse.Namespace) -> Result:
    """Write a trained network as a model file that runs without torch, or as C99 for a microcontroller."""
    path = find(options.path)
    if options.format == "c":
        refuse_checkpoint(options)
        out = Path(options.out or (path / "c" if path.is_dir() else f"{Path(options.path).with_suffix('')}-c"))
        check_writable(out / "model.c", making_folders=True)
        engine = open_model(options.path)
        samples = need("bsnn.deploy.files").golden_samples(engine, options.data, 4) if options.data else None
        return need("bsnn.deploy.formats.c").export_c(engine.artifact, out, samples)
    if options.path in names():
        return _copy_shipped(options, path)
    if path.is_file():
        raise UserError(f"{path}: received a file; expected a run directory (or, for a model file, --format c).")
    out = Path(options.out or path / "model.bsnn")
    if options.out or path.is_dir():
        check_writable(out)
    compare = options.compare or bool(options.data)
    return need("bsnn.cli._runs").export_run(
        path, out, compare=compare, data=options.data, checkpoint=options.checkpoint
    )


def _copy_shipped(options: argparse.Namespace, path: Path) -> Result:
    """Writes the file of a shipped model where the user wants it."""
    refuse_checkpoint(options)
    if options.compare or options.data:
        raise UserError(
            f"--{'compare' if options.compare else 'data'}: received {options.path}, a shipped model; expected a run, "
            f"which holds the network to compare with. Its accuracy: bsnn evaluate {options.path} --data DIR."
        )
    out = Path(options.out or path.name)
    if out.exists() and not options.out:
        raise UserError(f"{out} is there already; expected a free name. To replace it, give --out {out}.")
    check_writable(out)
    content = path.read_bytes()
    write_file(out, content)
    return {"path": str(out), "bytes": len(content)}


def text(result: Result) -> str:
    """Words the result."""
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
        lines.append(
            f"  {result['flash_bytes']:,} bytes of flash ({result['constant_bytes']:,} of constants), "
            f"{result['ram_bytes']:,} bytes of RAM with the input; as a stream {result['stream_ram_bytes']:,}"
        )
        if result["sound_ram_bytes"]:
            lines.append(
                f"  with the front end, which takes samples: {result['sound_flash_bytes']:,} bytes of flash, "
                f"{result['sound_ram_bytes']:,} of RAM"
            )
        lines.append(f"  {'layer':<28}{'flash':>12}{'RAM':>10}{'scratch':>10}")
        for layer in result["layers"]:
            numbers = (layer[key] for key in ("flash_bytes", "ram_bytes", "scratch_bytes"))
            flash, ram, scratch = (f"{number:,}" if number else "" for number in numbers)
            lines.append(f"  {layer['name']:<28}{flash:>12}{ram:>10}{scratch:>10}".rstrip())
    return "\n".join(lines)
