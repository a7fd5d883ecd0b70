"""Figure 3: the cosine similarity between gradients of different time steps."""

import torch
from torch import Tensor
from torch.nn import functional as F

from bsnn.online.evaluate import evaluate
from bsnn.online.step_statistics import StepStatistics
from bsnn.paper._gradients import first_batches, step_gradients, trained_network
from bsnn.paper._target import Findings, Settings
from bsnn.train.trainer import Trainer


def measure(settings: Settings) -> Findings:
    """Compares the gradients of a trained network, by layer and on average."""
    with trained_network(settings) as (trainer, setup):
        findings = _similarity_over_time(trainer, setup)
        findings.notes.append(_statistics_by_step(trainer))
        return findings


def _statistics_by_step(trainer: Trainer) -> str:
    """What it changes if evaluation, as training does, has BatchNorm's statistics of each time step."""
    batches = [inputs for inputs, _ in first_batches(trainer, trainer.config.statistics_batches)]
    statistics = StepStatistics(trainer.net, batches, trainer.frames)
    one_set, by_step = (
        evaluate(trainer.net, trainer.held_out_loader.ordered(), trainer.frames, step_statistics=used)
        for used in (None, statistics)
    )
    return (
        "Activity differs between time steps too: with BatchNorm's statistics of each time step in evaluation, test "
        f"accuracy is {100 * by_step.accuracy:.2f} %, with one set for all of them, as a deployed network has it, "
        f"{100 * one_set.accuracy:.2f} %."
    )


def _similarity_over_time(trainer: Trainer, setup: str) -> Findings:
    steps = trainer.config.time_steps
    layers: dict[str, Tensor] = {}
    batches = first_batches(trainer, 8)
    for inputs, labels in batches:
        for name, gradients in step_gradients(trainer, "ottt", inputs, labels).items():
            rows = F.normalize(torch.stack([gradient.flatten() for gradient in gradients]), dim=1)
            layers[name] = layers.get(name, torch.zeros(steps, steps)) + rows @ rows.T / len(batches)
    average = torch.stack(list(layers.values())).mean(0)
    findings = Findings(
        "Figure 3: cosine similarity of gradients across time steps",
        f"{setup}; mean over {len(batches)} batches. The paper: CIFAR-10, CIFAR-100 and ImageNet, as a picture "
        "without numbers.",
        data={name: matrix.tolist() for name, matrix in layers.items()},
    )
    rounded = [[round(float(value), 2) for value in row] for row in average]
    names = [f"t = {t + 1}" for t in range(steps)]
    findings.add_matrix("cosine similarity, mean over layers", rounded, names, ("time step", "time step"))
    apart = [float(matrix[0, -1]) for matrix in layers.values()]
    next_to = [float(matrix.diagonal(1).mean()) for matrix in layers.values()]
    findings.add_table(
        "By layer",
        ["layer", "neighboring time steps", "first and last"],
        [[name, f"{a:.3f}", f"{b:.3f}"] for name, a, b in zip(layers, next_to, apart, strict=True)],
    )
    others = average[~torch.eye(steps, dtype=torch.bool)]
    findings.notes.append(
        f"Mean over layers, the cosines of different time steps are {others.min():.2f} to {others.max():.2f}; 1 would "
        "be one direction at all of them, and 0 nothing in common. That they differ is the paper's reason for a "
        "threshold of its own at each time step. It shows colors and no numbers, of other data and networks."
    )
    return findings
