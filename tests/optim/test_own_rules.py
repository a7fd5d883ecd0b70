"""Code of the user's own, named on the command line: what is wrong with it is said in one line."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import bsnn
from bsnn import UserError
from bsnn.nn import surrogate
from bsnn.optim import FlipOptimizer, rules

MODULE = """
from bsnn.optim import FlipOptimizer

number = 3

class Ruleless(FlipOptimizer):
    def __init__(self, params, beta=0.9):
        super().__init__(params, {"one_minus_beta1": 1 - beta})

class Demanding(Ruleless):
    def __init__(self, params, temperature):
        super().__init__(params)

class Dull:
    pass

class Particular:
    def __init__(self, width):
        pass
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_own.py").write_text(MODULE)
    (tmp_path / "unfinished.py").write_text("class Rule(")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":Rule", "received ':Rule'; expected module:Name"),
        ("users_own:", "received 'users_own:'; expected module:Name"),
        ("nowhere_to_be_found:Rule", "there is no module nowhere_to_be_found"),
        ("unfinished:Rule", r"unfinished cannot be imported \(SyntaxError"),
        ("users_own:Rule", "users_own has no 'Rule'"),
        ("users_own:number", "expected a subclass of bsnn.optim.FlipOptimizer"),
    ],
)
def test_a_rule_that_cannot_be_found_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rules.find(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("Ruleless", "Ruleless has no flip rule; override `rule`"), ("Demanding", "Demanding requires 'temperature'")],
)
def test_a_rule_that_cannot_be_built_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rules.build(rules.find(f"users_own:{name}"), [bsnn.BinaryLinear(8, 4).weight], {"one_minus_beta1": 0.1})


def test_a_rule_needs_a_rate_and_nothing_else() -> None:
    class Least(FlipOptimizer):
        def rule(self, group, parameter, t):
            return lambda signs, momentum: signs * momentum > 0

    weight = bsnn.BinaryLinear(8, 4).weight
    with pytest.raises(UserError, match="expected one_minus_beta1"):
        Least([weight], {})
    flip = Least([weight], {"one_minus_beta1": 0.1})
    flip.step()
    assert flip.flip_counts == [0]


class PerChannel(FlipOptimizer):
    """Flips where W·M is above the mean |M| of the output channel."""

    def __init__(self, params, momentum_bits=32) -> None:
        super().__init__(params, {"one_minus_beta1": 0.5}, momentum_bits=momentum_bits)

    def rule(self, group, parameter, t):
        return per_channel


def per_channel(signs: Tensor, momentum: Tensor) -> Tensor:
    return signs * momentum > momentum.abs().mean(dim=tuple(range(1, momentum.dim())), keepdim=True)


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_rule_sees_whole_parameters_in_their_shape(bits: int, accumulate: bool) -> None:
    weights = [bsnn.BinaryConv2d(300, 100, 3).weight, bsnn.BinaryLinear(7, 3).weight]  # above and below 2¹⁸ weights
    assert weights[0].numel() > 1 << 18
    flip = PerChannel(weights, momentum_bits=bits)
    before = [bsnn.signs(weight) for weight in weights]
    for weight in weights:
        weight.grad = torch.randn(weight.shape) * torch.rand(len(weight)).view(-1, *[1] * (weight.dim() - 1))
    if accumulate:
        flip.accumulate()
    flip.step()
    for weight, old, count in zip(weights, before, flip.flip_counts, strict=True):
        expected = per_channel(old, flip.momentum(weight))
        assert torch.equal(bsnn.signs(weight) != old, expected)
        assert count == expected.sum() > 0


def test_only_a_rule_that_says_so_is_given_pieces() -> None:
    shapes: list[tuple[int, ...]] = []

    class Whole(bsnn.optim.BSO):
        def rule(self, group, parameter, t):
            def flips(signs: Tensor, momentum: Tensor) -> Tensor:
                shapes.append(tuple(momentum.shape))
                return signs * momentum > 0

            return flips

    class Pieces(Whole):
        elementwise = True

    class Same(Pieces):
        label = "overrides nothing"

    class Top:
        rule = Whole.rule

    class Mixed(Top, bsnn.optim.BSO):
        pass

    class Tied(Mixed):
        elementwise = True

    assert [rules.find(name).elementwise for name in rules.names()] == [True] * len(rules.names())
    assert (Whole.elementwise, Pieces.elementwise, Same.elementwise) == (False, True, True)
    assert (Mixed.elementwise, Tied.elementwise) == (False, True)
    ends = []
    for kind in (Whole, Pieces, Mixed, Same):
        torch.manual_seed(0)
        weight = bsnn.BinaryLinear(600, 500).weight
        weight.grad = torch.randn(500, 600)
        kind([weight]).step()
        ends.append(weight.bits)
    pieces = [(1 << 18,), (500 * 600 - (1 << 18),)]
    assert shapes == [(500, 600), *pieces, (500, 600), *pieces]
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_a_rule_of_one_object_sees_whole_parameters() -> None:
    weight = bsnn.BinaryConv2d(4, 8, 3).weight
    weight.grad = torch.randn(weight.shape)
    flip, before = bsnn.optim.BSO([weight]), bsnn.signs(weight)
    flip.rule = lambda group, parameter, t: per_channel
    flip.step()
    assert torch.equal(bsnn.signs(weight) != before, per_channel(before, flip.momentum(weight)))


@pytest.mark.parametrize(
    ("flips", "message"),
    [
        (lambda signs, momentum: signs * momentum, r"returned torch.float32 of shape \(3, 8\); expected torch.bool"),
        (lambda signs, momentum: (momentum > 0)[:, :1], r"torch.bool of shape \(3, 1\); expected torch.bool of shape"),
        (lambda signs, momentum: None, r"returned None; expected torch.bool of shape \(3, 8\)"),
        (
            lambda signs, momentum: momentum.zero_() > 1,
            "wrote to the momentum that it was given; expected it to be read",
        ),
    ],
)
def test_a_rule_that_returns_or_does_something_else_is_refused(flips, message: str) -> None:
    class Rule(FlipOptimizer):
        def rule(self, group, parameter, t):
            return flips

    weight = bsnn.BinaryLinear(8, 3).weight
    weight.grad = torch.ones(3, 8)
    with pytest.raises(UserError, match=f"Rule: its rule .*{message}|{message}"):
        Rule([weight], {"one_minus_beta1": 0.1}).step()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("users_own:Dull", "has no method `derivative`"),
        ("users_own:Particular", "cannot be built without arguments"),
        ("users_own:number", "cannot be built without arguments"),
        ("steep", "received 'steep'; expected one of sigmoid"),
    ],
)
def test_a_surrogate_that_is_none_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        surrogate.named(name)
