"""Seconds an image takes in the engine, against the best eager torch, as `bsnn bench inference` measures it.

    python benchmarks/inference.py [--model FILE [--data DIR]] [--repetitions 5] [--threads 1 2]

Writes results/inference.json. `ratio` is of wall-clock medians; `cpu_ratio` is of the processor time of the process,
which means more where other work shares the machine; `load_average` tells.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from bsnn.bench.inference import THREADS, bench_inference, inference_text, test_images
from bsnn.deploy.engine import load
from bsnn.deploy.engine.native import libraries

RESULTS = Path(__file__).parent / "results" / "inference.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="also a trained network")
    parser.add_argument("--data", type=Path, help="a data set whose test images it is shown")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=list(THREADS), help="of both")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    model = load(options.model).artifact if options.model else None
    kernels = [name for name in libraries() if name != "baseline"] or ["auto"]
    images = test_images(options.data) if options.data else None
    result = bench_inference(model, images, repetitions=options.repetitions, threads=options.threads, kernels=kernels)
    result["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(inference_text(result))


if __name__ == "__main__":
    main()
