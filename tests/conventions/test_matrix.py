"""PyTorch's conventions, for every flip optimizer, gradient rule and neuron.

Each cell of the matrix trains a tiny network in one of the ways below and finds it equal to a plain reference (dense
±1 weights, momentum and flips by formula, gradients from `torch.autograd.grad` of a second network), or refused by us
with nothing changed. The full product would take minutes: every pair of two of the four (convention, optimizer, rule,
neuron) stands in at least one cell. Rounding makes an 8-bit momentum differ from the formula by design; tests/optim
compares its lean way with its plain one.
"""

import copy
import importlib.util
import io
import itertools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from flip_cases import SETTINGS
from reference import TWINS, DenseBSO
from torch import Tensor, nn
from torch.optim import lr_scheduler

import bsnn
from bsnn.nn import neuron as neurons
from bsnn.nn.bits import pack, signs
from bsnn.optim import FlipOptimizer, Schedule, folding, rules

T, UPDATES = 2, 4
Gradients = list[Tensor | None]


def _example(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its optimizer can be pickled
    spec.loader.exec_module(module)
    return module


class DensePatient(DenseBSO):
    """The rule of examples/own_rule.py."""

    def threshold(self, mean_square: float, t: int) -> float:
        return self.config["gamma"] * float(self.momentum.abs().max())


# Every optimizer with its twin and a γ at which some weights flip and others do not.
OPTIMIZERS: dict[str, tuple[type[FlipOptimizer], type[DenseBSO], float]] = {
    "bso": (rules.find("bso"), TWINS["bso"], 1e-4),
    "tbso": (rules.find("tbso"), TWINS["tbso"], 0.05),
    "sigma": (rules.find("sigma"), TWINS["sigma"], 0.3),
    "own_rule": (_example("own_rule").Patient, DensePatient, 0.2),
}
GRADIENTS = ["ottt", "ndot", "sltt", "bptt", "bptt-full"]
# A new neuron joins by its name; those that this version does not have are left out.
NEURONS = [name for name in ("LIF", "IF", "ParametricLIF", "HardResetLIF", "AdaptiveLIF") if hasattr(bsnn, name)]


def network(neuron: str, gradient: str, *, tied: bool = False) -> bsnn.Sequential:
    torch.manual_seed(3)
    first, second = bsnn.BinaryLinear(6, 6), bsnn.BinaryLinear(6, 6)
    if tied:
        second.weight = first.weight
    make = getattr(bsnn, neuron)
    layers = [nn.Linear(4, 6), make(gradient=gradient), first, make(gradient=gradient), second, make(gradient=gradient)]
    return bsnn.Sequential(*layers, nn.Linear(6, 3)).double()


def sequence_loss(net: bsnn.Sequential, k: int) -> Tensor:
    """The loss of sequence `k`, over its time steps."""
    random = torch.Generator().manual_seed(k)
    frames = 3 * torch.randn(T, 5, 4, generator=random, dtype=torch.float64)
    labels, state, total = torch.arange(5) % 3, None, torch.zeros((), dtype=torch.float64)
    for frame in frames:
        logits, state = net(frame, state)
        total = total + nn.functional.cross_entropy(logits, labels)
    return total


class Case:
    """A network and a flip optimizer of the library, and their plain reference."""

    def __init__(self, optimizer: str, gradient: str, neuron: str, *, tied: bool = False) -> None:
        rule, twin, gamma = OPTIMIZERS[optimizer]
        self.config: dict[str, Any] = {**SETTINGS, "gamma": gamma, "one_minus_beta1": 0.4, "time_steps": T}
        self.net, self._other = (network(neuron, gradient, tied=tied) for _ in range(2))
        self.flip = rules.build(rule, self.weights, self.config)
        self._twins = [twin(signs(weight), self.config) for weight in self.weights]

    @property
    def weights(self) -> list[bsnn.BinaryParameter]:
        return bsnn.split_parameters(self.net)[0]

    def backward(self, k: int) -> None:
        sequence_loss(self.net, k).backward()

    def gradients(self, k: int) -> list[Tensor]:
        """The reference's gradients at its own weights."""
        weights = bsnn.split_parameters(self._other)[0]
        for weight, twin in zip(weights, self._twins, strict=True):
            weight.bits.copy_(pack(twin.weights >= 0))
        return list(torch.autograd.grad(sequence_loss(self._other, k), weights))

    def update_reference(self, gradients: Gradients, k: int) -> None:
        for twin, gradient in zip(self._twins, gradients, strict=True):
            if gradient is not None:
                twin.update(gradient, k % T)

    def check(self) -> None:
        for weight, twin in zip(self.weights, self._twins, strict=True):
            assert torch.equal(signs(weight), twin.weights)
            torch.testing.assert_close(self.flip.momentum(weight), twin.momentum, rtol=1e-12, atol=1e-15)


# A convention makes update `k` with the library and returns the gradients that the reference should use for it.
Convention = Callable[[Case, int], Gradients]
CONVENTIONS: dict[str, Convention] = {}


def convention(function: Convention) -> Convention:
    CONVENTIONS[function.__name__] = function
    return function


def step(case: Case, k: int) -> None:
    case.flip.step(t=k % T)
    case.flip.zero_grad()


@convention
def plain(case: Case, k: int) -> Gradients:
    case.backward(k)
    assert all(weight.grad is not None for weight in case.weights)
    step(case, k)
    return [*case.gradients(k)]


@convention
def folded(case: Case, k: int) -> Gradients:
    with folding(case.flip):
        case.backward(k)
        step(case, k)
    return [*case.gradients(k)]


@convention
def clip_norm(case: Case, k: int) -> Gradients:
    case.backward(k)
    norm = nn.utils.clip_grad_norm_(case.weights, 0.004)
    step(case, k)
    gradients = case.gradients(k)
    expected = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    torch.testing.assert_close(norm, expected)
    assert expected > 0.004
    return [gradient * 0.004 / (expected + 1e-6) for gradient in gradients]


@convention
def clip_value(case: Case, k: int) -> Gradients:
    case.backward(k)
    nn.utils.clip_grad_value_(case.weights, 1e-3)
    step(case, k)
    return [gradient.clamp(-1e-3, 1e-3) for gradient in case.gradients(k)]


@convention
def clip_before_accumulate(case: Case, k: int) -> Gradients:
    """Two backward passes add up, are clipped and accumulated; one step flips."""
    case.backward(k)
    case.backward(k + 10)
    nn.utils.clip_grad_value_(case.weights, 1e-3)
    case.flip.accumulate(t=k % T)
    assert all(weight.grad is None for weight in case.weights)
    case.flip.step()
    sums = (one + two for one, two in zip(case.gradients(k), case.gradients(k + 10), strict=True))
    return [total.clamp(-1e-3, 1e-3) for total in sums]


@convention
def two_backwards(case: Case, k: int) -> Gradients:
    case.backward(k)
    case.backward(k + 10)
    step(case, k)
    return [one + two for one, two in zip(case.gradients(k), case.gradients(k + 10), strict=True)]


@convention
def zero_grad(case: Case, k: int) -> Gradients:
    case.backward(k + 10)
    (case.net if k % 2 else case.flip).zero_grad()
    case.backward(k)
    step(case, k)
    return [*case.gradients(k)]


def _scaled(case: Case, k: int, *, unscale: bool) -> Gradients:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    if k == 1:  # a loss that overflows, whose step is skipped
        scaler.scale(sequence_loss(case.net, k) * torch.inf).backward()
    else:
        scaler.scale(sequence_loss(case.net, k)).backward()
    if unscale:
        scaler.unscale_(case.flip)
    scaler.step(case.flip, t=k % T)
    scaler.update()
    assert scaler.get_scale() == (2.0**9 if k == 1 else 2.0**11)
    case.flip.zero_grad()
    return [None] * len(case.weights) if k == 1 else [*case.gradients(k)]


@convention
def scaler(case: Case, k: int) -> Gradients:
    return _scaled(case, k, unscale=False)


@convention
def scaler_unscaled(case: Case, k: int) -> Gradients:
    return _scaled(case, k, unscale=True)


@convention
def schedule(case: Case, k: int) -> Gradients:
    """A scheduler of torch is refused; ours halves the rate of the momentum."""
    if k == 1:
        with pytest.raises(bsnn.UserError, match=r"there is no setting 'lr'.*bsnn\.optim\.Schedule"):
            lr_scheduler.CosineAnnealingLR(case.flip, T_max=10)
        Schedule(case.flip, one_minus_beta1=lambda count: 0.5)
        case.config["one_minus_beta1"] /= 2  # the twins read it from here
    return plain(case, k)


def _quadruple(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.grad.mul_(4)


@convention
def hooks(case: Case, k: int) -> Gradients:
    """Hooks that change gradients, on the tensor and after they are in `.grad`, in both ways of training."""
    if k == 0:
        case.weights[0].register_hook(lambda gradient: 2 * gradient)
        case.weights[1].register_post_accumulate_grad_hook(_quadruple)
    (folded if k % 2 else plain)(case, k)
    first, second = case.gradients(k)
    return [2 * first, 4 * second]


@convention
def freeze(case: Case, k: int) -> Gradients:
    """The first weights are frozen for two updates, in both ways of training."""
    first = case.weights[0]
    first.requires_grad_(k >= 2)
    with folding(case.flip) if k % 2 else folding():
        case.backward(k)
        step(case, k)
    gradients = case.gradients(k)
    return [None if k < 2 else gradients[0], gradients[1]]


@convention
def share(case: Case, k: int) -> Gradients:
    """The two layers have one parameter (see `test_cell`)."""
    assert len(case.weights) == 1
    return (folded if k % 2 else plain)(case, k)


@convention
def copies(case: Case, k: int) -> Gradients:
    if k == 2:
        case.net, case.flip = copy.deepcopy((case.net, case.flip))
    if k == 3:
        case.net, case.flip = pickle.loads(pickle.dumps((case.net, case.flip)))
    return plain(case, k)


@convention
def save_and_load(case: Case, k: int) -> Gradients:
    if k in (1, 3):
        buffer = io.BytesIO()
        torch.save([case.net.state_dict(), case.flip.state_dict()], buffer)
        buffer.seek(0)
        net, flip = torch.load(buffer)
        case.net = copy.deepcopy(case.net)
        for weight in case.weights:  # another network, until its weights are loaded
            weight.flip_(torch.ones(weight.shape, dtype=torch.bool))
        case.flip = rules.build(type(case.flip), case.weights, SETTINGS | {"time_steps": T})
        case.net.load_state_dict(net)
        case.flip.load_state_dict(flip)
    return plain(case, k)


@convention
def ordinary_optimizer(case: Case, k: int) -> Gradients:
    """An ordinary optimizer and an average of weights refuse binary ones and change nothing."""
    case.backward(k)
    kind = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)[k % 3]
    for options in ({}, {"foreach": True}, {"fused": True}):
        with pytest.raises(bsnn.UserError, match="flip optimizer"):
            kind(case.weights, lr=0.1, **options).step()
    average = torch.optim.swa_utils.AveragedModel(case.net)
    with pytest.raises(bsnn.UserError, match="flip optimizer"):
        average.update_parameters(case.net)
    step(case, k)
    return [*case.gradients(k)]


# torch.compile joins here, with a convention that replaces `case.net` by `torch.compile(case.net)` at k == 0.


def pairwise(*choices: list[str]) -> list[tuple[str, ...]]:
    """Cells of the product in which every two choices of two factors meet, chosen greedily."""

    def pairs(cell: tuple[str, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(cell), 2))

    product = list(itertools.product(*choices))
    open_pairs: set[Any] = set().union(*map(pairs, product))
    chosen = []
    while open_pairs:
        best = max(product, key=lambda cell: len(pairs(cell) & open_pairs))
        chosen.append(best)
        open_pairs -= pairs(best)
    return chosen


@pytest.mark.parametrize(
    ("name", "optimizer", "gradient", "neuron"), pairwise([*CONVENTIONS], [*OPTIMIZERS], GRADIENTS, NEURONS)
)
def test_cell(name: str, optimizer: str, gradient: str, neuron: str) -> None:
    try:
        network(neuron, gradient)
    except bsnn.UserError:
        assert neuron != "LIF"  # which has every gradient rule
        return  # refused by us: this neuron has no such gradient
    case = Case(optimizer, gradient, neuron, tied=name == "share")
    before = [weight.bits.clone() for weight in case.weights]
    for k in range(UPDATES):
        gradients = CONVENTIONS[name](case, k)
        case.update_reference(gradients, k)
        case.check()
    assert any(not torch.equal(weight.bits, bits) for weight, bits in zip(case.weights, before, strict=True))


def test_every_optimizer_and_gradient_rule_stands_in_the_matrix() -> None:
    assert {*rules.names()} <= {*OPTIMIZERS}
    for name in GRADIENTS:
        neurons.gradient_rule(name)  # pyright: ignore[reportArgumentType]
    with pytest.raises(bsnn.UserError, match=f"expected one of {', '.join(GRADIENTS)}, module:Class"):
        neurons.gradient_rule("none")  # pyright: ignore[reportArgumentType]
