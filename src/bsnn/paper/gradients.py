"""Online gradients beside those of BPTT: their cosine, and the agreement of the flips that they would cause."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bsnn.nn.bits import signs
from bsnn.nn.trace import RuleName
from bsnn.optim import tbso_flips
from bsnn.paper._gradients import binary_parameters, first_batches, step_gradients, trained_network
from bsnn.paper._target import Findings, Settings
from bsnn.train.trainer import Trainer

_ONLINE_RULES: tuple[RuleName, ...] = ("ottt", "ndot", "sltt")


class _Key(NamedTuple):
    rule: str
    layer: str
    time_step: int


def measure(settings: Settings) -> Findings:
    """Compares OTTT, NDOT and SLTT with BPTT on a trained network, by layer and time step."""
    with trained_network(settings) as (trainer, setup):
        return _rules_beside_bptt(trainer, setup)


def _agreement(trainer: Trainer, batches: list[tuple[Tensor, Tensor]]) -> dict[_Key, Tensor]:
    """Cosine, share of equal signs and overlap of flips with BPTT, mean over the batches."""
    assert trainer.flip is not None
    config = trainer.config
    means: dict[_Key, Tensor] = {}
    for inputs, labels in batches:
        exact = step_gradients(trainer, "bptt", inputs, labels)
        for rule in _ONLINE_RULES:
            online = step_gradients(trainer, rule, inputs, labels)
            for layer, parameter in binary_parameters(trainer.net).items():
                momentum, weights = trainer.flip.state[parameter]["momentum"], signs(parameter)

                def flips(gradient: Tensor, momentum: Tensor = momentum, weights: Tensor = weights) -> Tensor:
                    after = torch.lerp(momentum, gradient, config.one_minus_beta1)
                    return tbso_flips(weights, after, gradient.square().mean(), config.gamma, 0.0)

                for t, (gradient, truth) in enumerate(zip(online[layer], exact[layer], strict=True)):
                    agreement = [
                        F.cosine_similarity(gradient.flatten(), truth.flatten(), dim=0),
                        (gradient.sign() == truth.sign()).float().mean(),
                        _overlap(flips(gradient), flips(truth)),
                    ]
                    key = _Key(rule, layer, t)
                    means[key] = means.get(key, torch.zeros(3)) + torch.stack(agreement) / len(batches)
    return means


def _overlap(a: Tensor, b: Tensor) -> Tensor:
    either = (a | b).sum()
    return (a & b).sum() / either if either else torch.ones(())


def _rules_beside_bptt(trainer: Trainer, setup: str) -> Findings:
    steps = trainer.config.time_steps
    layers = list(binary_parameters(trainer.net))
    batches = first_batches(trainer, 8)
    means = _agreement(trainer, batches)
    findings = Findings(
        "The microscope: online gradients beside BPTT's",
        f"{setup}; mean over {len(batches)} batches. The paper does not compare them.",
        data=[
            {"rule": rule, "layer": layer, "time_step": t + 1}
            | dict(zip(("cosine", "signs", "flips"), means[_Key(rule, layer, t)].tolist(), strict=True))
            for layer in layers
            for t in range(steps)
            for rule in _ONLINE_RULES
        ],
    )

    def over_time(number: int, rule: str, layer: str) -> list[float]:
        return [float(means[_Key(rule, layer, t)][number]) for t in range(steps)]

    for number, title in enumerate(("cosine with BPTT", "share of equal signs", "overlap of flips")):
        rows = [
            [rule.upper(), layer, *(f"{value:.3f}" for value in over_time(number, rule, layer))]
            for rule in _ONLINE_RULES
            for layer in layers
        ]
        findings.add_table(title, ["rule", "layer", *(f"t = {t + 1}" for t in range(steps))], rows)
    for number, title in ((0, "cosine with BPTT's gradient"), (2, "overlap of flips with BPTT's")):
        lines = {
            f"{rule.upper()}, {layer}": list(enumerate(over_time(number, rule, layer), 1))
            for rule in _ONLINE_RULES
            for layer in (layers[0], layers[-1])
        }
        findings.add_lines(f"{title}, first and last binary layer", lines, "time step")
    seen = []
    for rule in _ONLINE_RULES:
        cosine, overlap = (min(over_time(number, rule, layer)[-1] for layer in layers) for number in (0, 2))
        seen.append(f"{rule.upper()} {cosine:.2f} and {overlap:.2f}")
    findings.notes = [
        "BPTT's gradient of L[t] reaches back through all steps before t. At t = 1 there are none and all rules agree. "
        "Flips are those of T-BSO's next update, of the trained momentum and one gradient at 1 − β1 = "
        f"{trainer.config.one_minus_beta1:g}; their overlap is what both flip over what either flips.",
        f"At the last time step, in the layer where it is lowest, cosine and overlap are: {'; '.join(seen)}. Flips "
        "agree less than gradients do: most weights are far from flipping under any rule, and those that are near "
        "take the side that a small part of the gradient decides.",
    ]
    return findings
