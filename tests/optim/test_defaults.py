"""The settings of a flip optimizer that is given none: those of the paper, or of its own docstring."""

import inspect

import pytest

import bsnn
from bsnn.optim import FlipOptimizer, rules


@pytest.mark.parametrize(
    ("rule", "settings", "expected"),
    [
        (bsnn.optim.BSO, {}, {"gamma": 5e-7, "one_minus_beta1": 1 - 0.999, "initial_momentum": 0.0}),
        (
            bsnn.optim.TBSO,
            {"time_steps": 4},
            {
                "gamma": 5e-7, "one_minus_beta1": 1 - 0.999, "one_minus_beta2": 1 - 0.99999, "eps": 1e-20,
                "time_steps": 4, "initial_momentum": 0.0,
            },
        ),
        (bsnn.optim.SigmaBSO, {}, {"gamma": 2.0, "one_minus_beta1": 1 - 0.99, "initial_momentum": 0.0}),
    ],
)  # fmt: skip
def test_defaults(rule: type[FlipOptimizer], settings: dict, expected: dict) -> None:
    flip = rule([bsnn.BinaryLinear(4, 2).weight], **settings)
    assert expected.items() <= flip.defaults.items()
    assert inspect.signature(rule).parameters["momentum_bits"].default == 32
    assert flip.momentum(flip.param_groups[0]["params"][0]).count_nonzero() == 0


def test_an_unknown_rule_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(bsnn.UserError, match=r"received 'adam'; expected one of bso, .*tbso.*, or module:Class"):
        rules.find("adam")


def test_a_schedule_that_is_loaded_goes_on_from_the_saved_settings() -> None:
    saved, other = (bsnn.optim.BSO([bsnn.BinaryLinear(4, 2).weight], gamma=gamma) for gamma in (0.5, 0.25))
    schedules = [bsnn.optim.Schedule(flip, gamma=lambda update: 1 / (1 + update)) for flip in (saved, other)]
    schedules[0].step()
    schedules[1].load_state_dict(schedules[0].state_dict())
    for schedule in schedules:
        schedule.step()
    assert [flip.param_groups[0]["gamma"] for flip in (saved, other)] == [0.5 / 3, 0.5 / 3]
