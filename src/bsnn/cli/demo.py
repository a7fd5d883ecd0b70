"""`bsnn demo`: from nothing to a trained and exported network in half a minute."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.atomic import check_writable
from bsnn.cli._parser import Result, add_command, count
from bsnn.extras import need
from bsnn.paper.recipes import recipe


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "demo", run, text)
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="seed of weights and batches (0)")
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="folder to write into (runs/demo)")


def run(options: argparse.Namespace) -> Result:
    """Train T-BSO on the bundled digits, in half a minute; export, check the export, report."""
    out = Path(options.out)
    check_writable(out / "model.bsnn", making_folders=True)
    return need("bsnn.cli._demo").run_demo(options.seed, out)


def text(result: Result) -> str:
    """Words the result."""
    config = recipe("digits")
    rates = ", ".join(f"{name} {rate:.0%}" for name, rate in result["firing_rates"].items())
    return (
        f"T-BSO on digits, {config.epochs} epochs, T = {config.time_steps}, seed {result['seed']}\n"
        f"  test accuracy    {result['test_accuracy']:.1%} of {result['samples']} images it has not seen, "
        f"after {result['train_seconds']:.0f} s of training\n"
        f"  model            {_kilobytes(result['model_bytes'])} with one-bit weights, "
        f"{_kilobytes(result['real_model_bytes'])} real-valued "
        f"({result['real_model_bytes'] / result['model_bytes']:.1f}× smaller)\n"
        f"  training memory  {_kilobytes(result['training_bytes'])} at its peak, "
        f"{_kilobytes(result['latent_bptt_training_bytes'])} with latent weights and BPTT "
        f"({result['latent_bptt_training_bytes'] / result['training_bytes']:.1f}× less)\n"
        f"  flips            {result['flip_ratio_first_epoch']:.2%} of the weights per update in the first "
        f"epoch, {result['flip_ratio_last_epoch']:.4%} in the last\n"
        f"  firing rates     {rates}\n"
        f"  exported         {result['model']}, {result['exported_accuracy']:.1%} without torch, "
        f"{result['exported_outputs_wrong']} outputs differ from the check in torch\n"
        f"                   try: bsnn inspect {result['model']}\n"
        f"  report           {result['report']}"
    )


def _kilobytes(number: int) -> str:
    return f"{number / 1000:,.0f} kB"
