"""One right answer: torch module, C kernels, NumPy path and exported C99 on trained networks and real images.

    python benchmarks/deployed.py --cifar10 DIR RUN [RUN ...] [--samples 1000]

The digits model that ships with the package is compared on its whole test set; each RUN (a run directory of a network
trained on CIFAR-10) on the first `--samples` test images, and its accuracy before and after conversion on all of them.
Compared are the spikes of every layer at every time step and the outputs; of the C99 export, whose spikes stay inside,
the outputs of a prediction, and as a stream all membranes and outputs after every time step. Writes
results/deployed.json.
"""

import argparse
import ctypes
import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bsnn
from bsnn.cli._runs import export_run
from bsnn.data.accuracy import accuracy
from bsnn.data.dataset import Dataset
from bsnn.deploy.codec import read
from bsnn.deploy.deployed import Deployed
from bsnn.deploy.engine import Engine
from bsnn.deploy.engine.native import libraries
from bsnn.deploy.files import batches
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.schema import Artifact
from bsnn.train.load import evaluate_run

RESULTS = Path(__file__).parent / "results" / "deployed.json"
BATCH = 50


@torch.no_grad()
def torch_steps(module: Deployed, integers: np.ndarray, steps: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Summed outputs, and the spikes of every layer, [T, B, C, H, W]."""
    x = torch.from_numpy(integers).permute(0, 3, 1, 2)
    spikes: list[list[np.ndarray]] = []
    handles = [
        neurons.register_forward_hook(lambda _m, _i, output: spikes[-1].append(output[0].spikes.numpy()))
        for neurons in module.children()
    ]
    total, state = torch.zeros(1, dtype=torch.int64), None
    for _ in range(steps):
        spikes.append([])
        outputs, state = module(x, state)
        total = total + outputs
    for handle in handles:
        handle.remove()
    return total.numpy(), [np.stack([step[layer] for step in spikes]) for layer in range(len(spikes[0]))]


class Exported:
    """The C99 export, built as a shared library."""

    def __init__(self, made: Artifact, folder: Path) -> None:
        export_c(made, folder)
        command = ["gcc", "-O2", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fPIC", "-shared"]
        subprocess.run([*command, "model.c", "stream.c", "engine.c", "-o", "model.so"], cwd=folder, check=True)
        self.library, self.made = ctypes.CDLL(str(folder / "model.so")), made
        self.library.bsnn_membranes.restype = ctypes.POINTER(ctypes.c_int32)

    def differences(self, engine: Engine, raw: np.ndarray) -> int:
        """Of one image [C, H, W] of bytes: outputs, and in a stream membranes, that differ from the engine's."""
        image, input_ = engine.integers(raw), np.ascontiguousarray(np.moveaxis(raw, 0, -1))
        outputs = np.zeros(len(self.made.classes), np.int64)
        self.library.bsnn_predict(ctypes.c_void_p(input_.ctypes.data), ctypes.c_void_p(outputs.ctypes.data))
        wrong = int((engine.run(image, self.made.time_steps, None)[0] != outputs).sum())
        self.library.bsnn_reset()
        membranes = engine.artifact.membranes(1)
        size = sum(m.size for m in membranes)
        theirs = np.ctypeslib.as_array(self.library.bsnn_membranes(), (size,))
        for _ in range(self.made.time_steps):
            outputs = np.zeros(len(self.made.classes), np.int64)
            self.library.bsnn_step(ctypes.c_void_p(input_.ctypes.data), ctypes.c_void_p(outputs.ctypes.data))
            expected = engine.run(image, 1, membranes)
            wrong += int((expected[0] != outputs).sum())
            wrong += int((np.concatenate([m.ravel() for m in membranes]) != theirs).sum())
        return wrong


def compared(made: Artifact, data: Dataset, samples: int) -> dict[str, Any]:
    """Differences of each way to run a network from the torch module."""
    engines = {name: Engine(made, name, threads=1) for name in (*libraries(), "numpy")}
    module, first = Deployed(made), next(iter(engines.values()))
    spikes, outputs, seconds = dict.fromkeys(engines, 0), dict.fromkeys(engines, 0), dict.fromkeys(engines, 0.0)
    spikes_seen, c99 = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        exported = Exported(made, Path(folder))
        for start in range(0, samples, BATCH):
            raw = np.stack([data.read(i) for i in range(start, min(start + BATCH, samples))])
            integers = first.integers(raw)
            total, expected = torch_steps(module, integers[0], made.time_steps)
            spikes_seen += sum(layer.size for layer in expected)
            for name, engine in engines.items():
                record: dict[str, np.ndarray] = {}
                began = time.perf_counter()
                found = engine.outputs(np.moveaxis(integers[0], -1, 1), record)
                seconds[name] += time.perf_counter() - began
                outputs[name] += int((found != total).sum())
                layers = zip(record.values(), expected, strict=True)
                spikes[name] += sum(int((ours != theirs).sum()) for ours, theirs in layers)
            c99 += sum(exported.differences(first, image) for image in raw)
    return {
        "samples": samples,
        "time_steps": made.time_steps,
        "layers_of_neurons": len(made.lifs),
        "spikes_compared": spikes_seen,
        "spikes_that_differ": spikes,
        "outputs_that_differ": outputs,
        "c99_membranes_and_outputs_that_differ": c99,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--cifar10", metavar="DIR")
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    digits = bsnn.data.digits("test")
    results = {"digits": compared(read(bsnn.digits_model()), digits, len(digits))}
    print(json.dumps(results), flush=True)
    for run in options.runs:
        config = json.loads((Path(run) / "config.json").read_text())["config"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.bsnn"
            made = export_run(Path(run), path, compare=True, data=options.cifar10)
            data = bsnn.data.cifar10(options.cifar10, "test")
            result = compared(read(path), data, options.samples)
            engine = bsnn.load(path)
            after = accuracy(engine.predict, batches(engine, data))
        before = evaluate_run(Path(run), options.cifar10)["test_accuracy"]
        result |= {
            "model": config["model"],
            "plan": config["plan"],
            "width": config["width"],
            "bytes": made["bytes"],
            "spikes_changed_by_conversion": made["spikes_changed"],
            "accuracy_trained": before,
            "accuracy_deployed": after.accuracy,
            "accuracy_samples": after.samples,
        }
        results[Path(run).name] = result
        print(json.dumps(result), flush=True)
    content = {
        "command": "python benchmarks/deployed.py --cifar10 DIR RUN...",
        "networks": results,
        "kernels": list(libraries()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
