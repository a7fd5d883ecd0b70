"""T-BSO: sequences worked out by hand, and its time steps."""

import copy

import pytest
import torch
from flip_cases import give, parameter

import bsnn
from bsnn.nn.bits import BinaryParameter, signs
from bsnn.optim import BSO, TBSO


def test_tbso_against_a_sequence_by_hand() -> None:
    # β1 = β2 = 0.5, γ = 0.5, T = 2, ε = 0. t = 0: G = (2, −2), v[0] = 0.5·4 = 2, threshold 0.5·√2 ≈ 0.707;
    # M = (1, −1): W·M = (1, 1) flips both. t = 1: G = (1, 5), v[1] = 0.5·13 = 6.5, threshold ≈ 1.275;
    # M = (1, 2), W = (−1, 1): W·M = (−1, 2) flips the second. Again t = 0: G = (0, 0), v[0] = 1, threshold 0.5;
    # M = (0.5, 1), W = (−1, −1): none.
    weight = parameter(1, -1)
    flip = TBSO([weight], gamma=0.5, betas=(0.5, 0.5), eps=0.0, time_steps=2)
    steps = [
        (0, (2.0, -2.0), [-1, 1], [2.0, 0.0]),
        (1, (1.0, 5.0), [-1, -1], [2.0, 6.5]),
        (0, (0.0, 0.0), [-1, -1], [1.0, 6.5]),
    ]
    for t, gradient, expected, moments in steps:
        give(weight, *gradient)
        flip.step(t=t)
        assert signs(weight).tolist() == expected
        assert flip.state[weight]["second_moment"].tolist() == moments


def test_epsilon_stands_inside_the_root() -> None:
    # v = 0: the threshold is γ·√ε = 0.5·√0.04 = 0.1 inside the root; outside it would be 0.02.
    weight = parameter(1, 1)
    flip = TBSO([weight], gamma=0.5, betas=(0.0, 1 - 1e-12), eps=0.04, time_steps=1)
    give(weight, 0.05, 0.2)
    flip.step(t=0)
    assert signs(weight).tolist() == [1, -1]


def test_bias_correction_makes_v_that_of_the_gradients_seen() -> None:
    # 1 − β2 = 0.25. After G² = 4 it is 4, where the paper's v is 1. Then G² = 16: v = 0.75·1 + 0.25·16 = 4.75, of which
    # 1 − 0.75² = 0.4375 is filled. The threshold is γ = 0.5 times the root: 1 at first, where the paper's would be 0.5.
    weight = parameter(1, 1, 1, 1)
    flip = TBSO([weight], gamma=0.5, betas=(0.6, 0.75), eps=0.0, time_steps=1, bias_correction=True)
    give(weight, 2.0, -2.0, 2.0, -2.0)  # M = ±0.8, below 1
    flip.step(t=0)
    assert signs(weight).tolist() == [1, 1, 1, 1]
    assert flip.second_moment(weight).tolist() == [4.0]
    saved = copy.deepcopy(flip.state_dict())
    give(weight, 4.0, 4.0, -4.0, -4.0)  # M = 0.6·±0.8 ± 1.6; only the first is over √(4.75/0.4375)/2 = 1.65
    flip.step(t=0)
    assert signs(weight).tolist() == [-1, 1, 1, 1]
    assert flip.second_moment(weight).tolist() == pytest.approx([4.75 / 0.4375])
    resumed = TBSO([parameter(1, 1, 1, 1)], betas=(0.6, 0.75), time_steps=1, bias_correction=True)
    resumed.load_state_dict(saved)
    assert resumed.second_moment(resumed.param_groups[0]["params"][0]).tolist() == [4.0]
    with pytest.raises(bsnn.UserError, match="differs in filled"):
        TBSO([weight], betas=(0.6, 0.75), time_steps=1).load_state_dict(saved)


def test_accumulated_update_by_hand() -> None:
    # β1 = 0.5, β2 = 0, γ = 0.5, T = 2: M = 0.5·(1 + 3) = 2 and 0.5·(−1 + 1) = 0; v = (1, 5), mean 3,
    # threshold 0.5·√3 ≈ 0.87: the first weight flips.
    weight = parameter(1, 1)
    flip = TBSO([weight], gamma=0.5, betas=(0.5, 0.0), eps=0.0, time_steps=2)
    give(weight, 1.0, -1.0)
    flip.accumulate(t=0)
    assert weight.grad is None
    give(weight, 3.0, 1.0)
    flip.accumulate(t=1)
    with pytest.raises(bsnn.UserError, match="unfinished sequence"):
        flip.state_dict()
    with pytest.raises(bsnn.UserError, match=r"expected, after accumulate.*a plain step"):
        flip.step(t=1)
    flip.step()
    assert flip.state[weight]["momentum"].tolist() == [2.0, 0.0]
    assert flip.state[weight]["second_moment"].tolist() == [1.0, 5.0]
    assert signs(weight).tolist() == [-1, 1]
    # The next sequence decays the momentum once, at its first time step. It is shorter, t = 1 alone, so only
    # v[1] = 4 is in its threshold, 0.5·√4 = 1; M = (1 + 1, 0 + 1), W·M = (−2, 1): a tie, no flip.
    give(weight, 2.0, 2.0)
    flip.accumulate(t=1)
    flip.step()
    assert flip.state[weight]["momentum"].tolist() == [2.0, 1.0]
    assert flip.flip_counts == [0]


@pytest.mark.parametrize("t", [None, -1, 2, 7, "0", 1.0, True])
def test_tbso_needs_a_time_step_within_its_own(t) -> None:
    weight = parameter(1, -1)
    flip = TBSO([weight], time_steps=2)
    give(weight, 1.0, 1.0)
    with pytest.raises(bsnn.UserError, match="expected the time step of the gradients, 0 to 1"):
        flip.step(t=t)
    with pytest.raises(bsnn.UserError, match="expected the time step"):
        flip.accumulate(t=t)


def test_resume_with_another_time_steps_shape_or_rule_is_refused_and_changes_nothing() -> None:
    weight = BinaryParameter.from_signs(torch.randn(9))
    saved = TBSO([weight], time_steps=4).state_dict()
    flip = TBSO([weight], time_steps=6)
    with pytest.raises(bsnn.UserError, match="saved with time_steps=4; this optimizer has time_steps=6"):
        flip.load_state_dict(saved)
    assert flip.param_groups[0]["time_steps"] == 6
    assert flip.state[weight]["second_moment"].shape == (6,)
    with pytest.raises(bsnn.UserError, match=r"momentum of shape \(9,\) for weights of shape \(3, 3\)"):
        TBSO([BinaryParameter.from_signs(torch.randn(3, 3))], time_steps=4).load_state_dict(saved)
    with pytest.raises(bsnn.UserError, match="expected one saved by TBSO"):
        flip.load_state_dict(BSO([weight]).state_dict())
    with pytest.raises(
        bsnn.UserError, match="differs in eps, one_minus_beta2, second_moment, time_steps; expected one"
    ):
        BSO([weight]).load_state_dict(saved)
    without = {**saved, "state": {}}
    with pytest.raises(bsnn.UserError, match="differs in momentum, second_moment"):
        TBSO([weight], time_steps=4).load_state_dict(without)


def test_more_time_steps_by_hand() -> None:
    # β1 = β2 = 0.5, γ = 0.5, ε = 0. At T = 1: G = (2, −2), v = 2, M = (1, −1) flips both weights to (−1, 1).
    # T = 2 divides losses by two: v = 2/4 for both time steps. t = 1: G = (−2, 1), v[1] = 0.5·0.5 + 0.5·2.5 = 1.5;
    # threshold 0.5·√1.5 ≈ 0.612, M = (−0.5, 0), W·M = (0.5, 0): none. Unscaled, v[1] would be 2.25, and from 0 1.25.
    weight = parameter(1, -1)
    flip = TBSO([weight], gamma=0.5, betas=(0.5, 0.5), eps=0.0, time_steps=1)
    give(weight, 2.0, -2.0)
    flip.step(t=0)
    flip.change_time_steps(2)
    assert flip.state[weight]["second_moment"].tolist() == [0.5, 0.5]
    assert flip.momentum(weight).tolist() == [1.0, -1.0]
    give(weight, -2.0, 1.0)
    flip.step(t=1)
    assert flip.state[weight]["second_moment"].tolist() == [0.5, 1.5]
    assert signs(weight).tolist() == [-1, 1]
    resumed = TBSO([parameter(1, 1)], gamma=0.5, betas=(0.5, 0.5), eps=0.0, time_steps=2)
    resumed.load_state_dict(flip.state_dict())
    flip.change_time_steps(1)
    assert flip.state[weight]["second_moment"].tolist() == [2.0], "fewer time steps keep the first"
    with pytest.raises(bsnn.UserError, match="received t=1; expected the time step of the gradients, 0 to 0"):
        flip.step(t=1)


def test_a_change_of_time_steps_that_cannot_be_is_refused() -> None:
    weight = parameter(1, -1)
    flip = TBSO([weight], time_steps=2)
    with pytest.raises(bsnn.UserError, match="received time_steps=0; expected a whole number"):
        flip.change_time_steps(0)
    give(weight, 1.0, 1.0)
    flip.accumulate(t=0)
    with pytest.raises(bsnn.UserError, match="change_time_steps: gradients of an unfinished sequence"):
        flip.change_time_steps(4)
    BSO([parameter(1)]).change_time_steps(4)  # it does not tell them apart


def test_loading_keeps_the_type_of_the_state() -> None:
    weight = BinaryParameter.from_signs(torch.randn(9))
    flip = TBSO([weight], time_steps=2)
    weight.grad = torch.randn(9)
    flip.step(t=1)
    other = TBSO([copy.deepcopy(weight)], time_steps=2)
    other.load_state_dict(flip.state_dict())
    (state,) = other.state.values()
    assert state["second_moment"].dtype == torch.float64
    assert torch.equal(state["second_moment"], flip.state[weight]["second_moment"])


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for chunk in (1 << 20, 64):
        monkeypatch.setattr("bsnn.kernels.pieces._PIECE", chunk)
        torch.manual_seed(3)
        weight = BinaryParameter.from_signs(torch.randn(1001))
        flip = TBSO([weight], time_steps=2)
        for k in range(10):
            weight.grad = torch.randn(1001)
            flip.step(t=k % 2)
        results.append((weight.bits, flip.flip_counts))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 300.0), (torch.float32, 1e20), (torch.float32, 1e-24)])
def test_extreme_but_finite_gradients_are_fine(dtype: torch.dtype, size: float) -> None:
    weight = BinaryParameter.from_signs(torch.ones(4, dtype=dtype))
    flip = TBSO([weight], betas=(0.0, 0.0), time_steps=1)
    weight.grad = torch.full((4,), size, dtype=dtype)
    flip.step(t=0)
    assert flip.state[weight]["second_moment"].item() == pytest.approx(float(weight.grad[0]) ** 2, rel=1e-6)
