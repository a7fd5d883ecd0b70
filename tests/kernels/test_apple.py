"""What Apple's GPUs run, on a CPU's tensors: whole tensors, no double precision, operators that exist there."""

import functools
import itertools
import re
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from flip_cases import every_rule_in_eight_bits

import bsnn
from bsnn.errors import UserError
from bsnn.kernels import images, pieces
from bsnn.kernels.torch_internals import TorchDispatchMode, tensors_in
from bsnn.nn.bits import BinaryParameter
from bsnn.nn.neuron import SpikeCount
from bsnn.optim import NotFinite
from bsnn.optim.drive import Updates
from bsnn.train import trial

X = torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 3, 0])
# What PyTorch names kernels by that serve all devices, MPS among them.
COMPOSITE = {"CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}


class Apple(TorchDispatchMode):
    """Refuses double precision, and takes note of the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        wide = [x for x in tensors_in((args, made)) if x.dtype in (torch.float64, torch.complex128)]
        assert not wide, func
        if func.namespace == "aten":
            self.operators.add(func.name().removeprefix("aten::"))
        return made


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called, it lets the CPU stand for an Apple GPU from then on."""

    def begin() -> None:
        monkeypatch.setattr(pieces, "_APPLE", "cpu")
        monkeypatch.setattr(pieces, "_is_whole_on_cpu", lambda: True)

    return begin


@functools.cache
def operators_on_mps() -> set[str]:
    """The operators that PyTorch has for MPS, by its own table, which is part of the package."""
    spec = find_spec("torchgen")
    assert spec is not None
    assert spec.origin is not None
    table = (Path(spec.origin).parent / "packaged/ATen/native/native_functions.yaml").read_text()
    found, delegating = set(), {}
    for entry in table.split("\n- func: ")[1:]:
        name = re.match(r"[\w.]+", entry)
        assert name is not None
        dispatch = re.search(r"\n  dispatch:\n((?:    .*\n?)+)", entry)
        keys = (
            set(re.findall(r"\w+", ",".join(re.findall(r"^    ([\w, ]+):", dispatch[1], re.M)))) if dispatch else set()
        )
        delegate = re.search(r"\n  structured_delegate: ([\w.]+)", entry)
        if delegate:
            delegating[name[0]] = delegate[1]
        elif not dispatch or keys & COMPOSITE or "MPS" in keys:  # without a table, it is made of other operators
            found.add(name[0])
    return found | {name for name, delegate in delegating.items() if delegate in found}


def trained(make: Any, mode: Any, *, model: str = "vgg", **settings: Any) -> Any:
    """What a few updates and a prediction leave."""
    torch.manual_seed(0)
    neuron = bsnn.LIF(**{name: settings.pop(name) for name in ("gradient", "surrogate") if name in settings})
    build, plan = (bsnn.models.vgg, (6, 9, "pool", 7)) if model == "vgg" else (bsnn.models.residual, (8, "down", 16))
    net = build(plan, in_channels=2, num_classes=4, neuron=neuron)
    binary, real = bsnn.split_parameters(net)
    loss = functools.partial(bsnn.step_loss, labels=Y, time_steps=3)
    with bsnn.backend("fused"), mode:
        flip = make(binary, **settings)
        optimizers = [flip, torch.optim.SGD(real, lr=0.1, momentum=0.9)]
        bsnn.online_update(net, itertools.repeat(X, 3), loss, optimizers)
        bsnn.online_update(net, itertools.repeat(X, 3), loss, optimizers, accumulate=True)
        logits = bsnn.predict(net.eval(), X, 2)
        moments = [flip.momentum(weight) for weight in binary]
    assert sum(flip.flip_counts) > 0
    return [weight.bits for weight in binary], [moments, logits, net.state_dict()["classifier.weight"]]


def check(make: Any, apple: Any, **settings: Any) -> None:
    expected = trained(make, nullcontext(), **settings)
    apple()
    mode = Apple()
    received = trained(make, mode, **settings)
    torch.testing.assert_close(received[0], expected[0], rtol=0, atol=0)
    torch.testing.assert_close(received[1], expected[1], rtol=1e-4, atol=1e-6)
    assert mode.operators - operators_on_mps() == set()


@pytest.mark.parametrize("bits", [8, 32])
@every_rule_in_eight_bits
def test_every_rule_flips_the_same_weights_in_single_precision(make: Any, bits: int, apple: Any) -> None:
    check(make, apple, gamma=1e-6, momentum_bits=bits)


@pytest.mark.parametrize(
    "settings",
    [
        dict(gradient="ndot"),
        dict(gradient="sltt"),
        dict(surrogate=bsnn.surrogate.Triangle()),
        dict(surrogate=bsnn.surrogate.Arctan()),
        dict(model="residual"),
    ],
    ids=str,
)
def test_so_do_other_gradients_and_networks(settings: dict[str, Any], apple: Any) -> None:
    check(functools.partial(bsnn.optim.TBSO, time_steps=3), apple, gamma=1e-6, **settings)


def test_the_table_of_operators_knows_what_is_missing() -> None:
    known = operators_on_mps()
    assert {"add.Tensor", "add_.Tensor", "convolution_backward", "_foreach_norm.Scalar", "tanh_", "view"} <= known
    assert not {"linalg_eig", "_fused_moving_avg_obs_fq_helper", "no_such_operator"} & known


def test_images_keep_their_order_and_counts_are_single(apple: Any) -> None:
    assert images.channels_last(X).is_contiguous(memory_format=torch.channels_last)
    apple()
    assert images.channels_last(X).is_contiguous()
    counting = SpikeCount()
    with Apple():
        counting.add(X > 0)
    assert counting.rate == pytest.approx(float((X > 0).float().mean()))


@every_rule_in_eight_bits
def test_state_moves_between_devices_with_and_without_double_precision(make: Any, apple: Any, monkeypatch: Any) -> None:
    weight = BinaryParameter.from_signs(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    twin = BinaryParameter.from_signs(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    gradient = torch.tensor([0.5, -0.25, 1e-3, 0.0])
    weight.grad = gradient.clone()
    first = make([weight])
    first.accumulate(t=0)
    first.step()
    saved = first.state_dict()
    apple()
    with Apple():
        second = make([twin])
    second.load_state_dict(saved)
    with Apple():
        assert all(value.dtype != torch.float64 for value in second.state[twin].values())
        twin.grad = gradient.clone()
        second.accumulate(t=0)
        second.step()
        again = second.state_dict()
    monkeypatch.undo()
    first.load_state_dict(again)
    weight.grad = torch.ones(4)
    first.accumulate(t=0)
    first.step()
    wide = {name for name, value in make([weight]).state[weight].items() if value.dtype == torch.float64}
    assert wide == {name for name, value in first.state[weight].items() if value.dtype == torch.float64}


def test_a_fused_optimizer_is_not_told_to_skip_a_step(apple: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), torch.nan)
    fused = torch.optim.SGD([weight], lr=0.1, fused=True)
    binary = BinaryParameter.from_signs(torch.ones(8))
    binary.grad = torch.zeros(8)
    apple()
    updates = Updates([bsnn.optim.BSO([binary]), fused], None)
    with pytest.raises(NotFinite, match="SGD: a gradient of the real-valued parameters"):
        updates.update(None)
    assert torch.equal(weight, torch.ones(3))


def test_a_trial_accepts_single_precision_and_another_order_of_sums(apple: Any, monkeypatch: Any) -> None:
    results = trial._results
    monkeypatch.setattr(trial, "_results", lambda device: stand_in(results, device, apple))
    trial.check_device.__wrapped__(torch.device("mps"))


def stand_in(results: Any, device: torch.device, apple: Any) -> Any:
    """What the CPU computes for itself, and then for an Apple GPU."""
    if device.type == "cpu":
        return results(device)
    apple()
    with bsnn.backend("fused"):
        return results(torch.device("cpu"))


@pytest.mark.parametrize(
    ("operator", "wrong", "named"),
    [
        ("avg_pool2d", lambda x, *_, **__: x[..., ::2, ::2], "logits"),
        ("interpolate", lambda x, **__: x.repeat_interleave(2, 2).repeat_interleave(2, 3) * 1.01, "momentum 0"),
    ],
)
def test_a_trial_refuses_wrong_numbers(operator: str, wrong: Any, named: str, apple: Any, monkeypatch: Any) -> None:
    results = trial._results

    def computed(device: torch.device) -> Any:
        if device.type == "mps":
            monkeypatch.setattr(torch.nn.functional, operator, wrong)
        return stand_in(results, device, apple)

    monkeypatch.setattr(trial, "_results", computed)
    with pytest.raises(UserError, match=f"mps computes something else than the CPU with torch .*: {named} of a small"):
        trial.check_device.__wrapped__(torch.device("mps"))


def test_a_trial_refuses_what_is_not_a_number(apple: Any, monkeypatch: Any) -> None:
    results = trial._results

    def computed(device: torch.device) -> Any:
        if device.type == "mps":
            monkeypatch.setattr(torch.Tensor, "tanh_", lambda x: x.fill_(torch.nan))
        return stand_in(results, device, apple)

    monkeypatch.setattr(trial, "_results", computed)
    with pytest.raises(UserError, match=r"mps cannot train a small network with torch .* holds NaN or infinite values"):
        trial.check_device.__wrapped__(torch.device("mps"))


def test_a_trial_refuses_a_device_that_cannot_compute() -> None:
    with pytest.raises(UserError, match=r"device: meta cannot train a small network with torch .*; expected it to"):
        trial.check_device.__wrapped__(torch.device("meta"))
