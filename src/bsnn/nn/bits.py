"""±1 weights as packed bits: the only master copy of a binary weight (paper, Section 3.1, Eq. 4).

Bit i of byte k is weight 8k + i in row-major order; 1 stands for +1 and 0 for −1. A `BinaryParameter` is what
PyTorch's tools see: a leaf of the full shape that has no storage of its own, with an ordinary dense `.grad`.
Its bits change only by flips.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bsnn.errors import UserError

# Multiplying eight bytes of 0 or 1, read as one little-endian integer, by this moves byte i to bit 56 + i.
_GATHER_BITS = 0x0102040810204080


def pack(mask: Tensor) -> Tensor:
    """Packs booleans into bytes, eight to a byte, the last byte filled up with zeros.

    Example:
        >>> pack(torch.tensor([True, False, True, True]))
        tensor([13], dtype=torch.uint8)
    """
    if mask.dtype != torch.bool:
        raise UserError(f"pack: received {mask.dtype}; expected torch.bool, true for +1, as in pack(w >= 0).")
    # A copy of its own, whole bytes long, so that it can be read eight booleans at a time.
    flat = torch.cat([mask.reshape(-1), mask.new_zeros(-mask.numel() % 8)])
    groups = flat.view(torch.int64)
    return (groups.mul(_GATHER_BITS) >> 56).bitwise_and_(0xFF).to(torch.uint8)


@functools.cache
def _sign_table(device: torch.device) -> Tensor:
    """The eight signs of every byte, one byte each, read as one integer."""
    byte = torch.arange(256, device=device)
    bit = (byte[:, None] >> torch.arange(8, device=device)) & 1
    return (2 * bit - 1).to(torch.int8).view(torch.int64).view(-1)


def unpack(bits: Tensor, num_weights: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Unpacks bytes into a flat tensor of `num_weights` signs, −1 or +1.

    Example:
        >>> unpack(torch.tensor([13], dtype=torch.uint8), 4)
        tensor([ 1., -1.,  1.,  1.])
    """
    return _sign_table(bits.device).index_select(0, bits.int()).view(torch.int8)[:num_weights].to(dtype)


class BinaryParameter(nn.Parameter):
    """A parameter whose every value is −1 or +1, stored in one bit each, in training too.

    The tensor itself is a NaN expanded to the full shape (stride 0, no storage): whoever computes with it
    instead of with `signs(parameter)` finds out at once, and an optimizer that adds to it is refused by
    PyTorch. Gradients, hooks and gradient clipping work as for any parameter.

    Args:
        bits: Packed signs, as `pack` makes them.
        shape: Shape of the weights.
        dtype: Floating type of gradients and of unpacked signs.

    Example:
        >>> weight = BinaryParameter.from_signs(torch.tensor([[1.0, -1.0, 1.0]]))
        >>> weight
        BinaryParameter of shape (1, 3) in 1 bytes, torch.float32 on cpu
        >>> signs(weight)
        tensor([[ 1., -1.,  1.]])
    """

    bits: Tensor

    def __new__(
        cls,
        bits: Tensor,
        shape: Iterable[int],
        dtype: torch.dtype = torch.float32,
        requires_grad: bool = True,
    ) -> "BinaryParameter":
        """Wraps packed bits; see the class."""
        size = torch.Size(shape)
        _check_bits(bits, size)
        placeholder = torch.full((), math.nan, dtype=dtype, device=bits.device).expand(size)
        parameter = torch.Tensor._make_subclass(cls, placeholder, requires_grad)
        parameter.bits = bits
        return parameter

    def __init__(
        self,
        bits: Tensor,
        shape: Iterable[int],
        dtype: torch.dtype = torch.float32,
        requires_grad: bool = True,
    ) -> None:
        pass  # all done in __new__, as for every nn.Parameter

    @classmethod
    def from_signs(cls, values: Tensor) -> "BinaryParameter":
        """Makes a parameter from the signs of `values`; zero counts as +1, as in Eq. 4."""
        dtype = values.dtype if values.is_floating_point() else torch.get_default_dtype()
        return cls(pack(values.detach() >= 0), values.shape, dtype)

    def flip_(self, flips: Tensor, start: int = 0) -> None:
        """Flips the weights where `flips` is true, for the flat range that begins at weight `start`.

        `start` must be a multiple of 8, so that the range begins with a byte.
        """
        if start % 8:
            raise UserError(f"flip_: received start={start}; expected a multiple of 8, where a byte begins.")
        packed = pack(flips)
        self.bits[start // 8 : start // 8 + packed.numel()].bitwise_xor_(packed)

    def convert_(self, convert: Callable[[Tensor], Tensor]) -> "BinaryParameter":
        """Applies a change of device or type, as `nn.Module.to` does, without making the weights dense."""
        placeholder = convert(torch.full((), math.nan, dtype=self.dtype, device=self.device))
        bits = convert(self.bits)
        if bits.dtype != torch.uint8:  # module.type(torch.float64) means the weights, not their bits
            bits = self.bits.to(bits.device)
        gradient = None if self.grad is None else convert(self.grad)
        if self.is_meta != placeholder.is_meta:  # a tensor with storage cannot become one without in place
            return BinaryParameter(bits, self.shape, placeholder.dtype, self.requires_grad)
        self.grad = None
        self.data = placeholder.expand(self.shape)
        self.bits, self.grad = bits, gradient
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "BinaryParameter":
        if id(self) not in memo:
            memo[id(self)] = BinaryParameter(self.bits.clone(), self.shape, self.dtype, self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return BinaryParameter, (self.bits, tuple(self.shape), self.dtype, self.requires_grad)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        shape, size = tuple(self.shape), self.bits.numel()
        return f"BinaryParameter of shape {shape} in {size} bytes, {self.dtype} on {self.device}"


def _check_bits(bits: Tensor, shape: torch.Size, name: str = "bits") -> None:
    expected = math.ceil(shape.numel() / 8)
    if bits.dtype != torch.uint8 or bits.shape != (expected,):
        raise UserError(
            f"{name}: received {bits.dtype} of shape {tuple(bits.shape)}; expected the packed bits of "
            f"{tuple(shape)} weights, torch.uint8 of shape ({expected},). Pack signs with bsnn.nn.bits.pack(w >= 0)."
        )


def signs(parameter: nn.Parameter) -> Tensor:
    """The ±1 values of a binary parameter as an ordinary tensor of its shape, type and device.

    Example:
        >>> signs(BinaryParameter.from_signs(torch.tensor([0.3, -2.0])))
        tensor([ 1., -1.])
    """
    if not isinstance(parameter, BinaryParameter):
        raise UserError(
            f"signs: received {type(parameter).__name__}; expected a BinaryParameter, such as "
            "BinaryConv2d(...).weight. Ordinary parameters hold their values themselves."
        )
    return unpack(parameter.bits, parameter.numel(), parameter.dtype).view(parameter.shape)


class BinaryModule(nn.Module):
    """Base of layers that own binary parameters: keeps them packed under `.to`, `.double`, `state_dict`.

    In a `state_dict` a binary parameter stands under its own name as its packed bits.
    """

    def _binary(self) -> dict[str, BinaryParameter]:
        return {name: p for name, p in self._parameters.items() if isinstance(p, BinaryParameter)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BinaryModule":
        binary = self._binary()
        # nn.Module would expand them to full storage: hide them from it, keeping their place in the order.
        self._parameters.update(dict.fromkeys(binary))
        try:
            super()._apply(fn, recurse)
        finally:
            self._parameters.update(binary)
        with torch.no_grad():
            self._parameters.update({name: p.convert_(fn) for name, p in binary.items()})
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({prefix + name: p.bits for name, p in self._binary().items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        binary = self._binary()
        for name, parameter in list(binary.items()):
            key = prefix + name
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            bits = state_dict[key]
            try:
                _check_bits(bits, parameter.shape, key)
            except UserError as error:
                error_msgs.append(str(error))
            else:
                if local_metadata.get("assign_to_params_buffers", False):
                    binary[name] = BinaryParameter(bits, parameter.shape, parameter.dtype, parameter.requires_grad)
                else:
                    parameter.bits.copy_(bits)
        others = {key: value for key, value in state_dict.items() if key not in {prefix + n for n in binary}}
        self._parameters.update(dict.fromkeys(binary))
        try:
            super()._load_from_state_dict(
                others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
        finally:
            self._parameters.update(binary)


def split_parameters(module: nn.Module) -> tuple[list[BinaryParameter], list[nn.Parameter]]:
    """Splits a network's parameters into those for a flip optimizer and those for an ordinary one.

    Every parameter lands in exactly one of the two lists, shared ones once.

    Example:
        >>> net = nn.Sequential(bsnn.BinaryLinear(4, 3), nn.Linear(3, 2))
        >>> binary, real = split_parameters(net)
        >>> len(binary), len(real)
        (1, 2)

    Raises:
        UserError: If there is no binary parameter, or one in a module that would not keep it packed.
    """
    for name, owner in module.named_modules():
        if not isinstance(owner, BinaryModule) and any(
            isinstance(p, BinaryParameter) for p in owner._parameters.values()
        ):
            raise UserError(
                f"split_parameters: {name or 'the module'} ({type(owner).__name__}) owns a binary parameter; expected "
                "a bsnn.BinaryModule there, which keeps it packed in state_dict and under .to(). Derive it from that."
            )
    binary = [p for p in module.parameters() if isinstance(p, BinaryParameter)]
    real = [p for p in module.parameters() if not isinstance(p, BinaryParameter)]
    if not binary:
        raise UserError(
            f"split_parameters: {type(module).__name__} has {len(real)} parameters and none of them is binary; "
            "expected at least one. Build it with BinaryConv2d or BinaryLinear (models: weights='binary')."
        )
    return binary, real
