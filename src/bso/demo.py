"""`bso demo`: T-BSO on scikit-learn's handwritten digits, from nothing to a trained network in half a minute."""

import functools
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from bso.bits import split_parameters
from bso.bptt import bptt_update
from bso.convert import export
from bso.data.bundled import digits
from bso.data.loader import Loader
from bso.deployed import Deployed
from bso.engine import load
from bso.evaluation import evaluate, over_time, predict
from bso.layers import Weights
from bso.loss import step_loss
from bso.memory import peak_bytes
from bso.models import vgg
from bso.network import ImageNetwork
from bso.neuron import LIF
from bso.online import online_update
from bso.optim import TBSO, Schedule, cosine
from bso.recipes import recipe
from bso.size import model_size

_RECIPE = recipe("digits")
PLAN, TIME_STEPS, EPOCHS = _RECIPE.plan, _RECIPE.time_steps, _RECIPE.epochs
BATCH_SIZE, LEARNING_RATE, GAMMA = _RECIPE.batch_size, _RECIPE.learning_rate, _RECIPE.gamma
BETAS = (1 - _RECIPE.one_minus_beta1, 1 - _RECIPE.one_minus_beta2)


def _network(weights: Weights = "binary", neuron: LIF | None = None) -> ImageNetwork:
    return vgg(PLAN, num_classes=10, in_channels=1, weights=weights, neuron=neuron)


def _first_update(x: Tensor, y: Tensor, *, latent: bool) -> None:
    """One update from nothing, so that weights, momentum, gradients and activations all count."""
    loss = functools.partial(step_loss, labels=y, time_steps=TIME_STEPS)
    frames = over_time(x, TIME_STEPS)
    if latent:
        net = _network("latent", LIF(gradient="bptt"))
        sgd = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=0.9)
        bptt_update(net, frames, loss, [sgd])
    else:
        net = _network()
        binary, real = split_parameters(net)
        sgd = torch.optim.SGD(real, lr=LEARNING_RATE)
        online_update(net, frames, loss, [TBSO(binary, time_steps=TIME_STEPS), sgd])


def run_demo(seed: int = 0, out: Path = Path("runs/demo")) -> dict[str, Any]:
    """Trains, evaluates, measures, exports and checks the export; progress goes to standard error.

    Args:
        seed: Seeds weights and the order of the batches.
        out: Folder to write into.
    """
    out.mkdir(parents=True, exist_ok=True)
    train = Loader(digits("train"), BATCH_SIZE, seed=seed, drop_last=True)
    test = Loader(digits("test"), BATCH_SIZE)
    training_bytes, latent_training_bytes = (
        peak_bytes(functools.partial(_first_update, *next(train.epoch(0)), latent=latent)) for latent in (False, True)
    )

    torch.manual_seed(seed)
    net = _network()
    binary, real = split_parameters(net)
    num_updates = EPOCHS * len(train)
    flip = TBSO(binary, gamma=GAMMA, betas=BETAS, time_steps=TIME_STEPS)
    sgd = torch.optim.SGD(real, lr=LEARNING_RATE)
    schedules = [Schedule(flip, one_minus_beta1=cosine(num_updates)), Schedule(sgd, lr=cosine(num_updates))]

    # Images of 8 × 8 are too small to share between threads: two gain little, and on a busy machine they wait for
    # each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    flip_ratios = []
    started = time.perf_counter()
    with tqdm(total=num_updates, unit="batch", disable=None) as bar:
        for epoch in range(EPOCHS):
            correct, ratios = 0, []
            for inputs, labels in train.epoch(epoch):
                loss = functools.partial(step_loss, labels=labels, time_steps=TIME_STEPS)
                outcome = online_update(net, over_time(inputs, TIME_STEPS), loss, [flip, sgd])
                for schedule in schedules:
                    schedule.step()
                correct += int((outcome.logits.argmax(dim=1) == labels).sum())
                ratios.append(flip.flip_ratio)
                bar.update()
            flip_ratios.append(sum(ratios) / len(train))
            accuracy = correct / (len(train) * BATCH_SIZE)
            bar.set_description(f"epoch {epoch + 1}/{EPOCHS}, accuracy {accuracy:.3f}")
    train_seconds = time.perf_counter() - started
    torch.set_num_threads(threads)

    statistics = (inputs for inputs, _ in train.ordered())
    result = evaluate(net, test.ordered(), TIME_STEPS, statistics=statistics)
    size = model_size(net)
    exported = export(net, out / "model.bso", data=test.dataset, time_steps=TIME_STEPS, samples=len(test.dataset))
    assert exported.changes is not None
    return {
        "test_accuracy": result.accuracy,
        "samples": result.samples,
        "seed": seed,
        "train_seconds": round(train_seconds, 2),
        "model": exported.path,
        "model_bytes": exported.bytes,
        "real_model_bytes": size.real_bytes,
        "binary_weights": size.binary_weights,
        "training_bytes": training_bytes,
        "latent_bptt_training_bytes": latent_training_bytes,
        "flip_ratio_first_epoch": flip_ratios[0],
        "flip_ratio_last_epoch": flip_ratios[-1],
        "firing_rates": result.firing_rates,
        "exported_accuracy": exported.changes.accuracy_after,
        "exported_predictions_changed": exported.changes.predictions,
        "exported_outputs_wrong": _wrong_outputs(exported.path, exported.module, test),
    }


@torch.no_grad()
def _wrong_outputs(path: str, module: Deployed, test: Loader) -> int:
    """In how many outputs the engine, from the file alone, differs from the deployed network in torch."""
    engine, wrong = load(path), 0
    for inputs, _ in test.ordered():
        total = predict(module, module.integers(inputs), TIME_STEPS)
        wrong += int((total.numpy() != engine.outputs(inputs.numpy())).sum())
    return wrong


def describe_demo(result: dict[str, Any]) -> str:
    """The result in words."""
    rates = ", ".join(f"{name} {rate:.0%}" for name, rate in result["firing_rates"].items())
    return (
        f"T-BSO on digits, {EPOCHS} epochs, T = {TIME_STEPS}, seed {result['seed']}\n"
        f"  test accuracy    {result['test_accuracy']:.1%} of {result['samples']} images it has not seen, "
        f"after {result['train_seconds']:.0f} s of training\n"
        f"  model            {_kilobytes(result['model_bytes'])} with one-bit weights, "
        f"{_kilobytes(result['real_model_bytes'])} real-valued "
        f"({result['real_model_bytes'] / result['model_bytes']:.1f}× smaller)\n"
        f"  training memory  {_kilobytes(result['training_bytes'])} at its peak, "
        f"{_kilobytes(result['latent_bptt_training_bytes'])} with latent weights and BPTT "
        f"({result['latent_bptt_training_bytes'] / result['training_bytes']:.1f}× less)\n"
        f"  flips            {result['flip_ratio_first_epoch']:.2%} of the weights an update in the first "
        f"epoch, {result['flip_ratio_last_epoch']:.4%} in the last\n"
        f"  firing rates     {rates}\n"
        f"  exported         {result['model']}, {result['exported_accuracy']:.1%} without torch, "
        f"{result['exported_outputs_wrong']} outputs differ from the check in torch\n"
        f"                   try: bso inspect {result['model']}"
    )


def _kilobytes(number: int) -> str:
    return f"{number / 1000:,.0f} kB"
