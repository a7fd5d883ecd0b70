"""What every flip rule must do, whatever it computes: all modules of src/bsnn/optim/rules are tested here.

What a rule computes is compared with its plain twin in tests/reference.py; its own file, test_rule_<name>.py, has a
sequence worked out by hand.
"""

import copy
import math
import pickle
from contextlib import nullcontext

import pytest
import torch
from flip_cases import SETTINGS, Make, chain, every_rule, every_rule_in_eight_bits, give, parameter
from reference import TWINS
from torch import Tensor, nn

import bsnn
from bsnn.nn.bits import BinaryParameter, signs
from bsnn.optim import FlipOptimizer, rules


@pytest.mark.parametrize("size", [(13,), (7, 33)])
@pytest.mark.parametrize("name", rules.names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bit_equal_to_its_twin_over_a_thousand_updates(size: tuple[int, ...], name: str, dtype: torch.dtype) -> None:
    assert name in TWINS, f"the rule {name} has no plain twin in tests/reference.py"
    weight = BinaryParameter.from_signs(torch.randn(size, dtype=dtype))
    config = {**SETTINGS, "gamma": 0.05, "one_minus_beta1": 1 - 0.99, "one_minus_beta2": 1 - 0.9, "time_steps": 4}
    flip = rules.build(rules.find(name), [weight], config)
    twin = TWINS[name](signs(weight), config)
    flips = 0
    for k in range(1000):
        weight.grad = torch.randn(size, dtype=dtype) * (1 + k % 4)
        flip.step(t=k % 4)
        twin.update(weight.grad, t=k % 4)
        assert torch.equal(signs(weight), twin.weights)
        flips += flip.flip_counts[0]
    assert flips > 100


@every_rule
def test_weights_stay_exactly_plus_or_minus_one(make: Make) -> None:
    weight = BinaryParameter.from_signs(torch.randn(100))
    flip = make([weight])
    for k in range(50):
        weight.grad = torch.randn(100) if k % 3 else torch.zeros(100)
        flip.step(t=k % 3)
        assert set(signs(weight).tolist()) == {-1.0, 1.0}


@every_rule
def test_groups_state_dict_and_resume_are_bit_identical(make: Make) -> None:
    def start() -> tuple[list[BinaryParameter], FlipOptimizer]:
        torch.manual_seed(5)
        weights = [BinaryParameter.from_signs(torch.randn(4, 9)), BinaryParameter.from_signs(torch.randn(17))]
        own = {"gamma": 0.5} if "gamma" in make([parameter(1)]).defaults else {"one_minus_beta1": 0.5}
        return weights, make([{"params": weights[:1]}, {"params": weights[1:], **own}])

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


@every_rule
def test_copies_and_pickles_of_the_optimizer_work(make: Make) -> None:
    weight = BinaryParameter.from_signs(torch.randn(9))
    weight.grad = torch.randn(9)
    flip = make([weight])
    for other in (copy.deepcopy(flip), pickle.loads(pickle.dumps(flip))):
        (theirs,) = other.param_groups[0]["params"]
        theirs.grad = torch.randn(9)
        other.step(t=0)


@every_rule
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(make: Make, bad: float) -> None:
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
def test_a_real_parameter_or_none_at_all_is_refused(make: Make) -> None:
    with pytest.raises(bsnn.UserError, match=r"real-valued parameter of shape \(2, 2\).*split_parameters"):
        make(nn.Linear(2, 2).parameters())
    with pytest.raises(bsnn.UserError, match="received no parameters"):
        make([])
    flip = make([parameter(1, -1)])
    with pytest.raises(bsnn.UserError, match="real-valued"):
        flip.add_param_group({"params": nn.Linear(2, 2).parameters()})
    assert len(flip.param_groups) == 1


@every_rule
def test_closure_clearing_and_learning_rate_free_groups_follow_torch(make: Make) -> None:
    weight = parameter(1, -1, 1)
    flip = make([weight])

    def closure() -> Tensor:
        give(weight, 1.0, 1.0, 1.0)
        return torch.tensor(2.5)

    assert flip.step(closure, t=0) == 2.5
    flip.zero_grad()
    assert weight.grad is None


@every_rule
@pytest.mark.parametrize("folded", [False, True])
def test_a_nan_from_backward_flips_nothing_and_is_not_in_the_momentum(make: Make, folded: bool) -> None:
    net, x = chain()
    flip = make(net.parameters())
    bits = [p.bits.clone() for p in net.parameters()]
    with bsnn.optim.folding(flip) if folded else nullcontext():
        (net(x, None)[0].spikes.sum() * math.nan).backward()
        with pytest.raises(bsnn.UserError, match="holds NaN or infinite values"):
            flip.step(t=0)
        assert all(torch.equal(p.bits, before) for p, before in zip(net.parameters(), bits, strict=True))
        assert not any(flip.state[p]["momentum"].any() for p in net.parameters())
        flip.zero_grad()
        net(x, None)[0].spikes.sum().backward()
        flip.step(t=0)


@every_rule_in_eight_bits
@pytest.mark.parametrize("accumulate", [False, True])
def test_eight_bits_follow_the_momentum_of_32(make: Make, accumulate: bool) -> None:
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


@every_rule_in_eight_bits
def test_eight_bits_take_little_more_than_a_byte_a_weight_and_resume_bit_for_bit(make: Make) -> None:
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
