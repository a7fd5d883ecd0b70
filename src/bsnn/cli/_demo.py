"""What `bsnn demo` does: trains T-BSO on the bundled digits, measures, exports, checks the export and reports."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import bsnn
from bsnn.atomic import write_file
from bsnn.data.loader import Loader
from bsnn.deploy.deployed import Deployed
from bsnn.deploy.engine import load
from bsnn.deploy.export import export
from bsnn.kernels.memory import peak_bytes
from bsnn.nn.bits import split_parameters
from bsnn.nn.size import model_size
from bsnn.online.bptt import bptt_update
from bsnn.online.evaluate import over_time, predict
from bsnn.online.loss import step_loss
from bsnn.online.update import online_update
from bsnn.optim import TBSO
from bsnn.paper.recipes import recipe
from bsnn.report import Confusion, RunRecord, page
from bsnn.train.build import build_network, load_data
from bsnn.train.trainer import Trainer

CONFIG = recipe("digits")


def _first_update(x: Tensor, y: Tensor, *, latent: bool) -> None:
    """One update from nothing, so that weights, momentum, gradients and activations all count."""
    steps, rate = CONFIG.time_steps, CONFIG.learning_rate
    loss = functools.partial(step_loss, labels=y, time_steps=steps)
    frames = over_time(x, steps)
    if latent:
        net = build_network(dataclasses.replace(CONFIG, weights="latent", gradient="bptt"), 10, 1)
        sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
        bptt_update(net, frames, loss, [sgd])
    else:
        net = build_network(CONFIG, 10, 1)
        binary, real = split_parameters(net)
        sgd = torch.optim.SGD(real, lr=rate)
        online_update(net, frames, loss, [TBSO(binary, time_steps=steps), sgd])


def run_demo(seed: int, out: Path) -> dict[str, Any]:
    """Trains, measures, exports, checks the export and writes a report; progress goes to standard error.

    Args:
        seed: Seed of the weights and of the order of the batches.
        out: The folder for model.bsnn and report.html.
    """
    out.mkdir(parents=True, exist_ok=True)
    config = dataclasses.replace(CONFIG, seed=seed)
    # Images of 8 × 8 are too small to share between threads: two gain little, and on a busy machine they wait for
    # each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer = Trainer(config, *load_data(config, None))
    with tqdm(total=config.epochs * len(trainer.train_loader), unit="batch", disable=None) as bar:
        for epoch in range(config.epochs):
            trainer.train_epoch(bar.update)
            line = trainer.finish_epoch()
            bar.set_description(f"epoch {epoch + 1}/{config.epochs}, test accuracy {line.get('test_accuracy', 0):.3f}")
    torch.set_num_threads(threads)

    test = trainer.held_out_loader
    exported = export(
        trainer.net, out / "model.bsnn", data=test.dataset, time_steps=config.time_steps, samples=len(test.dataset)
    )
    assert exported.changes is not None
    first, last = trainer.history[0], trainer.history[-1]
    batch = next(trainer.train_loader.epoch(0))
    record = RunRecord(
        name=f"bsnn demo, seed {seed}",
        config=dataclasses.asdict(config),
        history=trainer.history,
        made_by={"bsnn": bsnn.__version__, "torch": torch.__version__},
        commands=[f"bsnn demo --seed {seed}"],
        confusion=Confusion(trainer.spec.classes, trainer.evaluate().confusion),
        notes=[],
    )
    write_file(out / "report.html", page([record]).encode())
    size = model_size(trainer.net)
    return {
        "test_accuracy": last.get("test_accuracy"),
        "samples": len(trainer.held_out_loader.dataset),
        "seed": seed,
        "train_seconds": round(sum(line["seconds"] for line in trainer.history), 2),
        "model": exported.path,
        "model_bytes": exported.bytes,
        "real_model_bytes": size.real_bytes,
        "binary_weights": size.binary_weights,
        "training_bytes": peak_bytes(functools.partial(_first_update, *batch, latent=False)),
        "latent_bptt_training_bytes": peak_bytes(functools.partial(_first_update, *batch, latent=True)),
        "flip_ratio_first_epoch": first.get("flip_ratio"),
        "flip_ratio_last_epoch": last.get("flip_ratio"),
        "firing_rates": last.get("firing_rates"),
        "exported_accuracy": exported.changes.accuracy_after,
        "exported_predictions_changed": exported.changes.predictions,
        "exported_outputs_wrong": _wrong_outputs(exported.path, exported.module, test),
        "report": str(out / "report.html"),
    }


@torch.no_grad()
def _wrong_outputs(path: str, module: Deployed, test: Loader) -> int:
    """Counts the outputs in which the engine, from the file alone, differs from the deployed network in torch."""
    engine, wrong = load(path), 0
    for inputs, _ in test.ordered():
        total = predict(module, module.integers(inputs), CONFIG.time_steps)
        wrong += int((total.numpy() != engine.outputs(inputs.numpy(), normalized=True)).sum())
    return wrong
