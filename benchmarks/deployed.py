"""One right answer: torch module, C kernels, NumPy path and exported C99 on trained networks and real images.

    python benchmarks/deployed.py --data DIR [RUN ...] [--samples 1000]

DIR holds CIFAR-10 and the folders speech_commands and nmnist. The shipped models, and each RUN (a run directory of a
network trained on CIFAR-10), are compared on the first `--samples` test samples, or on all where there are fewer. The
accuracy of each, before and after conversion, is that on the whole test set; of a shipped model, its card has it.
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
from bsnn.data.subset import subset
from bsnn.deploy.codec import read
from bsnn.deploy.deployed import Deployed
from bsnn.deploy.engine import Engine
from bsnn.deploy.engine.native import libraries
from bsnn.deploy.files import batches, held_out_set
from bsnn.deploy.footprint import takes_bytes
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.schema import Artifact
from bsnn.train.load import evaluate_run

RESULTS = Path(__file__).parent / "results" / "deployed.json"
FOLDERS = {"speech": "speech_commands", "nmnist": "nmnist"}
BATCH = 50


@torch.no_grad()
def torch_steps(module: Deployed, integers: np.ndarray, steps: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Summed outputs, and the spikes of every layer, [T, B, C, H, W], from integers [S, B, H, W, C]; S is 1 or T."""
    frames = torch.from_numpy(integers).permute(0, 1, 4, 2, 3)
    spikes: list[list[np.ndarray]] = []
    handles = [
        neurons.register_forward_hook(lambda _m, _i, output: spikes[-1].append(output[0].spikes.numpy()))
        for neurons in module.children()
    ]
    total, state = torch.zeros(1, dtype=torch.int64), None
    for t in range(steps):
        spikes.append([])
        outputs, state = module(frames[min(t, len(frames) - 1)], state)
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

    def differences(self, engine: Engine, frames: np.ndarray, sent: np.ndarray) -> int:
        """Of one sample: outputs of a prediction, and membranes and outputs of a stream, that differ from the engine's.

        Args:
            engine: What to compare with.
            frames: The sample in the network's integers, [S, H, W, C]; S is 1 or T.
            sent: The sample as the C takes it, bytes or integers, in the same shape.
        """
        steps, integers = self.made.time_steps, frames[:, None]
        outputs = np.zeros(len(self.made.classes), np.int64)
        self.library.bsnn_predict(ctypes.c_void_p(sent.ctypes.data), ctypes.c_void_p(outputs.ctypes.data))
        wrong = int((engine.run(integers, steps, None)[0] != outputs).sum())
        self.library.bsnn_reset()
        membranes = engine.artifact.membranes(1)
        size = sum(m.size for m in membranes)
        theirs = np.ctypeslib.as_array(self.library.bsnn_membranes(), (size,))
        for t in range(steps):
            now = min(t, len(frames) - 1)
            outputs = np.zeros(len(self.made.classes), np.int64)
            self.library.bsnn_step(ctypes.c_void_p(sent[now].ctypes.data), ctypes.c_void_p(outputs.ctypes.data))
            expected = engine.run(integers[now : now + 1], 1, membranes)
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
        for inputs, _ in batches(first, subset(data, np.arange(samples)), BATCH):
            integers = first.integers(inputs)
            total, expected = torch_steps(module, integers, made.time_steps)
            spikes_seen += sum(layer.size for layer in expected)
            for name, engine in engines.items():
                record: dict[str, np.ndarray] = {}
                began = time.perf_counter()
                found = engine.outputs(np.moveaxis(integers, -1, 2), record, normalized=True)
                seconds[name] += time.perf_counter() - began
                outputs[name] += int((found != total).sum())
                layers = zip(record.values(), expected, strict=True)
                spikes[name] += sum(int((ours != theirs).sum()) for ours, theirs in layers)
            raw = np.moveaxis(inputs.reshape((1,) * (5 - inputs.ndim) + inputs.shape), 2, -1)
            samples_sent = np.ascontiguousarray(np.swapaxes(raw if takes_bytes(made.input) else integers, 0, 1))
            samples_seen = np.ascontiguousarray(np.swapaxes(integers, 0, 1))
            c99 += sum(exported.differences(first, *pair) for pair in zip(samples_seen, samples_sent, strict=True))
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


def shipped(name: str, data: Path, samples: int) -> dict[str, Any]:
    """A model of the zoo on its test set."""
    made = read(bsnn.zoo.path(name))
    test_set = held_out_set(Engine(made, threads=1), str(data / FOLDERS.get(name, "")) if name != "digits" else None)
    result = compared(made, test_set, min(samples, len(test_set)))
    known = bsnn.zoo.card(name)
    result |= {
        "bytes": known["bytes"],
        "accuracy_trained": known["trained_accuracy"],
        "accuracy_deployed": known["test_accuracy"],
        "accuracy_samples": known["test_samples"],
    }
    print(f"{name}: {json.dumps(result)}", flush=True)
    return result


def trained(run: Path, data: str, samples: int) -> dict[str, Any]:
    """A network trained on CIFAR-10."""
    config = json.loads((run / "config.json").read_text())["config"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bsnn"
        made = export_run(run, path, compare=True, data=data)
        test_set = bsnn.data.cifar10(data, "test")
        result = compared(read(path), test_set, min(samples, len(test_set)))
        engine = bsnn.load(path)
        after = accuracy(engine.predict, batches(engine, test_set))
    result |= {
        "model": config["model"],
        "plan": config["plan"],
        "width": config["width"],
        "bytes": made["bytes"],
        "spikes_changed_by_conversion": made["spikes_changed"],
        "accuracy_trained": evaluate_run(run, data)["test_accuracy"],
        "accuracy_deployed": after.accuracy,
        "accuracy_samples": after.samples,
    }
    print(f"{run}: {json.dumps(result)}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {name: shipped(name, options.data, options.samples) for name in bsnn.zoo.names()}
    results |= {Path(run).name: trained(Path(run), str(options.data), options.samples) for run in options.runs}
    content = {
        "command": "python benchmarks/deployed.py --data DIR RUN...",
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
