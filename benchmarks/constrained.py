"""How near CBP's weights end to ±a, and what quantizing them costs, for runs of its second stage.

    python benchmarks/constrained.py RUN... [--data DIR]

Such runs are those of `bsnn train cifar10-cbp-small`, or below the runs of `bsnn reproduce table2` in
small-table2-cifar10-CBP-VGG-16-t32*/seed=*. Each network is evaluated on all test images with its weights quantized to
a·sign(w), as it computes, and with the weights w themselves. Writes results/constrained.json.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch

import bsnn
from bsnn.data.loader import Loader
from bsnn.errors import UserError
from bsnn.nn.binarized import ConstrainedConv2d
from bsnn.train.build import load_test_set
from bsnn.train.config import data_of_run
from bsnn.train.load import load_network

RESULTS = Path(__file__).parent / "results" / "constrained.json"
NEAR = 0.05


def measured(run: Path, data: str | None) -> dict[str, Any]:
    """The share of weights within 5 % of ±a, and both accuracies."""
    trained = load_network(run)
    layers = [module for module in trained.net.modules() if isinstance(module, ConstrainedConv2d)]
    if not layers or not all(layer.scale > 0 for layer in layers):
        raise UserError(f"{run}: its weights are not constrained; expected a run of CBP's second stage.")
    near = torch.cat([((layer.weight.abs() / layer.scale - 1).abs() < NEAR).flatten() for layer in layers])
    test_set = load_test_set(trained.config, data or data_of_run(run))
    loader = Loader(test_set, trained.config.batch_size)
    quantized = bsnn.evaluate(trained.net, loader.ordered(), trained.time_steps).accuracy
    for layer in layers:
        layer.scale.zero_()  # then it computes with the weights as they are
    real = bsnn.evaluate(trained.net, loader.ordered(), trained.time_steps).accuracy
    return {
        "run": run.parent.name + "/" + run.name,
        "time_steps": trained.time_steps,
        "weights": near.numel(),
        "share_near_a": near.float().mean().item(),
        "accuracy_quantized": quantized,
        "accuracy_of_the_weights_themselves": real,
        "points_lost": 100 * (real - quantized),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--data", metavar="DIR", help="where the data is, if not where the run had it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(run, options.data) for run in options.runs]
    result = {
        "near": NEAR,
        "runs": rows,
        "machine": f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}",
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['run']}: {100 * row['share_near_a']:.2f} % of {row['weights']:,} weights within {100 * NEAR:.0f} % "
            f"of ±a; quantizing loses {row['points_lost']:+.2f} points ({row['accuracy_quantized']:.4f})"
        )


if __name__ == "__main__":
    main()
