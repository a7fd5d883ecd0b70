"""±1 weights as packed bits: the only master copy of a binary weight (paper, Section 3.1, Eq. 4).

Bit i of byte k is weight 8k + i in row-major order; 1 stands for +1 and 0 for −1. A `BinaryParameter` is what
PyTorch's tools see: a leaf of the full shape that has no storage of its own, with an ordinary dense `.grad`.
Its bits change only by flips, and arithmetic with it is refused.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from bsnn.errors import UserError
from bsnn.kernels.bits import pack as pack, unpack as unpack
from bsnn.kernels.torch_internals import OwnStorage, tensors_in, without_storage

# What torch may do with a binary parameter: ask for its kind and shape, make other tensors like it, and what concerns
# its gradient. Everything else would read or write numbers that it does not have.
_ALLOWED = {
    "__dir__", "__format__", "__len__", "_is_view", "backward", "dim", "element_size", "get_device", "grad",
    "is_complex", "is_conj", "is_contiguous", "is_floating_point", "is_inference", "is_neg", "is_pinned",
    "is_same_size", "is_shared", "is_signed", "ndimension", "nelement", "numel", "register_hook",
    "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad", "size", "storage_offset", "stride",
    "untyped_storage",
}  # fmt: skip
_REFUSED_ATTRIBUTES = {"data", "H", "T", "imag", "mH", "mT", "real"}
_SET_ATTRIBUTES = {"grad", "requires_grad"}


class BinaryParameter(nn.Parameter):
    """A parameter whose every value is −1 or +1, stored in one bit each, in training too.

    The tensor itself is one NaN expanded to the full shape (stride 0, no storage). Its gradient is an ordinary tensor:
    hooks, clipping, scaling and freezing work as for any parameter. Whatever would compute with the parameter itself
    or write to it (arithmetic, `nn.init`, averaging of weights, an ordinary optimizer) raises a `UserError`; its values
    are `signs(parameter)`. `detach` and `nn.Parameter(parameter)` give one that shares its bits.

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
    grad_is_folded = False
    """Whether backward has made a gradient that a flip optimizer took at once (`bsnn.optim.folding`)."""

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
        parameter = super().__new__(cls, placeholder, requires_grad)
        parameter.bits = bits
        return parameter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # All done in __new__, as for every nn.Parameter; `nn.Parameter(parameter)` calls it with arguments of its own.
        pass

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Lets torch do what is right without the values, and refuses the rest by name."""
        name, kwargs = getattr(func, "__name__", str(func)), kwargs or {}
        if name in ("__get__", "__set__", "__delete__"):
            name, access = func.__self__.__name__, name
            if name == "grad" and access == "__get__" and args[0].grad_is_folded:
                raise _folded(args[0])
            allowed = name not in _REFUSED_ATTRIBUTES if access == "__get__" else name in _SET_ATTRIBUTES
        elif args and (name == "detach" or (name == "clone" and not args[0].requires_grad)):
            bits = args[0].bits if name == "detach" else args[0].bits.clone()
            return cls(bits, args[0].shape, args[0].dtype, requires_grad=False)
        else:
            # An ordinary tensor may be made like it: `x.to(parameter)`.
            alike = name in ("to", "type_as") and not isinstance(args[0], cls)
            allowed = name in _ALLOWED or _makes_tensors(name) or alike
        if not allowed:
            raise _no_numbers(name, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The same for what torch does not ask `__torch_function__` about, such as `torch.tensor(parameter)`."""
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if not _makes_tensors(name) or not isinstance(args[0], cls):
            raise _no_numbers(name, args, kwargs)
        like = torch.empty((), dtype=args[0].dtype, device=args[0].device).expand(args[0].shape)
        return func(like, *args[1:], **kwargs)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        """What `torch.compile` traces in the place of a parameter: its bits, and what kind of tensor it is."""
        return ["bits"], (self.dtype, self.requires_grad)

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], kind: Any, size: Any, stride: Any) -> "BinaryParameter":
        """A parameter around bits that stand in for its own while it is traced."""
        dtype, requires_grad = kind
        parameter = without_storage(cls, size, stride, dtype, inner["bits"].device, requires_grad)
        parameter.bits = inner["bits"]
        return parameter

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
        # As `self.data = ...`, which is refused elsewhere.
        setter: Any = Tensor.data
        super().__torch_function__(setter.__set__, (), (self, placeholder.expand(self.shape)), {})
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


def _makes_tensors(name: str) -> bool:
    """Whether an operation makes another tensor and reads only the type, shape and device of the one it is given."""
    return name.startswith("new_") or name.endswith("_like")


def _no_numbers(name: str, args: Iterable[Any], kwargs: dict[str, Any]) -> UserError:
    given = next((p for p in tensors_in((args, kwargs)) if isinstance(p, BinaryParameter)), None)
    shape = "" if given is None else f" of shape {tuple(given.shape)}"
    return UserError(
        f"{name}: received a binary parameter{shape}, which stores one bit per weight and no numbers; expected an "
        "ordinary tensor. Compute with bsnn.signs(parameter). To train it, give it to a flip optimizer, as in "
        "binary, real = bsnn.split_parameters(net); bsnn.optim.BSO(binary). To set it, write "
        "parameter.bits.copy_(bsnn.nn.bits.pack(values >= 0))."
    )


def _refuse_parametrization(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Called for every parameter that becomes part of a module; a parametrized layer would not keep its bits."""
    if isinstance(parameter, BinaryParameter) and isinstance(module, ParametrizationList):
        raise _no_numbers("register_parametrization", (parameter,), {})


nn.modules.module.register_module_parameter_registration_hook(_refuse_parametrization)


def _folded(parameter: BinaryParameter) -> UserError:
    return UserError(
        f"grad: the gradient of the binary parameter of shape {tuple(parameter.shape)} went into the momentum as soon "
        "as backward had made it, because bsnn.optim.folding was asked for; expected step() or accumulate() next. To "
        "clip, scale, log or discard gradients, leave folding out (or use online_update(..., clip_norm=...))."
    )


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


class BinaryModule(OwnStorage):
    """Base of layers that own binary parameters: keeps them packed under `.to`, `.double`, `state_dict`.

    In a `state_dict` a binary parameter stands under its own name as its packed bits, and its shape beside it, under
    NAME_shape: as many bits may belong to weights of another shape.
    """

    def own_parameters(self) -> dict[str, BinaryParameter]:
        """The binary parameters, by name."""
        own = self.named_parameters(recurse=False, remove_duplicate=False)
        return {name: parameter for name, parameter in own if isinstance(parameter, BinaryParameter)}

    def convert_own(self, parameter: BinaryParameter, convert: Callable[[Tensor], Tensor]) -> BinaryParameter:
        """See `OwnStorage`; nn.Module would expand it to full storage."""
        return parameter.convert_(convert)

    def save_own(self, parameter: BinaryParameter) -> dict[str, Tensor]:
        """See `OwnStorage`."""
        return {"": parameter.bits, "_shape": torch.tensor(parameter.shape, dtype=torch.int64, device="cpu")}

    def load_own(
        self, parameter: BinaryParameter, saved: dict[str, Tensor], name: str, assign: bool
    ) -> BinaryParameter:
        """See `OwnStorage`."""
        bits, shape = saved[""], saved["_shape"].tolist()
        if shape != list(parameter.shape):
            raise UserError(
                f"size mismatch for {name}: copying a binary parameter with shape {tuple(shape)} from checkpoint, the "
                f"shape in current model is {tuple(parameter.shape)}."
            )
        _check_bits(bits, parameter.shape, name)
        if assign:
            return BinaryParameter(bits, parameter.shape, parameter.dtype, parameter.requires_grad)
        parameter.bits.copy_(bits)
        return parameter


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
            isinstance(p, BinaryParameter) for p in owner.parameters(recurse=False)
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
