"""What gpu_launches.py and gpu_roofline.py share: which operators a GPU would be given, seen without one.

Networks run on torch's `meta` device: tensors without storage take the way that tensors on a GPU take, and whoever asks
for a number, as a host that waits would, gets an error. Imports torch alone, because the python of another environment
runs it too.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# They make room, or another view of the same memory.
_FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh",
    "_unsafe_view", "set_", "_reshape_alias", "as_strided_", "promote_types", "_record_function_enter_new",
    "_record_function_exit",
}  # fmt: skip


class Watching(TorchDispatchMode):
    """Sees every operator that launches something; what happens on the CPU, such as counting updates, does not."""

    def saw(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> None:
        """Takes note of an operator and of what it has made."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        made = func(*args, **kwargs)
        if name == "convolution":
            made = _in_order(made, args[0])
        elif name == "convolution_backward":
            made = tuple(_in_order(one, args[1]) for one in made)
        if not func.is_view and name not in _FREE and any(x.is_meta for x in tensors_in((args, kwargs, made))):
            self.saw(func, args, kwargs, made)
        return made


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _in_order(made: Any, x: Tensor) -> Any:
    """What a convolution has made, in the memory order of its input: as cuDNN makes it, not as `meta` does."""
    last = x.is_contiguous(memory_format=torch.channels_last)
    return made if made is None or made.dim() < 4 or not last else made.to(memory_format=torch.channels_last)


class OneLaunch(torch.optim.SGD):
    """Stands for SGD with `fused=True`, which is one launch for all parameters but refuses tensors without storage."""

    _step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One launch that reads gradients and reads and writes parameters."""
        given = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_add_(given, [p.grad for p in given], alpha=-0.1)  # pyright: ignore[reportPrivateImportUsage]
