"""What PyTorch's tools may do with a binary parameter, and what is refused by us, never by a raw message of torch."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import bsnn
from bsnn.nn.bits import BinaryParameter, signs


def layer_with_gradient() -> bsnn.BinaryLinear:
    layer = bsnn.BinaryLinear(4, 6)
    layer(torch.ones(1, 4)).sum().backward()
    return layer


def _step(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[bsnn.BinaryLinear], object]:
    return lambda layer: kind(layer.parameters(), lr=0.1, **options).step()


def _average(layer: bsnn.BinaryLinear) -> None:
    average = torch.optim.swa_utils.AveragedModel(layer)
    average.update_parameters(layer)
    average.update_parameters(layer)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


REFUSED: dict[str, Callable[[bsnn.BinaryLinear], object]] = {
    "a product": lambda layer: torch.ones(2, 6) @ layer.weight,
    "a sum": lambda layer: layer.weight + 1,
    "a reversed sum": lambda layer: 1 - layer.weight,
    "linear": lambda layer: nn.functional.linear(torch.ones(1, 4), layer.weight),
    "a decay": lambda layer: layer.weight.square().sum(),
    "a norm": lambda layer: torch.linalg.vector_norm(layer.weight),
    "a comparison": lambda layer: layer.weight == 1,
    "equal": lambda layer: torch.equal(layer.weight, layer.weight),
    "an index": lambda layer: layer.weight[0],
    "an assignment": lambda layer: layer.weight.__setitem__(0, 1.0),
    "transposed": lambda layer: layer.weight.T,
    "data": lambda layer: layer.weight.data,
    "data set": lambda layer: setattr(layer.weight, "data", torch.ones(6, 4)),
    "numpy": lambda layer: layer.weight.detach().numpy(),
    "a list": lambda layer: layer.weight.tolist(),
    "item": lambda layer: bool(layer.weight),
    "to": lambda layer: layer.weight.to(torch.float64),
    "torch.tensor": lambda layer: torch.tensor(layer.weight),
    "torch.Tensor": lambda layer: torch.Tensor(layer.weight),
    "new_tensor": lambda layer: torch.ones(1).new_tensor(layer.weight),
    "its own new_tensor": lambda layer: layer.weight.new_tensor(layer.weight),
    "as_subclass": lambda layer: layer.weight.as_subclass(Tensor),
    "set_": lambda layer: torch.ones(1).set_(layer.weight),
    "a differentiable clone": lambda layer: layer.weight.clone(),
    "in place": lambda layer: layer.weight.detach().zero_(),
    "normal_": lambda layer: nn.init.normal_(layer.weight),
    "kaiming_normal_": lambda layer: nn.init.kaiming_normal_(layer.weight),
    "xavier_uniform_": lambda layer: nn.init.xavier_uniform_(layer.weight),
    "constant_": lambda layer: nn.init.constant_(layer.weight, 1.0),
    "orthogonal_": lambda layer: nn.init.orthogonal_(layer.weight),
    "trunc_normal_": lambda layer: nn.init.trunc_normal_(layer.weight),
    "AveragedModel": _average,
    "lerp_ to it": lambda layer: torch.zeros(6, 4).lerp_(layer.weight.detach(), 0.1),
    "lerp_ of it": lambda layer: copy.deepcopy(layer).weight.detach().lerp_(layer.weight, 0.1),
    "SGD": _step(torch.optim.SGD),
    "SGD, decay": _step(torch.optim.SGD, weight_decay=0.1, momentum=0.9),
    "SGD, foreach": _step(torch.optim.SGD, foreach=True),
    "SGD, fused": _step(torch.optim.SGD, fused=True),
    "Adam": _step(torch.optim.Adam),
    "Adam, foreach": _step(torch.optim.Adam, foreach=True),
    "Adam, fused": _step(torch.optim.Adam, fused=True),
    "AdamW": _step(torch.optim.AdamW),
    "AdamW, foreach": _step(torch.optim.AdamW, foreach=True),
    "AdamW, fused": _step(torch.optim.AdamW, fused=True),
    "parameters_to_vector": lambda layer: nn.utils.parameters_to_vector(layer.parameters()),
    "vector_to_parameters": lambda layer: nn.utils.vector_to_parameters(torch.ones(24), layer.parameters()),
    "weight_norm": lambda layer: parametrizations.weight_norm(layer),
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer),
    "a parametrization": lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
    "the identity": lambda layer: parametrize.register_parametrization(layer, "weight", nn.Identity()),
    "an unsafe identity": lambda layer: parametrize.register_parametrization(
        layer, "weight", nn.Identity(), unsafe=True
    ),
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # which torch says first
@pytest.mark.parametrize("misuse", REFUSED.values(), ids=REFUSED)
def test_what_needs_numbers_is_refused_by_us_and_changes_nothing(misuse: Callable[[bsnn.BinaryLinear], object]) -> None:
    layer = layer_with_gradient()
    bits, weight = layer.weight.bits.clone(), layer.weight
    with pytest.raises(bsnn.UserError, match=r"one bit per weight.*bsnn\.signs.*flip optimizer, as in binary, real ="):
        misuse(layer)
    assert layer.weight is weight
    assert torch.equal(weight.bits, bits)
    assert weight.untyped_storage().nbytes() <= 8


def test_a_message_names_the_operation_and_the_shape() -> None:
    with pytest.raises(bsnn.UserError, match=r"^add: received a binary parameter of shape \(6, 4\)"):
        bsnn.BinaryLinear(4, 6).weight + 1
    with pytest.raises(bsnn.UserError, match=r"^_fused_adam_: received a binary parameter of shape \(6, 4\)"):
        torch.optim.Adam(layer_with_gradient().parameters(), fused=True).step()


def test_what_concerns_kind_gradient_and_copies_works() -> None:
    layer = layer_with_gradient()
    weight = layer.weight
    assert weight.shape == (6, 4)
    assert (weight.numel(), weight.dim(), len(weight), weight.size(0), weight.nbytes) == (24, 2, 6, 6, 96)
    assert weight.is_floating_point()
    assert torch.is_floating_point(weight)
    assert weight.dtype == torch.float32
    assert f"{weight}" == repr(weight)
    for made in (torch.zeros_like(weight), torch.randn_like(weight), weight.new_ones(2)):
        assert type(made) is Tensor
        assert made.isfinite().all()
    (gradient,) = torch.autograd.grad(layer(torch.ones(1, 4)).sum(), [weight])
    assert torch.equal(gradient, torch.ones(6, 4))
    layer(torch.ones(1, 4)).sum().backward(inputs=[weight])
    assert weight.grad is not None
    assert weight.grad.eq(2).all()
    assert nn.utils.clip_grad_norm_(weight, 1.0) == pytest.approx(2 * 24**0.5)
    layer.zero_grad()
    assert weight.grad is None
    assert weight in {weight: 0}


def test_a_detached_parameter_shares_the_bits_and_a_clone_does_not() -> None:
    weight = bsnn.BinaryLinear(4, 6).weight
    shared, saved = weight.detach(), weight.detach().clone()
    weight.flip_(torch.ones(6, 4, dtype=torch.bool))
    assert isinstance(shared, BinaryParameter)
    assert isinstance(saved, BinaryParameter)
    assert not shared.requires_grad
    assert torch.equal(signs(shared), signs(weight))
    assert torch.equal(signs(saved), -signs(weight))


def test_a_parameter_of_a_binary_parameter_shares_the_bits() -> None:
    weight = bsnn.BinaryLinear(4, 6).weight
    for given in (weight, weight.detach()):
        for requires_grad in (True, False):
            shared = nn.Parameter(given, requires_grad=requires_grad)
            assert isinstance(shared, BinaryParameter)
            assert shared.requires_grad == requires_grad
            assert shared.bits is weight.bits
            assert shared.shape == weight.shape


def test_a_whole_network_and_its_optimizer_can_be_saved() -> None:
    net = nn.Sequential(bsnn.BinaryLinear(4, 6), nn.Linear(6, 2))
    flip = bsnn.optim.BSO([net[0].weight])
    buffer = io.BytesIO()
    torch.save((net, flip), buffer)
    buffer.seek(0)
    for theirs, optimizer in (
        torch.load(buffer, weights_only=False),
        pickle.loads(pickle.dumps((net, flip))),
        copy.deepcopy((net, flip)),
    ):
        assert torch.equal(signs(theirs[0].weight), signs(net[0].weight))
        assert optimizer.param_groups[0]["params"][0] is theirs[0].weight  # still the network's own
        theirs(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def test_tied_weights_stay_one_parameter() -> None:
    net = nn.Sequential(bsnn.BinaryLinear(4, 4), bsnn.BinaryLinear(4, 4))
    net[1].weight = net[0].weight
    net = pickle.loads(pickle.dumps(copy.deepcopy(net).double()))
    assert net[0].weight is net[1].weight
    x = torch.randn(3, 4, dtype=torch.float64)
    dense = signs(net[0].weight).requires_grad_(True)
    (x @ dense.T @ dense.T).square().sum().backward()
    net(x).square().sum().backward()
    torch.testing.assert_close(net[0].weight.grad, dense.grad)
    assert len(bsnn.split_parameters(net)[0]) == 1
    net.load_state_dict(net.state_dict())
