"""Figure 3 and the microscope: gradients of every time step, by layer, under each gradient rule.

A network is trained first, by OTTT and T-BSO. Its weights then stand still while each rule computes the gradients
of the same batches, time step by time step.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bsnn.nn.bits import BinaryParameter, signs
from bsnn.nn.trace import RuleName
from bsnn.online.evaluate import over_time
from bsnn.online.loss import step_loss
from bsnn.optim import tbso_flips
from bsnn.paper.recipes import recipe
from bsnn.paper.target import Outcome, Settings
from bsnn.train.build import build_network
from bsnn.train.load import loaded_run
from bsnn.train.loop import train
from bsnn.train.trainer import Trainer

_RULES: tuple[RuleName, ...] = ("ottt", "ndot", "sltt", "bptt")
Gradients = Mapping[str, Sequence[Tensor]]
"""By layer, then by time step."""


@contextlib.contextmanager
def _trained(settings: Settings) -> Iterator[tuple[Trainer, str]]:
    """A network to look into, and how it was trained. Figure 3 and the microscope share its run."""
    config = dataclasses.replace(recipe("digits"), time_steps=6, epochs=5)
    if settings.scale == "smoke":
        config = dataclasses.replace(config, plan=(4, 4), time_steps=2, epochs=1, train_samples=64)
    if settings.scale == "paper":
        config = recipe("cifar10-tbso-t6")
    run = settings.runs / f"{settings.scale}-gradients"
    train(config, run, data=settings.data if settings.scale == "paper" else None, resume=True)
    with loaded_run(run) as trainer:
        yield (
            trainer,
            f"{config.dataset}, T = {config.time_steps}, after {config.epochs} epochs by OTTT and T-BSO, seed 0 "
            f"(scale {settings.scale})",
        )


def step_gradients(trainer: Trainer, rule: RuleName, inputs: Tensor, labels: Tensor) -> Gradients:
    """The gradients of L[t] for every t, with weights that stand still."""
    config = dataclasses.replace(trainer.config, gradient=rule)
    net = build_network(config, len(trainer.spec.classes), trainer.net.in_channels)
    net.load_state_dict(trainer.net.state_dict())
    binary = {name: p for name, p in net.named_parameters() if isinstance(p, BinaryParameter)}
    found: dict[str, list[Tensor]] = {name: [] for name in binary}
    state = None
    for frame in over_time(inputs, trainer.frames):
        # BPTT's gradient of L[t] reaches back through all steps before t, so their graph is kept.
        logits, state = net(frame, state)
        step_loss(logits, labels, time_steps=config.time_steps).backward(retain_graph=rule == "bptt")
        for name, parameter in binary.items():
            assert parameter.grad is not None
            found[name].append(parameter.grad.clone())
        net.zero_grad()
    return found


def _batches(trainer: Trainer, count: int) -> list[tuple[Tensor, Tensor]]:
    return [batch for _, batch in zip(range(count), trainer.train_loader.epoch(0), strict=False)]


def figure3(settings: Settings) -> Outcome:
    """Cosine similarity of the gradients of different time steps."""
    with _trained(settings) as (trainer, words):
        return _similarity_over_time(trainer, words)


def _similarity_over_time(trainer: Trainer, words: str) -> Outcome:
    steps = trainer.config.time_steps
    layers: dict[str, Tensor] = {}
    batches = _batches(trainer, 8)
    for inputs, labels in batches:
        for name, gradients in step_gradients(trainer, "ottt", inputs, labels).items():
            rows = F.normalize(torch.stack([gradient.flatten() for gradient in gradients]), dim=1)
            layers[name] = layers.get(name, torch.zeros(steps, steps)) + rows @ rows.T / len(batches)
    average = torch.stack(list(layers.values())).mean(0)
    outcome = Outcome(
        "Figure 3: cosine similarity of gradients across time steps",
        f"{words}; mean over {len(batches)} batches. The paper: CIFAR-10, CIFAR-100 and ImageNet, as a picture "
        "without numbers.",
        data={name: matrix.tolist() for name, matrix in layers.items()},
    )
    names = [f"t = {t + 1}" for t in range(steps)]
    outcome.add_matrix("cosine similarity, mean over layers", _rounded(average), names, ("time step", "time step"))
    apart = [float(matrix[0, -1]) for matrix in layers.values()]
    next_to = [float(matrix.diagonal(1).mean()) for matrix in layers.values()]
    outcome.add_table(
        "By layer",
        ["layer", "neighboring time steps", "first and last"],
        [[name, f"{a:.3f}", f"{b:.3f}"] for name, a, b in zip(layers, next_to, apart, strict=True)],
    )
    others = average[~torch.eye(steps, dtype=torch.bool)]
    outcome.notes.append(
        f"Mean over layers, the cosines of different time steps are {others.min():.2f} to {others.max():.2f}; 1 would "
        "be one direction at all of them, and 0 nothing in common. That they differ is the paper's reason for a "
        "threshold of its own at each time step. It shows colors and no numbers, of other data and networks."
    )
    return outcome


def microscope(settings: Settings) -> Outcome:
    """OTTT, NDOT and SLTT beside BPTT: cosine of the gradients, and agreement of the flips they would cause."""
    with _trained(settings) as (trainer, words):
        return _rules_beside_bptt(trainer, words)


def _rules_beside_bptt(trainer: Trainer, words: str) -> Outcome:
    assert trainer.flip is not None
    steps = trainer.config.time_steps
    state = {name: trainer.flip.state[parameter] for name, parameter in _binary(trainer).items()}
    rate, gamma = trainer.config.one_minus_beta1, trainer.config.gamma
    sums: dict[tuple[str, str, int], Tensor] = {}
    batches = _batches(trainer, 8)
    for inputs, labels in batches:
        found = {rule: step_gradients(trainer, rule, inputs, labels) for rule in _RULES}
        for name, parameter in _binary(trainer).items():
            for t in range(steps):

                def flips(gradient: Tensor, name: str = name, parameter: BinaryParameter = parameter) -> Tensor:
                    momentum = torch.lerp(state[name]["momentum"], gradient, rate)
                    return tbso_flips(signs(parameter), momentum, gradient.square().mean(), gamma, 0.0)

                truth = found["bptt"][name][t]
                for rule in _RULES[:-1]:
                    gradient = found[rule][name][t]
                    measured = torch.stack(
                        [
                            F.cosine_similarity(gradient.flatten(), truth.flatten(), dim=0),
                            (gradient.sign() == truth.sign()).float().mean(),
                            _overlap(flips(gradient), flips(truth)),
                        ]
                    )
                    key = (rule, name, t)
                    sums[key] = sums.get(key, torch.zeros(3)) + measured / len(batches)
    outcome = Outcome(
        "The microscope: online gradients beside BPTT's",
        f"{words}; mean over {len(batches)} batches. The paper does not compare them.",
        data=[
            {"rule": r, "layer": n, "time_step": t + 1, "cosine": float(c), "signs": float(s), "flips": float(f)}
            for (r, n, t), (c, s, f) in sums.items()
        ],
    )
    layers = list(_binary(trainer))
    for number, title in enumerate(("cosine with BPTT", "share of equal signs", "overlap of flips")):
        rows = [
            [rule.upper(), name, *(f"{float(sums[rule, name, t][number]):.3f}" for t in range(steps))]
            for rule in _RULES[:-1]
            for name in layers
        ]
        columns = ["rule", "layer", *(f"t = {t + 1}" for t in range(steps))]
        outcome.add_table(title, columns, rows)
    for number, title in ((0, "cosine with BPTT's gradient"), (2, "overlap of flips with BPTT's")):
        lines = {
            f"{rule.upper()}, {name}": [[t + 1, float(sums[rule, name, t][number])] for t in range(steps)]
            for rule in _RULES[:-1]
            for name in (layers[0], layers[-1])
        }
        outcome.add_lines(f"{title}, first and last binary layer", lines, "time step")
    last = {(rule, name): sums[rule, name, steps - 1] for rule in _RULES[:-1] for name in layers}
    seen = [
        f"{rule.upper()} {min(float(last[rule, name][0]) for name in layers):.2f} and "
        f"{min(float(last[rule, name][2]) for name in layers):.2f}"
        for rule in _RULES[:-1]
    ]
    outcome.notes = [
        "BPTT's gradient of L[t] reaches back through all steps before t. At t = 1 there are none and all rules agree. "
        f"Flips are those of T-BSO's next update, of the trained momentum and one gradient at 1 − β1 = {rate:g}; their "
        "overlap is what both flip over what either flips.",
        f"At the last time step, in the layer where it is lowest, cosine and overlap are: {'; '.join(seen)}. Flips "
        "agree less than gradients do: most weights are far from flipping under any rule, and those that are near "
        "take the side that a small part of the gradient decides.",
    ]
    return outcome


def _binary(trainer: Trainer) -> dict[str, BinaryParameter]:
    return {name: p for name, p in trainer.net.named_parameters() if isinstance(p, BinaryParameter)}


def _overlap(a: Tensor, b: Tensor) -> Tensor:
    either = (a | b).sum()
    return (a & b).sum() / either if either else torch.ones(())


def _rounded(matrix: Tensor) -> list[list[float]]:
    return [[round(float(value), 2) for value in row] for row in matrix]
