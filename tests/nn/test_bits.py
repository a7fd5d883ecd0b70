import copy
import io
import pickle

import pytest
import torch
from torch import nn

import bsnn
from bsnn.nn.bits import BinaryModule, BinaryParameter, pack, signs, split_parameters, unpack


class Layer(BinaryModule):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.weight = BinaryParameter.from_signs(torch.randn(shape))
        self.shift = nn.Parameter(torch.zeros(2))


def stays_packed(parameter: nn.Parameter) -> bool:
    return (
        isinstance(parameter, BinaryParameter)
        and parameter.untyped_storage().nbytes() <= 8
        and parameter.bits.untyped_storage().nbytes() == -(-parameter.numel() // 8)
    )


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1000])
def test_pack_and_unpack_are_inverse(count: int) -> None:
    mask = torch.rand(count) < 0.5
    assert pack(mask).shape == (-(-count // 8),)
    assert torch.equal(unpack(pack(mask), count) > 0, mask)


def test_bit_order_is_the_documented_one() -> None:
    for index in range(16):
        mask = torch.zeros(16, dtype=torch.bool)
        mask[index] = True
        expected = torch.zeros(2, dtype=torch.uint8)
        expected[index // 8] = 1 << (index % 8)
        assert torch.equal(pack(mask), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_signs_are_exactly_plus_and_minus_one(dtype: torch.dtype) -> None:
    every_byte = torch.arange(256, dtype=torch.uint8)
    values = unpack(every_byte, 2048, dtype)
    assert values.dtype == dtype
    assert set(values.tolist()) == {-1, 1}


def test_zero_counts_as_plus_one() -> None:
    assert signs(BinaryParameter.from_signs(torch.tensor([0.0, -0.0, -1e-9]))).tolist() == [1, 1, -1]


def test_pack_takes_any_view_of_booleans_and_nothing_else() -> None:
    mask = torch.rand(3, 21) < 0.5
    assert torch.equal(unpack(pack(mask[:, 1:9]), 24) > 0, mask[:, 1:9].flatten())
    with pytest.raises(bsnn.UserError, match=r"received torch\.float32; expected torch\.bool"):
        pack(torch.ones(8))
    with pytest.raises(bsnn.UserError, match="received start=3; expected a multiple of 8"):
        BinaryParameter.from_signs(torch.ones(20)).flip_(torch.ones(3, dtype=torch.bool), start=3)


def test_flip_of_a_range() -> None:
    parameter = BinaryParameter.from_signs(torch.ones(20))
    parameter.flip_(torch.tensor([True, False, True]), start=8)
    assert (signs(parameter) == -1).nonzero().flatten().tolist() == [8, 10]


def test_parameter_has_no_storage_and_takes_gradients_hooks_and_clipping() -> None:
    layer = bsnn.BinaryLinear(64, 32)
    weight = layer.weight
    seen = []
    weight.register_hook(lambda grad: seen.append(grad.shape))
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad is not None))
    layer(torch.ones(4, 64)).sum().backward()
    layer(torch.ones(4, 64)).sum().backward()
    assert seen == [(32, 64), True] * 2
    assert weight.grad is not None
    assert weight.grad.eq(8.0).all()
    norm = nn.utils.clip_grad_norm_(layer.parameters(), max_norm=1.0)
    assert norm == pytest.approx(8 * 2048**0.5)
    assert torch.linalg.vector_norm(weight.grad) == pytest.approx(1.0, rel=1e-5)
    assert stays_packed(weight)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.double(),
        lambda m: m.half().float(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.type(torch.float64),
        lambda m: m.to("cpu"),
        lambda m: m.share_memory(),
        lambda m: copy.deepcopy(m),
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: m.requires_grad_(False),
    ],
    ids=["double", "half-float", "bfloat16", "type", "to-cpu", "share_memory", "deepcopy", "pickle", "requires_grad_"],
)
def test_module_changes_keep_the_weights_packed(change) -> None:
    layer = Layer(5, 9)
    before = signs(layer.weight).double()
    order = [name for name, _ in layer.named_parameters()]
    changed = change(layer)
    assert stays_packed(changed.weight)
    assert torch.equal(signs(changed.weight).double(), before)
    assert [name for name, _ in changed.named_parameters()] == order
    assert signs(changed.weight).dtype == changed.weight.dtype == changed.scale.dtype


def test_conversion_in_place_keeps_identity_and_gradient() -> None:
    layer = Layer(5, 9)
    weight = layer.weight
    weight.grad = torch.ones(5, 9)
    layer.double()
    assert layer.weight is weight
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float64


def test_meta_device_and_back() -> None:
    layer = Layer(5, 9).to("meta")
    assert layer.weight.is_meta
    layer = layer.to_empty(device="cpu")
    saved = Layer(5, 9).state_dict()
    layer.load_state_dict(saved)
    assert stays_packed(layer.weight)
    assigned = Layer(5, 9).to("meta")
    assigned.load_state_dict(saved, assign=True)
    assert assigned.weight.device.type == "cpu"
    assert torch.equal(signs(assigned.weight), signs(layer.weight))


def test_deepcopy_is_independent_and_keeps_shared_parameters_shared() -> None:
    layer = Layer(4, 4)
    pair = nn.ModuleList([layer, layer])
    other = copy.deepcopy(pair)
    assert other[0] is other[1]
    before = signs(layer.weight)
    other[0].weight.flip_(torch.ones(4, 4, dtype=torch.bool))
    assert torch.equal(signs(layer.weight), before)


def test_state_dict_holds_bits_and_round_trips() -> None:
    net = nn.Sequential(Layer(6, 10), Layer(3, 3))
    state = net.state_dict()
    assert state["0.weight"].dtype == torch.uint8
    assert state["0.weight"].numel() == 8
    assert set(state) == {name for name, _ in net.named_parameters()} | {"0.weight_shape", "1.weight_shape"}
    assert state["0.weight_shape"].tolist() == [6, 10]
    assert state["0.weight_shape"].dtype == torch.int64
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    for assign in (False, True):
        other = nn.Sequential(Layer(6, 10), Layer(3, 3))
        other.load_state_dict(loaded, assign=assign)
        for mine, theirs in zip(net, other, strict=True):
            assert torch.equal(signs(mine.weight), signs(theirs.weight))


def test_loading_another_size_or_type_is_refused_by_name() -> None:
    net = nn.Sequential(Layer(6, 10))
    state = net.state_dict()
    with pytest.raises(RuntimeError, match=r"0\.weight: received torch.uint8 of shape \(7,\).*expected the packed"):
        net.load_state_dict(state | {"0.weight": torch.zeros(7, dtype=torch.uint8)})
    with pytest.raises(RuntimeError, match=r"0\.weight: received torch.float32"):
        net.load_state_dict(state | {"0.weight": torch.ones(6, 10)})
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.weight"):
        net.load_state_dict({name: value for name, value in state.items() if name != "0.weight"})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        net.load_state_dict(state | {"0.other": torch.ones(1)})


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(
    ("saved", "other", "message"),
    [
        (bsnn.BinaryConv2d(4, 8, 3), bsnn.BinaryConv2d(8, 4, 3), r"\(8, 4, 3, 3\) from.*model is \(4, 8, 3, 3\)"),
        (bsnn.BinaryLinear(3, 3), bsnn.BinaryLinear(5, 2), r"\(3, 3\) from checkpoint.*model is \(2, 5\)"),
    ],
)
def test_as_many_bytes_of_another_shape_are_a_size_mismatch(saved, other, message: str, assign: bool) -> None:
    before = other.weight.bits.clone()
    with pytest.raises(
        RuntimeError, match=f"size mismatch for weight: copying a binary parameter with shape {message}"
    ):
        other.load_state_dict(saved.state_dict(), assign=assign)
    assert torch.equal(other.weight.bits, before)


def test_bits_without_their_shape_are_refused() -> None:
    layer = bsnn.BinaryLinear(5, 2)
    old = {"weight": layer.weight.bits}
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "weight_shape"'):
        layer.load_state_dict(old)
    for strict in (False, True):
        with pytest.raises(RuntimeError, match=r"weight: received torch.uint8 of shape \(2,\) without weight_shape"):
            layer.load_state_dict(old, strict=strict)
    assert layer.load_state_dict({}, strict=False) == (["weight", "weight_shape"], [])
    layer.register_buffer("weight_shape", torch.ones(1))
    with pytest.raises(bsnn.UserError, match="BinaryLinear has a tensor named weight_shape"):
        layer.state_dict()


def test_split_parameters() -> None:
    shared = bsnn.BinaryLinear(4, 4)
    binary, real = split_parameters(nn.ModuleList([shared, shared, nn.Linear(4, 2)]))
    assert [p.shape for p in binary] == [(4, 4)]
    assert len(real) == 2
    with pytest.raises(bsnn.UserError, match="none of them is binary"):
        split_parameters(nn.Linear(2, 2))
    plain = nn.ModuleDict({"list": nn.ParameterList([BinaryParameter.from_signs(torch.ones(2))])})
    with pytest.raises(bsnn.UserError, match=r"list \(ParameterList\) owns a binary parameter"):
        split_parameters(plain)


def test_signs_of_a_real_parameter_teaches() -> None:
    with pytest.raises(bsnn.UserError, match="received Parameter; expected a BinaryParameter"):
        signs(nn.Linear(2, 2).weight)


def test_a_parameter_with_two_names_is_saved_under_both() -> None:
    layer = bsnn.BinaryLinear(4, 2)
    layer.alias = layer.weight
    assert layer.own_parameters() == {"weight": layer.weight, "alias": layer.weight}
    assert {"weight", "weight_shape", "alias", "alias_shape"} <= layer.state_dict().keys()
