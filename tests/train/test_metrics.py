"""What a person is told about an epoch, at the very numbers where it begins; and what is no line of metrics."""

from typing import Any

import pytest

import bsnn
import bsnn.train.metrics as metrics_module
from bsnn.train.metrics import EpochMetrics, Tally, check_metrics, warnings_of


def line(**changes: Any) -> EpochMetrics:
    plain: dict[str, Any] = {
        "epoch": 1, "train_loss": 1.0, "train_accuracy": 0.5, "test_accuracy": 0.5, "test_loss": 1.0,
        "learning_rate": 0.1, "firing_rates": {}, "seconds": 1.0, "peak_bytes": 1, "warnings": [],
    }  # fmt: skip
    return plain | changes  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.0, ["layer lif hardly ever fires (0.00%)"]),
        (0.9e-4, ["layer lif hardly ever fires (0.01%)"]),
        (1e-4, []),
        (0.99, []),
        (0.995, ["layer lif fires nearly always (99.50%)"]),
    ],
)
def test_dead_and_saturated_layers(rate: float, expected: list[str]) -> None:
    assert warnings_of(line(firing_rates={"lif": rate, "other": 0.2}), []) == expected


@pytest.mark.parametrize(("rate", "silent"), [(0.1, False), (0.002, False), (0.0019, True)])
def test_weights_that_stop_flipping_before_the_rate_is_annealed(rate: float, silent: bool) -> None:
    history = [line(one_minus_beta1=0.1, flip_ratio=0.01, flip_ratios={"w": 0.01})]
    now = line(one_minus_beta1=rate, flip_ratio=0.0, flip_ratios={"w": 0.0, "v": 1e-9})
    expected = [] if silent else ["the weights of w have stopped flipping"]
    assert warnings_of(now, history) == expected
    assert warnings_of(now, []) == ["the weights of w have stopped flipping"]


@pytest.mark.parametrize(
    ("ratios", "grows"),
    [((0.01, 0.02, 0.04), True), ((0.01, 0.015, 0.04), False), ((0.01, 0.02, 0.03), False), ((0.02, 0.04), False)],
)
def test_flips_that_grow_by_half_twice_in_a_row(ratios: tuple[float, ...], grows: bool) -> None:
    lines = [line(one_minus_beta1=0.1, flip_ratio=ratio, flip_ratios={"w": ratio}) for ratio in ratios]
    earlier = line(one_minus_beta1=0.1, flip_ratio=0.9, flip_ratios={"w": 0.9})
    history = [earlier, *lines[:-1]] if len(ratios) > 2 else lines[:-1]
    assert bool(warnings_of(lines[-1], history)) == grows


def test_without_binary_weights_nothing_is_said_of_flips() -> None:
    assert warnings_of(line(flip_ratio=0.0), [line()]) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"epoch": True}, "epoch"),
        ({"train_loss": "1"}, "train_loss"),
        ({"warnings": {}}, "warnings"),
        ({"firing_rates": [0.5]}, "firing_rates"),
        ({"firing_rates": {"lif": "0.5"}}, "firing_rates"),
        ({"gamma": None, "flip_ratios": 3}, "gamma, flip_ratios"),
    ],
)
def test_what_is_no_line_is_refused(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(bsnn.UserError, match=f"^here: received an epoch without a proper {names}; expected"):
        check_metrics(line(**changes), "here")


def test_a_line_passes_and_a_missing_field_is_named() -> None:
    whole = line(gamma=5e-7, flip_ratios={"w": 0})
    assert check_metrics(whole, "here") is whole
    without = {name: value for name, value in whole.items() if name != "seconds"}
    with pytest.raises(bsnn.UserError, match="without a proper seconds"):
        check_metrics(without, "here")
    with pytest.raises(bsnn.UserError, match=r"received \[\]; expected an epoch"):
        check_metrics([], "here")


def test_a_tally_starts_at_nothing() -> None:
    first, second = Tally(), Tally()
    assert first == Tally(0.0, 0, 0, 0, 0.0, 0.0, [], 0, 0)
    first.flips.append(1)
    assert second.flips == []


def test_a_tally_adds_both_kinds_of_time(monkeypatch) -> None:
    monkeypatch.setattr(metrics_module.time, "perf_counter", lambda: 10.0)
    tally = Tally(seconds=1.0, processor_seconds=2.0)
    assert tally.add_time(4.0) == 10.0
    tally.add(1.0, 2, 1, 2, 3.0)
    assert (tally.seconds, tally.processor_seconds) == (7.0, 5.0)


@pytest.mark.parametrize(("stage", "warned"), [({"stage": 1}, True), ({"stage": 2}, False), ({}, True)])
def test_flips_are_compared_within_a_stage(stage: dict[str, int], warned: bool) -> None:
    settings = {"flip_ratios": {"w": 0.1}, "one_minus_beta1": 1e-3}
    history = [line(flip_ratio=ratio, **settings) for ratio in (0.01, 0.02)]
    found = warnings_of(line(flip_ratio=0.04, **settings, **stage), history)
    assert any("flips grow" in warning for warning in found) == warned
