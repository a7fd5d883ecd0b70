"""What flip optimizers share: settings, the initial momentum, sequences. test_folding.py has the lean way."""

import math

import pytest
import torch
from flip_cases import give, parameter

import bsnn
from bsnn.nn.bits import BinaryParameter, signs
from bsnn.optim import BSO, TBSO, FlipOptimizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: BSO(p, gamma=-1.0), "gamma: received -1.0"),
        (lambda p: BSO(p, gamma=math.nan), "gamma: received nan"),
        (lambda p: BSO(p, beta=1.0), "beta: received"),
        (lambda p: BSO(p, gamma=None), "gamma: received None; expected a finite number"),  # pyright: ignore[reportArgumentType]
        (lambda p: BSO(p, gamma=True), "gamma: received True"),
        (lambda p: BSO(p, beta="a"), "beta: received 'a'; expected one decay"),  # pyright: ignore[reportArgumentType]
        (lambda p: TBSO(p, betas=(0.9, -0.1), time_steps=1), "betas: received 0.9, -0.1"),
        (lambda p: TBSO(p, betas=0.9, time_steps=1), "betas: received 0.9; expected two decays"),  # pyright: ignore[reportArgumentType]
        (lambda p: TBSO([{"params": p, "betas": (0.9,)}], time_steps=1), "betas: received 0.9; expected two decays"),
        (lambda p: BSO([{"params": p, "gamma": "x"}]), "gamma: received 'x'"),
        (lambda p: BSO([{"params": p, "beta": (0.9, 0.9)}]), "beta: received"),
        (lambda p: TBSO(p, eps=-1e-3, time_steps=1), "eps: received"),
        (lambda p: TBSO(p, time_steps=0), "time_steps=0"),
        (lambda p: TBSO(p, time_steps=True), "time_steps=True"),
        (lambda p: TBSO([{"params": p, "time_steps": 7}], time_steps=2), "group with time_steps=7; expected 2"),
        (lambda p: BSO([{"params": p, "lr": 0.1}]), "received the setting lr; expected some of gamma"),
        (lambda p: BSO([{"params": p, "beta": 1.5}]), "beta: received"),
        (lambda p: BSO(p[0]), "received one parameter; expected a list"),
        (lambda p: BSO(p, initial_momentum=-1.0), "initial_momentum: received"),
        (lambda p: BSO([{"params": p, "gamma": -2.0}]), "gamma: received -2.0"),
    ],
)
def test_bad_settings_are_refused(make, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        make([parameter(1, -1)])


def test_groups_take_decays_as_the_constructor_does() -> None:
    first = BSO([{"params": [parameter(1)], "beta": 0.5}]).param_groups[0]
    assert first["one_minus_beta1"] == 0.5
    second = TBSO([{"params": [parameter(1)], "betas": (0.5, 0.75)}], time_steps=2).param_groups[0]
    assert (second["one_minus_beta1"], second["one_minus_beta2"]) == (0.5, 0.25)


def test_initial_momentum_guards_trained_weights() -> None:
    torch.manual_seed(0)
    flipped = {}
    for delta in (0.0, 1.0):
        weight = BinaryParameter.from_signs(torch.randn(1000))
        flip = BSO([weight], gamma=0.0, initial_momentum=delta)
        weight.grad = torch.randn(1000)
        flip.step()
        flipped[delta] = flip.flip_ratio
    assert flipped[0.0] == pytest.approx(0.5, abs=0.05)
    assert flipped[1.0] == 0.0


def test_initial_momentum_holds_on_to_weights_that_are_loaded_later() -> None:
    weight = BinaryParameter.from_signs(torch.randn(1000))
    flip = BSO([weight], gamma=0.0, initial_momentum=1.0)
    weight.bits.copy_(BinaryParameter.from_signs(torch.randn(1000)).bits)
    weight.grad = torch.randn(1000)
    flip.step()
    assert flip.flip_ratio == 0.0


def test_parameters_without_gradient_are_left_alone() -> None:
    used, unused = parameter(1, 1), parameter(1, 1)
    flip = BSO([used, unused], gamma=0.0)
    give(used, 1.0, -1.0)
    flip.step()
    assert flip.flip_counts == [1, 0]
    assert flip.flip_ratio == 0.25


def test_a_bad_gradient_ends_an_accumulated_sequence_without_a_mark_of_its_own() -> None:
    weight, idle = parameter(1, 1), parameter(1, 1)
    flip = BSO([weight, idle], gamma=0.0, beta=0.5)
    give(weight, 1.0, 1.0)
    flip.accumulate()
    give(weight, math.nan, 1.0)
    with pytest.raises(bsnn.UserError, match="holds NaN"):
        flip.accumulate()
    assert flip.state[weight]["momentum"].tolist() == [0.5, 0.5]
    assert signs(weight).tolist() == [1, 1]
    # What follows is a new sequence, which decays the momentum; a parameter without gradients stays as it is.
    flip.state[idle]["momentum"].fill_(1.0)
    give(weight, 1.0, 1.0)
    flip.accumulate()
    flip.step()
    assert flip.state[weight]["momentum"].tolist() == [0.75, 0.75]
    assert signs(idle).tolist() == [1, 1]
    assert flip.flip_counts == [2, 0]


def test_moving_the_network_moves_the_momentum_along() -> None:
    layer = bsnn.BinaryLinear(4, 2)
    flip = BSO([layer.weight])
    layer.double()
    layer(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    flip.step()
    assert flip.state[layer.weight]["momentum"].dtype == torch.float64


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("method", ["accumulate", "step"])
def test_gradients_that_have_a_graph_give_none_to_the_momentum(method: str, bits: int) -> None:
    weight = parameter(1, -1)
    flip = BSO([weight], momentum_bits=bits)
    weight.grad = 2 * torch.ones(2, requires_grad=True)  # as of backward(create_graph=True)
    getattr(flip, method)()
    kept = [value for value in flip.state[weight].values() if isinstance(value, torch.Tensor)]
    assert kept
    assert not any(value.requires_grad for value in kept)


def test_momentum_of_half_precision_parameters_is_single() -> None:
    weight = BinaryParameter.from_signs(torch.ones(4, dtype=torch.bfloat16))
    flip = TBSO([weight], time_steps=1, initial_momentum=0.5)
    for _ in range(3):
        weight.grad = torch.ones(4, dtype=torch.bfloat16)
        flip.step(t=0)
    momentum = flip.state[weight]["momentum"]
    assert momentum.dtype == torch.float32
    assert momentum[0].item() == pytest.approx(-0.5 * 0.999**3 + (1 - 0.999**3), rel=1e-5)


def test_an_own_rule_takes_a_few_lines() -> None:
    class SignOnly(FlipOptimizer):
        def __init__(self, params) -> None:
            super().__init__(params, {"one_minus_beta1": 1.0, "initial_momentum": 0.0})

        def rule(self, group, parameter, t):
            return lambda signs, momentum: signs * momentum > 0

    weight = parameter(1, -1)
    give(weight, 1.0, 1.0)
    SignOnly([weight]).step()
    assert signs(weight).tolist() == [-1, -1]


def test_a_state_of_other_parameters_is_refused_by_name() -> None:
    flip = BSO([parameter(1, -1)])
    two = BSO([parameter(1, -1), parameter(1, -1)])
    groups = BSO([{"params": [parameter(1, -1)]}, {"params": [parameter(1, -1)]}])
    with pytest.raises(bsnn.UserError, match="received nothing; expected state and param_groups"):
        flip.load_state_dict({})
    for other, received in ((two, r"\[2\]"), (groups, r"\[1, 1\]")):
        with pytest.raises(bsnn.UserError, match=rf"received groups of {received} parameters; expected \[1\]"):
            flip.load_state_dict(other.state_dict())
    bad = flip.state_dict()
    bad["param_groups"][0]["gamma"] = -1.0
    with pytest.raises(bsnn.UserError, match=r"gamma: received -1\.0"):
        flip.load_state_dict(bad)


@pytest.mark.parametrize("bits", [32, 8])
def test_momentum_of_another_shape_is_refused(bits: int) -> None:
    saved = BSO([BinaryParameter.from_signs(torch.ones(4, 6))], momentum_bits=bits).state_dict()
    other = BSO([BinaryParameter.from_signs(torch.ones(6, 4))], momentum_bits=bits)
    with pytest.raises(bsnn.UserError, match=r"momentum of shape \(4, 6\) for weights of shape \(6, 4\)"):
        other.load_state_dict(saved)


def test_an_own_rule_may_keep_numbers() -> None:
    class Counting(BSO):
        def initial_state(self, parameter):
            return {**super().initial_state(parameter), "updates": 0}

        def observe(self, group, parameter, mean_square, t) -> None:
            self.state[parameter]["updates"] += 1

    weight = parameter(1, -1)
    flip, other = Counting([weight]), Counting([weight])
    give(weight, 1.0, 1.0)
    flip.step()
    other.load_state_dict(flip.state_dict())
    assert other.state[weight]["updates"] == 1
