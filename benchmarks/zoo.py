"""Makes a shipped model and its card from a run, and docs/models.md from the cards.

    python benchmarks/zoo.py RUN --name cifar10 [--data DIR]     write src/bsnn/zoo/cifar10.bsnn and its card
    python benchmarks/zoo.py                                     write the cards into docs/models.md

The model file is the one that `bsnn export RUN` writes. It is refused if its accuracy on the whole test set, measured
by the engine, is more than 0.2 points from that of the trained network; if C and NumPy differ in any output on the
test set; if PyTorch, C, NumPy and exported C99 differ in any spike, membrane or output on `--samples` of it; or if the
shipped models would take more than 4 MB.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from deployed import compared

from bsnn.atomic import write_file
from bsnn.cli._runs import export_run
from bsnn.data.accuracy import accuracy
from bsnn.data.dataset import Dataset
from bsnn.deploy.codec import read
from bsnn.deploy.engine import Engine
from bsnn.deploy.engine.native import libraries
from bsnn.deploy.files import batches, held_out_set
from bsnn.deploy.inspection import inspect
from bsnn.paper.markdown import markdown_table
from bsnn.report.record import train_command
from bsnn.train.config import Config, config_from_json
from bsnn.train.load import evaluate_run
from bsnn.train.selection import is_finished
from bsnn.zoo import Card, card, describe, names

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "src" / "bsnn" / "zoo"
PAGE = ROOT / "docs" / "models.md"
MOST_BYTES = 4_000_000
MOST_POINTS_LOST = 0.2
HEADING = "## Cards\n"

_ANSWERS = "It answers with one of its classes, whatever it is given."
_REJECTS = (
    "It answers `none of these` below a threshold that was chosen on noise and silence; how it takes other words was "
    "not measured."
)
_SHARE = "The share that `bsnn predict` prints is a softmax, not a calibrated probability."


class Facts(NamedTuple):
    """What a run does not know of its data: where the words of a card come from."""

    title: str
    input: str
    data: str
    license: str
    source: str
    split: str
    limits: tuple[str, ...]


FACTS = {
    "digits": Facts(
        "handwritten digits of 8 × 8 pixels",
        "an image of any size; its center square becomes 8 × 8 pixels with 17 levels of gray. The digit is light on a "
        "dark ground and fills the image.",
        "Optical Recognition of Handwritten Digits, the 1,797 samples that come with bsnn",
        "CC BY 4.0",
        "E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49, in "
        "scikit-learn's copy (BSD-3-Clause)",
        "a fifth of each class, drawn by seed 0: bsnn.data.digits('test')",
        (
            "The split is by sample, so the people who wrote the test digits also wrote training digits.",
            "Photos of dark ink on white paper have to be inverted first.",
        ),
    ),
    "cifar10": Facts(
        "ten kinds of vehicles and animals",
        "an image of any size; its center square becomes 32 × 32 pixels in color. The object fills the image.",
        "CIFAR-10, complete: 50,000 training and 10,000 test images",
        "none stated; its authors ask to cite the report that is named as the source",
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009, "
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "the official test set",
        (
            "It has seen images of 32 × 32 pixels only: in a photo, crop to the object.",
            "About 3 % of the test images have a near-duplicate among the training images (Barz and Denzler, 2020), "
            "which flatters every accuracy on this set.",
        ),
    ),
    "speech_commands": Facts(
        "eight spoken words",
        "a wav or flac file of any rate. Its middle second counts; a shorter sound is padded with silence at its end.",
        "Google Speech Commands 0.01, eight of its words and some of their recordings: 960 for training",
        "CC BY 4.0",
        "P. Warden, Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition, 2018, "
        "https://arxiv.org/abs/1804.03209, in the selection of "
        "https://github.com/anshulgupta0803/isolated-speech-commands",
        "half of the speakers of the official validation list, none of whom was heard in training. The other half was "
        "not used.",
        (
            "The test set is small: see the interval.",
            "It was not tried on other microphones, accents or languages than those of the data.",
        ),
    ),
    "nmnist": Facts(
        "handwritten digits, seen by an event camera",
        "a recording of events, 34 × 34 pixels: .bin as N-MNIST has them, or .npz with x, y, t and p",
        "N-MNIST, a part of it: 1,000 training and 100 test recordings",
        "CC BY-SA 4.0",
        "G. Orchard, A. Jayawant, G. Cohen and N. Thakor, Converting Static Image Datasets to Spiking Neuromorphic "
        "Datasets Using Saccades, 2015, https://www.garrickorchard.com/datasets/n-mnist, in the selection of "
        "https://github.com/bamsumit/slayerPytorch",
        "the test recordings of that selection",
        (
            "The test set is very small: see the interval. Some digits have only a few test recordings.",
            "It was trained on one sixtieth of N-MNIST, and on that camera's three saccades only.",
        ),
    ),
}


def make(run: Path, name: str, data: str | None, samples: int) -> tuple[bytes, Card]:
    """The model file of a run and its card, both checked.

    Args:
        run: The run directory.
        name: Of the model.
        data: Folder of the data; None takes the one that the run was trained from.
        samples: How many test samples to compare spike by spike.
    """
    saved, history = _finished_run(run)
    config = config_from_json(saved["config"])
    facts = FACTS.get(config.dataset)
    if facts is None:
        raise SystemExit(
            f"{run}: trained on {config.dataset}; expected one of {', '.join(FACTS)}, whose terms are known."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bsnn"
        export_run(run, path)
        content, artifact = path.read_bytes(), read(path)
    # The run knows where its data was; a model file does not.
    place = data or saved["data"]
    engine = Engine(artifact, threads=1)
    test_set = held_out_set(engine, place)
    found = accuracy(_agreeing(engine, Engine(artifact, "numpy")), batches(engine, test_set))
    trained = evaluate_run(run, place)
    check_loss(trained["test_accuracy"], found.accuracy, found.samples)
    counted = inspect(artifact)
    return content, {
        "name": name,
        "title": facts.title,
        "input": facts.input,
        "classes": list(artifact.classes),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "weights": counted["weights"],
        "time_steps": artifact.time_steps,
        "additions": counted["additions"],
        "multiplications": counted["multiplications"],
        "test_accuracy": found.accuracy,
        "test_samples": found.samples,
        "test_split": facts.split,
        "interval": [round(bound, 4) for bound in wilson(round(found.accuracy * found.samples), found.samples)],
        "measured": "plain evaluation of the model file by the engine: every test sample once, no averaging over crops "
        f"or flips; the network {_which(config)}",
        "trained_accuracy": trained["test_accuracy"],
        "compared": _compared(artifact, test_set, min(samples, len(test_set))),
        "data": facts.data + _used(config),
        "data_license": facts.license,
        "data_source": facts.source,
        "command": _command(config, place, name),
        "seed": config.seed,
        "epochs": len(history),
        "commit": saved["git_commit"],
        "train_seconds": round(sum(line["seconds"] for line in [*history, *_history_of_teacher(run)]), 1),
        "computed_by": _machine(saved["computed_by"]),
        "limits": [*facts.limits, f"{_ANSWERS if artifact.reject_below is None else _REJECTS} {_SHARE}"],
    }


def _history_of_teacher(run: Path) -> list[dict[str, Any]]:
    """The epochs of the teacher that the run's command has trained before, if there is one."""
    metrics = run / "teacher" / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def _finished_run(run: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What config.json and metrics.jsonl say of a run that came to its end."""
    try:
        saved = json.loads((run / "config.json").read_text())
        history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    except OSError as error:
        raise SystemExit(
            f"{run}: {error.strerror}: {error.filename}; expected the folder of a finished run."
        ) from error
    if not is_finished(config_from_json(saved["config"]), cast(Any, history)):
        raise SystemExit(f"{run}: the run has not finished; go on with it (--resume) before it is shipped.")
    if not saved["git_commit"]:
        raise SystemExit(
            f"{run}: its config.json names no commit; train from a checkout, so that the card can say which."
        )
    return saved, history


def _agreeing(engine: Engine, other: Engine) -> Any:
    """Predicts with one engine, and refuses outputs that another does not give too."""

    def predict(inputs: np.ndarray) -> np.ndarray:
        outputs = engine.outputs(inputs)
        if not np.array_equal(outputs, other.outputs(inputs)):
            raise SystemExit(f"the kernels {engine.kernel} and {other.kernel} differ on a test sample.")
        return outputs.argmax(1)

    return predict


def check_loss(trained: float, deployed: float, samples: int) -> None:
    """Refuses a conversion that changed the accuracy by more than 0.2 points."""
    apart = 100 * abs(deployed - trained)
    if apart > MOST_POINTS_LOST + 1e-9:
        raise SystemExit(
            f"accuracy {deployed:.4f} deployed and {trained:.4f} trained, on {samples} samples: {apart:.2f} points "
            f"apart; expected at most {MOST_POINTS_LOST}."
        )


def wilson(correct: int, samples: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share."""
    z = 1.959964
    share, rest = correct / samples, z * z / samples
    middle = (share + rest / 2) / (1 + rest)
    half = z / (1 + rest) * math.sqrt(share * (1 - share) / samples + rest / (4 * samples))
    return middle - half, middle + half


def _compared(artifact: Any, data: Dataset, samples: int) -> str:
    """Compares every way to run a network, and says on what."""
    found = compared(artifact, data, samples)
    wrong = sum(found["spikes_that_differ"].values()) + sum(found["outputs_that_differ"].values())
    if wrong or found["c99_membranes_and_outputs_that_differ"]:
        raise SystemExit(f"the ways to run the network differ: {json.dumps(found)}")
    return (
        f"outputs of C and NumPy on all test samples; on {samples:,} of them every spike and output of PyTorch, C "
        f"({', '.join(libraries())}) and NumPy, and every membrane and output of exported C99: no difference"
    )


def _which(config: Config) -> str:
    if config.select == "test":
        raise SystemExit(
            "the epoch was chosen by its test accuracy, which no longer says how good it is; choose otherwise."
        )
    return "after the last epoch" if config.select == "last" else "of the epoch that was the best on held-out samples"


def _used(config: Config) -> str:
    """How much of the training samples a run left out."""
    chosen = f"; trained on {config.train_samples:,} of them" if config.train_samples else ""
    held_out = f"; {config.validation_samples:,} training samples were held out" if config.validation_samples else ""
    return chosen + held_out


def _command(config: Config, data: str | None, name: str) -> str:
    objects = [value for value in dataclasses.asdict(config).values() if str(value).startswith("<")]
    if objects:
        raise SystemExit(
            f"trained with {objects[0]}, an object of a program; expected a run that a command can repeat."
        )
    return train_command(config, "DIR" if data else None, Path("runs", name))


def _machine(origins: list[dict[str, Any]]) -> str:
    last = origins[-1]
    many = f", the last of {len(origins)} set-ups that computed it" if len(origins) > 1 else ""
    threads = f"{last['threads']} thread{'s' * (last['threads'] > 1)}"
    return (
        f"{last['processor']} ({last['instructions']}), {threads}, torch {last['torch']}, Python {last['python']}{many}"
    )


def ship(content: bytes, made: Card, zoo: Path) -> None:
    """Writes both files, the card last: a model without a card is not shipped."""
    others = sum(file.stat().st_size for file in zoo.glob("*.bsnn") if file.stem != made["name"])
    if others + len(content) > MOST_BYTES:
        raise SystemExit(f"the shipped models would take {others + len(content):,} bytes; at most {MOST_BYTES:,} may.")
    write_file(zoo / f"{made['name']}.bsnn", content)
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    write_file(zoo / f"{made['name']}.json", text.encode())


def page(before: str) -> str:
    """The page with the cards as they are now below its heading."""
    cards = [card(name) for name in names()]
    rows = [
        [
            f"[`{c['name']}`](#{c['name']})",
            c["title"],
            f"{c['bytes']:,}",
            f"{100 * c['test_accuracy']:.2f} % of {c['test_samples']:,}",
        ]
        for c in cards
    ]
    parts = [
        HEADING.strip(),
        "Written by `python benchmarks/zoo.py` from the JSON files beside the models.",
        markdown_table(["name", "what it tells apart", "bytes", "test accuracy"], rows),
    ]
    for made in cards:
        lines = {**describe(made), "made by": f"`{made['command']}`"}
        parts += [
            f"### {made['name']}",
            markdown_table(["", made["title"]], [[key, value] for key, value in lines.items()]),
        ]
    return before.partition(HEADING)[0] + "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", metavar="RUN", type=Path)
    parser.add_argument("--name", help="of the model")
    parser.add_argument("--data", metavar="DIR", help="where the data is (by default where it was in training)")
    parser.add_argument("--samples", type=int, default=200, help="to compare spike by spike (200)")
    parser.add_argument("--zoo", metavar="DIR", type=Path, default=ZOO, help="where to write (the package)")
    options = parser.parse_args()
    if (options.run is None) != (options.name is None) or not re.fullmatch(r"[a-z][a-z0-9-]*", options.name or "x"):
        parser.error("expected RUN and --name together, and a name of small letters, digits and hyphens")
    if options.run is not None:
        content, made = make(options.run, options.name, options.data, options.samples)
        ship(content, made, options.zoo)
        print(json.dumps(made, indent=1, ensure_ascii=False))
    if options.zoo == ZOO:
        write_file(PAGE, page(PAGE.read_text()).encode())


if __name__ == "__main__":
    main()
