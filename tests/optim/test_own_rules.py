"""Code of the user's own, named on the command line: what is wrong with it is said in one line."""

from pathlib import Path

import pytest

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
    weight.sum()
    flip.step()
    assert flip.flip_counts == [0]


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
