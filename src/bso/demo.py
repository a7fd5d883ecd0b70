"""`bso demo`: T-BSO on scikit-learn's handwritten digits, from nothing to a trained network in half a minute."""

import functools
import time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from tqdm import tqdm

from bso.bits import split_parameters
from bso.bptt import bptt_update
from bso.evaluation import evaluate, over_time
from bso.layers import Weights
from bso.loss import step_loss
from bso.memory import peak_bytes
from bso.models import vgg
from bso.network import ImageNetwork
from bso.neuron import LIF
from bso.online import online_update
from bso.optim import TBSO, Schedule, cosine
from bso.size import model_size

PLAN = (32, 64, "pool", 128, "pool", 128)
TIME_STEPS = 4
EPOCHS = 15
BATCH_SIZE = 64
LEARNING_RATE = 0.1
GAMMA = 5e-7
# The paper's 1e-3 is meant for a hundred thousand updates; the demo has 1,320.
BETAS = (0.99, 0.99999)


def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training inputs and labels, test inputs and labels; a fixed split, stratified by class."""
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=360, random_state=0, stratify=labels)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
    x = (x - x[train].mean()) / x[train].std()
    return x[train], y[train], x[test], y[test]


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


def run_demo(seed: int = 0) -> dict[str, Any]:
    """Trains, evaluates and measures; progress goes to standard error.

    Args:
        seed: Seeds weights and the order of the batches.
    """
    x, y, test_x, test_y = _digits()
    training_bytes, latent_training_bytes = (
        peak_bytes(functools.partial(_first_update, x[:BATCH_SIZE], y[:BATCH_SIZE], latent=latent))
        for latent in (False, True)
    )

    torch.manual_seed(seed)
    net = _network()
    binary, real = split_parameters(net)
    num_batches = len(x) // BATCH_SIZE
    num_updates = EPOCHS * num_batches
    flip = TBSO(binary, gamma=GAMMA, betas=BETAS, time_steps=TIME_STEPS)
    sgd = torch.optim.SGD(real, lr=LEARNING_RATE)
    schedules = [Schedule(flip, one_minus_beta1=cosine(num_updates)), Schedule(sgd, lr=cosine(num_updates))]

    flip_ratios = []
    started = time.perf_counter()
    with tqdm(total=num_updates, unit="batch", disable=None) as bar:
        for epoch in range(EPOCHS):
            correct, ratios = 0, []
            for chosen in torch.randperm(len(x)).split(BATCH_SIZE)[:num_batches]:
                labels = y[chosen]
                loss = functools.partial(step_loss, labels=labels, time_steps=TIME_STEPS)
                outcome = online_update(net, over_time(x[chosen], TIME_STEPS), loss, [flip, sgd])
                for schedule in schedules:
                    schedule.step()
                correct += int((outcome.logits.argmax(dim=1) == labels).sum())
                ratios.append(flip.flip_ratio)
                bar.update()
            flip_ratios.append(sum(ratios) / num_batches)
            accuracy = correct / (num_batches * BATCH_SIZE)
            bar.set_description(f"epoch {epoch + 1}/{EPOCHS}, accuracy {accuracy:.3f}")
    train_seconds = time.perf_counter() - started

    result = evaluate(net, [(test_x, test_y)], TIME_STEPS, statistics=[x])
    size = model_size(net)
    return {
        "test_accuracy": result.accuracy,
        "samples": result.samples,
        "seed": seed,
        "train_seconds": round(train_seconds, 2),
        "model_bytes": size.stored_bytes,
        "real_model_bytes": size.real_bytes,
        "binary_weights": size.binary_weights,
        "training_bytes": training_bytes,
        "latent_bptt_training_bytes": latent_training_bytes,
        "flip_ratio_first_epoch": flip_ratios[0],
        "flip_ratio_last_epoch": flip_ratios[-1],
        "firing_rates": result.firing_rates,
    }


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
        f"  firing rates     {rates}"
    )


def _kilobytes(number: int) -> str:
    return f"{number / 1000:,.0f} kB"
