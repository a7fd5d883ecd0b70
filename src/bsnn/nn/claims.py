"""What a class says about its methods, such as "elementwise", and for which subclasses that still holds.

A statement about methods is worth nothing once a subclass has changed one of them. So it holds for a subclass that adds
no method, and otherwise only if the subclass repeats it.
"""

from typing import Any

from torch import Tensor


def claim(kind: type, name: str) -> Any:
    """The class attribute `name`, unless a class that is more derived than its owner defines a method; then None.

    Example:
        >>> class Own(bsnn.OTTT):
        ...     def trace(self, past, spikes, membrane, previous, leak):
        ...         return past
        >>> claim(bsnn.OTTT, "kernel"), claim(Own, "kernel")
        ('leaky', None)
    """
    for owner in kind.__mro__:
        if name in vars(owner):
            return vars(owner)[name]
        if any(not key.startswith("__") and hasattr(type(value), "__get__") for key, value in vars(owner).items()):
            return None
    return None


def is_elementwise(part: object) -> bool:
    """Whether a gradient rule, a surrogate or a flip rule treats each number by itself, so that tensors may be cut up.

    That is so if its class says so, by `elementwise = True`, and if the object itself holds neither a tensor with axes,
    such as one number per channel, nor a method of its own.
    """
    own = getattr(part, "__dict__", {}).values()
    plain = not any((isinstance(value, Tensor) and value.dim() > 0) or callable(value) for value in own)
    return plain and claim(type(part), "elementwise") is True
