import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from reference import DenseFlips, bop
from torch import Tensor, nn

import bsnn
from bsnn.nn.bits import BinaryParameter, signs
from bsnn.optim import BSO, TBSO, FlipOptimizer, Schedule, SigmaBSO, constant, cosine, inverse_sqrt, step_decay
from bsnn.optim.momentum import BLOCK, decode, encode

RULES: dict[str, Callable[..., FlipOptimizer]] = {
    "BSO": lambda params, **kw: BSO(params, **{"gamma": 1e-3, "beta": 0.9, **kw}),
    "TBSO": lambda params, **kw: TBSO(params, **{"gamma": 0.05, "betas": (0.9, 0.99), "time_steps": 3, **kw}),
    "SigmaBSO": lambda params, **kw: SigmaBSO(params, **{"gamma": 0.5, "beta": 0.9, **kw}),
}
every_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES)


def parameter(*values: float) -> BinaryParameter:
    return BinaryParameter.from_signs(torch.tensor(values))


def give(weight: BinaryParameter, *gradient: float) -> None:
    weight.grad = torch.tensor(gradient)


def test_bso_against_a_sequence_by_hand() -> None:
    # β = 0.5, γ = 0.25. M = 0.5, −0.5, 0.125 → W·M = 0.5 > γ flips; −W: 0.5 > γ flips; 0.125 stays.
    weight = parameter(1, -1, 1)
    flip = BSO([weight], gamma=0.25, beta=0.5)
    give(weight, 1.0, -1.0, 0.25)
    flip.step()
    assert signs(weight).tolist() == [-1, 1, 1]
    assert flip.flip_counts == [2]
    # M = 0.25 + 0 = 0.25, −0.25 − 1 = −1.25, 0.0625 + 0.1875 = 0.25: a tie at W·M = γ must not flip.
    give(weight, 0.0, -2.0, 0.375)
    flip.step()
    assert signs(weight).tolist() == [-1, 1, 1]
    assert flip.flip_counts == [0]
    # M = 0.125 − 1 = −0.875, −0.625 + 1 = 0.375, 0.125 + 0.5 = 0.625.
    give(weight, -2.0, 2.0, 1.0)
    flip.step()
    assert signs(weight).tolist() == [1, -1, -1]
    assert flip.state[weight]["momentum"].tolist() == [-0.875, 0.375, 0.625]


def test_epsilon_stands_inside_the_root() -> None:
    # v = 0: the threshold is γ·√ε = 0.5·√0.04 = 0.1 inside the root; outside it would be 0.02.
    weight = parameter(1, 1)
    flip = TBSO([weight], gamma=0.5, betas=(0.0, 1 - 1e-12), eps=0.04, time_steps=1)
    give(weight, 0.05, 0.2)
    flip.step(t=0)
    assert signs(weight).tolist() == [1, -1]


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


def test_sigma_bso_against_a_sequence_by_hand() -> None:
    # β = 0.5, γ = 1. G = (2, 0): M = (1, 0), n = 0.25·2 = 0.5, threshold 0.707: the first flips.
    # G = (−2, 2): M = (−0.5, 1), n = 0.25·0.5 + 0.25·4 = 1.125, threshold 1.061: W·M = (0.5, 1), none.
    # G = (0, 2): M = (−0.25, 1.5), n = 0.25·1.125 + 0.25·2 = 0.78125, threshold 0.884: the second flips.
    weight = parameter(1, 1)
    flip = SigmaBSO([weight], gamma=1.0, beta=0.5)
    steps = [((2.0, 0.0), [-1, 1], 0.5), ((-2.0, 2.0), [-1, 1], 1.125), ((0.0, 2.0), [-1, -1], 0.78125)]
    for gradient, expected, noise in steps:
        give(weight, *gradient)
        flip.step()
        assert signs(weight).tolist() == expected
        assert flip.state[weight]["noise"].item() == noise
    # A sequence of two: M = 0.5·M + 0.5·(2, 2) + 0.5·(4, 0) = (2.875, 1.75), n = 0.25·n + 0.25·4 + 0.25·8 = 3.1953125.
    for gradient in ((2.0, 2.0), (4.0, 0.0)):
        give(weight, *gradient)
        flip.accumulate()
    flip.step()
    assert flip.state[weight]["momentum"].tolist() == [2.875, 1.75]
    assert flip.state[weight]["noise"].item() == 3.1953125
    flip.set_momentum(weight, torch.tensor([3.0, 1.0]))
    assert flip.state[weight]["noise"].item() == 5.0


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
def test_sigma_is_the_deviation_of_a_momentum_of_noise(beta: float) -> None:
    torch.manual_seed(0)
    weight = BinaryParameter.from_signs(torch.randn(20_000))
    flip = SigmaBSO([weight], beta=beta)
    schedule = Schedule(flip, one_minus_beta1=cosine(total=40))
    for _ in range(30):
        weight.grad = torch.randn(20_000)
        flip.step()
        schedule.step()
        ratio = flip.momentum(weight).double().square().mean() / flip.state[weight]["noise"]
        assert ratio.item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("size", [(13,), (7, 33)])
@pytest.mark.parametrize("temporal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bit_equal_to_the_dense_reference_over_a_thousand_updates(
    size: tuple[int, ...], temporal: bool, dtype: torch.dtype
) -> None:
    weight = BinaryParameter.from_signs(torch.randn(size, dtype=dtype))
    if temporal:
        flip = TBSO([weight], gamma=0.05, betas=(0.99, 0.9), eps=1e-20, time_steps=4)
        plain = DenseFlips(signs(weight), 0.05, 0.99, 0.9, 1e-20, time_steps=4)
    else:
        flip = BSO([weight], gamma=0.01, beta=0.99)
        plain = DenseFlips(signs(weight), 0.01, 0.99)
    flips = 0
    for k in range(1000):
        weight.grad = torch.randn(size, dtype=dtype) * (1 + k % 4)
        t = k % 4 if temporal else None
        flip.step(t=t)
        plain.update(weight.grad, t)
        assert torch.equal(signs(weight), plain.weights)
        flips += flip.flip_counts[0]
    assert flips > 100


def test_bso_is_the_published_bop_rule() -> None:
    weight = BinaryParameter.from_signs(torch.randn(500, dtype=torch.float64))
    dense, momentum = signs(weight), torch.zeros(500, dtype=torch.float64)
    flip = BSO([weight], gamma=0.02, beta=0.98)
    for _ in range(300):
        weight.grad = torch.randn(500, dtype=torch.float64)
        flip.step()
        dense, momentum = bop(dense, momentum, weight.grad, rate=1 - 0.98, threshold=0.02)
        assert torch.equal(signs(weight), dense)


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


@every_rule
def test_weights_stay_exactly_plus_or_minus_one(make) -> None:
    weight = BinaryParameter.from_signs(torch.randn(100))
    flip = make([weight])
    for k in range(50):
        weight.grad = torch.randn(100) if k % 3 else torch.zeros(100)
        flip.step(t=k % 3)
        assert set(signs(weight).tolist()) == {-1.0, 1.0}


@every_rule
def test_groups_state_dict_and_resume_are_bit_identical(make) -> None:
    def start() -> tuple[list[BinaryParameter], FlipOptimizer]:
        torch.manual_seed(5)
        weights = [BinaryParameter.from_signs(torch.randn(4, 9)), BinaryParameter.from_signs(torch.randn(17))]
        return weights, make([{"params": weights[:1]}, {"params": weights[1:], "gamma": 0.5}])

    def run(weights: list[BinaryParameter], flip: FlipOptimizer, updates: range) -> None:
        for k in updates:
            noise = torch.Generator().manual_seed(k)
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=noise)
            flip.step(t=k % 3)

    weights, flip = start()
    run(weights, flip, range(20))
    others, other = start()
    run(others, other, range(9))
    saved = pickle.loads(pickle.dumps((other.state_dict(), [w.bits for w in others])))
    resumed_weights, resumed = start()
    for weight, bits in zip(resumed_weights, saved[1], strict=True):
        weight.bits.copy_(bits)
    resumed.load_state_dict(saved[0])
    run(resumed_weights, resumed, range(9, 20))
    for one, two in zip(weights, resumed_weights, strict=True):
        assert torch.equal(one.bits, two.bits)
        assert torch.equal(flip.state[one]["momentum"], resumed.state[two]["momentum"])
    assert flip.flip_counts == resumed.flip_counts


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


@every_rule
def test_copies_and_pickles_of_the_optimizer_work(make) -> None:
    weight = BinaryParameter.from_signs(torch.randn(9))
    weight.grad = torch.randn(9)
    flip = make([weight])
    for other in (copy.deepcopy(flip), pickle.loads(pickle.dumps(flip))):
        (theirs,) = other.param_groups[0]["params"]
        theirs.grad = torch.randn(9)
        other.step(t=0)


@every_rule
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(make, bad: float) -> None:
    good, poisoned = (BinaryParameter.from_signs(torch.randn(20)) for _ in range(2))
    flip = make([good, poisoned])
    for weight in (good, poisoned):
        weight.grad = torch.randn(20)
    flip.step(t=0)
    before = [(w.bits.clone(), {k: v.clone() for k, v in flip.state[w].items()}) for w in (good, poisoned)]
    assert poisoned.grad is not None
    poisoned.grad[7] = bad
    for call in (flip.step, flip.accumulate):
        with pytest.raises(bsnn.UserError, match=r"shape \(20,\) holds NaN or infinite values"):
            call(t=1)
        for weight, (bits, state) in zip((good, poisoned), before, strict=True):
            assert torch.equal(weight.bits, bits)
            assert all(torch.equal(flip.state[weight][name], value) for name, value in state.items())


@every_rule
def test_a_real_parameter_or_none_at_all_is_refused(make) -> None:
    with pytest.raises(bsnn.UserError, match=r"real-valued parameter of shape \(2, 2\).*split_parameters"):
        make(nn.Linear(2, 2).parameters())
    with pytest.raises(bsnn.UserError, match="received no parameters"):
        make([])
    flip = make([parameter(1, -1)])
    with pytest.raises(bsnn.UserError, match="real-valued"):
        flip.add_param_group({"params": nn.Linear(2, 2).parameters()})
    assert len(flip.param_groups) == 1


@pytest.mark.parametrize("t", [None, -1, 2, 7, "0", 1.0, True])
def test_tbso_needs_a_time_step_within_its_own(t) -> None:
    weight = parameter(1, -1)
    flip = TBSO([weight], time_steps=2)
    give(weight, 1.0, 1.0)
    with pytest.raises(bsnn.UserError, match="expected the time step of the gradients, 0 to 1"):
        flip.step(t=t)
    with pytest.raises(bsnn.UserError, match="expected the time step"):
        flip.accumulate(t=t)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: BSO(p, gamma=-1.0), "gamma: received -1.0"),
        (lambda p: BSO(p, gamma=math.nan), "gamma: received nan"),
        (lambda p: BSO(p, beta=1.0), "beta: received"),
        (lambda p: TBSO(p, betas=(0.9, -0.1), time_steps=1), "beta: received"),
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


def test_groups_take_decays_as_the_constructor_does() -> None:
    first = BSO([{"params": [parameter(1)], "beta": 0.5}]).param_groups[0]
    assert first["one_minus_beta1"] == 0.5
    second = TBSO([{"params": [parameter(1)], "betas": (0.5, 0.75)}], time_steps=2).param_groups[0]
    assert (second["one_minus_beta1"], second["one_minus_beta2"]) == (0.5, 0.25)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 300.0), (torch.float32, 1e20), (torch.float32, 1e-24)])
def test_extreme_but_finite_gradients_are_fine(dtype: torch.dtype, size: float) -> None:
    weight = BinaryParameter.from_signs(torch.ones(4, dtype=dtype))
    flip = TBSO([weight], betas=(0.0, 0.0), time_steps=1)
    weight.grad = torch.full((4,), size, dtype=dtype)
    flip.step(t=0)
    assert flip.state[weight]["second_moment"].item() == pytest.approx(float(weight.grad[0]) ** 2, rel=1e-6)


def test_parameters_without_gradient_are_left_alone() -> None:
    used, unused = parameter(1, 1), parameter(1, 1)
    flip = BSO([used, unused], gamma=0.0)
    give(used, 1.0, -1.0)
    flip.step()
    assert flip.flip_counts == [1, 0]
    assert flip.flip_ratio == 0.25


@every_rule
def test_closure_clearing_and_learning_rate_free_groups_follow_torch(make) -> None:
    weight = parameter(1, -1, 1)
    flip = make([weight])

    def closure() -> Tensor:
        give(weight, 1.0, 1.0, 1.0)
        return torch.tensor(2.5)

    assert flip.step(closure, t=0) == 2.5
    flip.zero_grad()
    assert weight.grad is None


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


def chain() -> tuple[bsnn.Sequential, Tensor]:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (bsnn.BinaryLinear(30, 30), bsnn.LIF())]
    return bsnn.Sequential(*layers).double(), torch.rand(5, 30, dtype=torch.float64) * 3


@every_rule
@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_that_backward_folds_in_equal_those_in_grad(make, accumulate: bool) -> None:
    results = []
    for by_hand in (False, True):
        net, x = chain()
        weights = list(net.parameters())
        flip = make(weights)
        for _ in range(4):
            for t in range(3):
                loss = net(x, None)[0].spikes.square().sum()
                if by_hand:
                    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                        weight.grad = gradient
                else:
                    loss.backward()
                    assert all(weight.grad is None for weight in weights)
                (flip.accumulate if accumulate else flip.step)(t=t)
                flip.zero_grad()
            if accumulate:
                flip.step()
        results.append([value for w in weights for value in (w.bits, *flip.state[w].values())])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_one_gradient_is_alive_at_a_time() -> None:
    net, x = chain()
    flip, alive = BSO(net.parameters()), []
    flip.reduce_gradients(lambda gradient: alive.append(sum(p.grad is not None for p in net.parameters())))
    net(x, None)[0].spikes.sum().backward()
    assert alive == [0] * 4  # each has left its parameter already


def test_gradients_are_reduced_before_they_are_used() -> None:
    net, x = chain()
    flip = BSO(net.parameters(), beta=0.0)
    flip.reduce_gradients(lambda gradient: nn.init.constant_(gradient, 2.0))
    net(x, None)[0].spikes.sum().backward()
    flip.step()
    assert all(flip.state[p]["momentum"].eq(2.0).all() for p in net.parameters())


@every_rule
def test_a_nan_from_backward_flips_nothing_and_is_not_in_the_momentum(make) -> None:
    net, x = chain()
    flip = make(net.parameters())
    bits = [p.bits.clone() for p in net.parameters()]
    (net(x, None)[0].spikes.sum() * math.nan).backward()
    with pytest.raises(bsnn.UserError, match="holds NaN or infinite values"):
        flip.step(t=0)
    assert all(torch.equal(p.bits, before) for p, before in zip(net.parameters(), bits, strict=True))
    assert not any(flip.state[p]["momentum"].any() for p in net.parameters())
    net(x, None)[0].spikes.sum().backward()
    flip.step(t=0)


def test_misuse_of_gradients_that_are_folded_in_teaches() -> None:
    net, x = chain()
    flip = BSO(net.parameters())
    net(x, None)[0].spikes.sum().backward()
    with pytest.raises(bsnn.UserError, match=r"expected step\(\) or accumulate\(\) after each backward"):
        net(x, None)[0].spikes.sum().backward()
    with pytest.raises(bsnn.UserError, match="unfinished sequence"):
        flip.state_dict()
    flip.zero_grad()
    other = BSO(net.parameters())
    with pytest.raises(bsnn.UserError, match="two flip optimizers hold the same parameter"):
        net(x, None)[0].spikes.sum().backward()
    del flip
    other.zero_grad()
    net(x, None)[0].spikes.sum().backward()
    other.step()


def test_moving_the_network_moves_the_momentum_along() -> None:
    layer = bsnn.BinaryLinear(4, 2)
    flip = BSO([layer.weight])
    layer.double()
    layer(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    flip.step()
    assert flip.state[layer.weight]["momentum"].dtype == torch.float64


def test_momentum_of_half_precision_parameters_is_single() -> None:
    weight = BinaryParameter.from_signs(torch.ones(4, dtype=torch.bfloat16))
    flip = TBSO([weight], time_steps=1, initial_momentum=0.5)
    for _ in range(3):
        weight.grad = torch.ones(4, dtype=torch.bfloat16)
        flip.step(t=0)
    momentum = flip.state[weight]["momentum"]
    assert momentum.dtype == torch.float32
    assert momentum[0].item() == pytest.approx(-0.5 * 0.999**3 + (1 - 0.999**3), rel=1e-5)


def test_factors() -> None:
    assert [constant()(k) for k in (0, 9)] == [1.0, 1.0]
    assert [step_decay(50)(k) for k in (0, 49, 50, 100)] == pytest.approx([1, 1, 0.1, 0.01])
    assert [cosine(10)(k) for k in (0, 5, 10, 11)] == pytest.approx([1, 0.5, 0, 0])
    assert [inverse_sqrt()(k) for k in (0, 3, 99)] == pytest.approx([1, 0.5, 0.1])


def test_schedule_anneals_both_and_resumes() -> None:
    weight = parameter(1, -1)
    flip = BSO([{"params": [weight], "gamma": 0.2}], beta=0.9)
    schedule = Schedule(flip, gamma=step_decay(2), one_minus_beta1=cosine(4))
    for _ in range(2):
        schedule.step()
    assert flip.param_groups[0]["gamma"] == pytest.approx(0.02)
    assert flip.param_groups[0]["one_minus_beta1"] == pytest.approx(0.05)
    fresh = BSO([{"params": [weight], "gamma": 0.2}], beta=0.9)
    resumed = Schedule(fresh, gamma=step_decay(2), one_minus_beta1=cosine(4))
    resumed.load_state_dict(pickle.loads(pickle.dumps(schedule.state_dict())))
    schedule.step()
    resumed.step()
    assert fresh.param_groups[0]["one_minus_beta1"] == flip.param_groups[0]["one_minus_beta1"]
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    decay = Schedule(sgd, lr=cosine(2))
    decay.step()
    assert sgd.param_groups[0]["lr"] == pytest.approx(0.05)
    with pytest.raises(bsnn.UserError, match="received 'lr'; expected a setting of BSO, such as gamma"):
        Schedule(flip, lr=cosine(2))
    two_groups = BSO([{"params": [parameter(1)]}, {"params": [parameter(1)]}])
    with pytest.raises(
        bsnn.UserError, match=r"received a schedule of \[\['gamma', 'one_minus_beta1'\]\] by parameter group"
    ):
        Schedule(two_groups).load_state_dict(schedule.state_dict())


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


def test_eight_bits_round_to_the_nearest_two_levels_and_on_average_to_the_value() -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randn(4 * BLOCK) * torch.logspace(-3, 1, 4 * BLOCK)
    codes, scales = encode(values, random)
    assert codes.dtype == torch.int8
    assert torch.equal(scales, values.view(4, BLOCK).abs().amax(1))
    mean = torch.stack([decode(*encode(values, random)) for _ in range(2000)]).mean(0)
    level = 2 * scales.repeat_interleave(BLOCK) / 127  # the widest distance between two
    assert ((mean - values).abs() < 0.06 * level).all()
    assert ((decode(codes, scales) - values).abs() <= level).all()
    assert torch.equal(decode(*encode(torch.zeros(BLOCK), random)), torch.zeros(BLOCK))
    again = decode(codes, scales)
    assert torch.equal(decode(*encode(again, random)), again)  # a level stays where it is


@every_rule
@pytest.mark.parametrize("accumulate", [False, True])
def test_eight_bits_follow_the_momentum_of_32(make, accumulate: bool) -> None:
    moments = []
    for bits in (32, 8):
        torch.manual_seed(2)
        weight = BinaryParameter.from_signs(torch.randn(1000))
        flip = make([weight], momentum_bits=bits)
        for k in range(60):
            weight.grad = torch.randn(1000) + torch.linspace(-1, 1, 1000)
            (flip.accumulate if accumulate else flip.step)(t=k % 3)
            if accumulate and k % 3 == 2:
                flip.step()
        moments.append(flip.momentum(weight))
    assert (moments[0] - moments[1]).norm() < 0.03 * moments[0].norm()


@every_rule
def test_eight_bits_take_little_more_than_a_byte_a_weight_and_resume_bit_for_bit(make) -> None:
    def run(weight: BinaryParameter, flip: FlipOptimizer, updates: range) -> None:
        for k in updates:
            weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(k))
            flip.step(t=k % 3)

    signs_of_start = torch.randn(64, 999)
    weight = BinaryParameter.from_signs(signs_of_start)
    flip = make([weight], momentum_bits=8, initial_momentum=0.1)
    run(weight, flip, range(5))
    stored = sum(v.numel() * v.element_size() for v in flip.state[weight].values()) + weight.bits.numel()
    assert stored / weight.numel() < 1.15
    other = BinaryParameter(weight.bits.clone(), weight.shape)
    resumed = make([other], momentum_bits=8, initial_momentum=0.1)
    resumed.load_state_dict(pickle.loads(pickle.dumps(flip.state_dict())))
    run(weight, flip, range(5, 9))
    run(other, resumed, range(5, 9))
    assert torch.equal(weight.bits, other.bits)
    for name, value in flip.state[weight].items():
        assert torch.equal(value, resumed.state[other][name])
        assert value.dtype == resumed.state[other][name].dtype
    with pytest.raises(bsnn.UserError, match="differs in roundings, scales"):
        make([other], momentum_bits=32).load_state_dict(flip.state_dict())
    with pytest.raises(bsnn.UserError, match="momentum_bits: received 16"):
        make([other], momentum_bits=16)
