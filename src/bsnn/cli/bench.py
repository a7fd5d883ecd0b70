"""`bsnn bench`: memory and speed on this machine."""

import argparse
from collections.abc import Callable
from typing import Any

from bsnn.cli._model import MODEL_HELP, open_model
from bsnn.cli._parser import Result, add_command, count, real
from bsnn.errors import UserError
from bsnn.extras import need


def add(commands: Any) -> None:
    """Adds the commands `bench memory`, `bench training` and `bench inference`."""
    parser = commands.add_parser("bench", help="Measure memory and speed here.", description="Measure here.")
    benches = parser.add_subparsers(metavar="WHAT", required=True)
    _add_update(benches, "memory", run_memory, lengths=[1, 35, 1000])
    _add_update(benches, "training", run_training, lengths=[])
    inference = add_command(benches, "inference", run_inference, text_inference)
    inference.add_argument("--model", metavar="RUN|MODEL", help=f"also a trained network: {MODEL_HELP}")
    inference.add_argument("--data", metavar="DIR", help="show it the test images of this data set (random numbers)")


def _add_update(benches: Any, what: str, run: Callable[[argparse.Namespace], Result], *, lengths: list[int]) -> None:
    update = add_command(benches, what, run, text)
    update.add_argument("--batch", type=count, nargs="+", default=[32, 128], metavar="N", help="sizes (32 128)")
    update.add_argument("--time-steps", type=count, nargs="+", default=[4], metavar="T", help="lengths (4)")
    update.add_argument(
        "--lengths",
        type=count,
        nargs="*",
        default=lengths,
        metavar="T",
        help=f"also T-BSO and BPTT at batch size 2, compared with T = 1 ({' '.join(map(str, lengths)) or 'none'})",
    )
    update.add_argument("--width", type=real, default=1.0, metavar="X", help="factor on VGG-11's channels (1.0)")
    update.add_argument("--threads", type=count, default=2, metavar="N", help="threads of torch (2)")
    update.add_argument("--repetitions", type=count, default=5, metavar="N", help="processes per configuration (5)")
    update.add_argument("--methods", nargs="+", metavar="NAME", help="compare only these (all)")
    update.add_argument("--peers", metavar="PYTHON", help="python of an environment that has SpikingJelly")
    update.add_argument("--device", default="cpu", metavar="cpu|cuda", help="what computes (cpu)")


def run_memory(options: argparse.Namespace) -> Result:
    """Measure the peak memory of training on a first sequence, each configuration in a process of its own."""
    return _measure(options, sequences=0)


def run_training(options: argparse.Namespace) -> Result:
    """Measure the time of training per time step, after a first sequence, each configuration in its own process."""
    return _measure(options, sequences=1)


def _measure(options: argparse.Namespace, *, sequences: int) -> Result:
    training = need("bsnn.bench.training")
    return training.bench(
        options.methods or training.METHODS,
        options.batch,
        options.time_steps,
        lengths=options.lengths,
        width=options.width,
        threads=options.threads,
        repetitions=options.repetitions,
        sequences=sequences,
        peers=options.peers,
        device=options.device,
    )


def text(result: Result) -> str:
    """Words the result of `bench memory` and `bench training`."""
    return need("bsnn.bench.training").describe(result)


def run_inference(options: argparse.Namespace) -> Result:
    """Time an image against the best eager torch, at several firing rates."""
    model = None if options.model is None else open_model(options.model).artifact
    if options.data is not None and model is None:
        raise UserError("bench inference: received --data without --model; expected the network that it is for.")
    bench = need("bsnn.bench.inference")
    return bench.bench_inference(model, None if options.data is None else bench.test_images(options.data))


def text_inference(result: Result) -> str:
    """Words the result of `bench inference`."""
    return need("bsnn.bench.inference").inference_text(result)
