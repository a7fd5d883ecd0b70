"""What gpu_launches.py and gpu_roofline.py share: which operators launch something, and on which tensors.

Imports torch alone, because another environment's python runs it too.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# They make room, or another view of the same memory.
_FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh",
    "_unsafe_view", "set_", "_reshape_alias", "as_strided_", "promote_types", "_record_function_enter_new",
    "_record_function_exit",
}  # fmt: skip


class Watching(TorchDispatchMode):
    """Sees every operator that launches something."""

    def saw(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> None:
        """Takes note of an operator and what it has made."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        made = func(*args, **kwargs)
        if name == "convolution":
            made = _in_order(made, args[0])
        elif name == "convolution_backward":
            made = tuple(_in_order(one, args[1]) for one in made)
        if not func.is_view and name not in _FREE:
            self.saw(func, args, kwargs, made)
        return made


def _in_order(made: Any, x: Tensor) -> Any:
    """What a convolution has made, in the memory order of its input: as cuDNN makes it, not as `meta` does."""
    last = x.is_contiguous(memory_format=torch.channels_last)
    return made if made is None or made.dim() < 4 or not last else made.to(memory_format=torch.channels_last)


class OneLaunch(torch.optim.SGD):
    """Stands for SGD with `fused=True`, which is one launch for all parameters but refuses tensors without storage."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Counts as one."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-0.1)  # pyright: ignore
