"""Private parts of torch that the library needs, in one place, each with the reason why no public one does.

No other module of training touches a name of torch that begins with an underscore.
"""

import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bsnn.errors import UserError

# TorchDispatchMode is documented as an extension point but has no public import path.

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T", bound=Tensor)


def constant(function: _F) -> _F:
    """Lets `torch.compile` call a function while it traces, and take what it returns as a constant.

    Its arguments must be constants. The public `torch.compiler.assume_constant_result` imports the compiler at once.
    """
    vars(function).update(_dynamo_marked_constant=True)
    return function


def uncompiled_calls() -> AbstractContextManager[Any]:
    """Within it, compiled modules run as if they were not; if the compiler was never imported, there are none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def mark(tensor: Tensor, name: str, value: Any) -> Tensor:
    """Sets an attribute of a tensor, and returns the tensor that has it.

    While the compiler traces, that is a view: it does not let every result of an operator have attributes.
    """
    marked = tensor.view_as(tensor) if torch.compiler.is_compiling() else tensor
    setattr(marked, name, value)
    return marked


@cache
def multiplies_bf16() -> bool:
    """Whether the CPU has instructions for bf16; without them torch's products would take several times as long.

    torch tells it in public for GPUs only. What it says of oneDNN holds for any x86 CPU with AVX-512, where bf16 is
    emulated if need be, so such a CPU is asked itself, if this version of torch can.
    """
    supported: Callable[[], bool] | None = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    if supported is None or not torch.backends.mkldnn.is_available() or not supported():
        return False
    instructions: Callable[[], bool] | None = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return instructions is None or platform.machine().lower() not in ("x86_64", "amd64") or instructions()


def tensors_in(values: Any) -> Iterable[Tensor]:
    """The tensors in nested tuples, lists and dicts; torch's public functions do not see all of its own containers."""
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def without_storage(
    kind: type[_T], size: Any, stride: Any, dtype: torch.dtype, device: torch.device, requires_grad: bool
) -> _T:
    """A tensor of a class of ours that has a shape and no memory; torch documents it only as a way to wrap tensors."""
    made: Any = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
        kind, size, strides=stride, dtype=dtype, device=device, requires_grad=requires_grad
    )
    return made


def storage_id(tensor: Tensor) -> int:
    """Tells storages apart; their address does not, because empty ones share it."""
    return tensor.untyped_storage()._cdata


def is_view(tensor: Tensor) -> bool:
    """Whether a tensor shares another one's memory; there is no public question for it."""
    return tensor._is_view()


def num_writes(tensor: Tensor) -> int:
    """How often a tensor has been written to in place; autograd counts it, and there is no public question for it."""
    return tensor._version


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, or the module itself; torch has no public name for the wrapper."""
    return module._modules.get("_orig_mod") or module


def named_layers(module: nn.Module) -> dict[str, nn.Module]:
    """The children of a module by name; `named_children` would leave out a layer's second use.

    A layer of ours that was compiled by itself stands here as it was before: its type says how to call it.
    """
    return {name: _callable_layer(layer) for name, layer in module._modules.items() if layer is not None}


def _callable_layer(layer: nn.Module) -> nn.Module:
    """A layer as it is called: one of ours, which are known here only by what they have, as it was before."""
    own = uncompiled(layer)
    return own if isinstance(own, OwnStorage) or hasattr(own, "initial_state") else layer


def forward_hooks(module: nn.Module) -> list[Callable[..., Any]]:
    """The forward hooks of a module; hooks can be registered in public, but not listed."""
    return list(module._forward_hooks.values())


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a hook of its own sees what enters or leaves a module; see `forward_hooks`."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def has_other_hooks(module: nn.Module) -> bool:
    """Whether anything but a forward hook of its own watches a module; see `forward_hooks`."""
    own = module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(own) or bool(nn.modules.module._has_any_global_hook())


def backward_pass() -> int | None:
    """The number of the backward pass that is running on this thread, if one is; there is no public question for it."""
    number = torch._C._current_graph_task_id()
    return None if number < 0 else number


def after_backward_pass(call: Callable[[], None]) -> None:
    """Calls a function at the end of the backward pass that is running; distributed training uses the same hook."""
    torch.autograd.Variable._execution_engine.queue_callback(call)  # pyright: ignore[reportAttributeAccessIssue]


# torch's own optimizers use these: one launch for a list of tensors. They have no public names.


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """The largest magnitude in any of the tensors, NaN if there is one; `get_total_norm` takes a launch for each."""
    norms = torch._foreach_norm(list(tensors), torch.inf)  # pyright: ignore[reportPrivateImportUsage]
    return torch.stack(norms).amax()


def mean_squares(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The mean of the squares of each tensor, computed in a type of at least their precision."""
    norms = list(torch._foreach_norm(list(tensors), 2, dtype=dtype))  # pyright: ignore
    torch._foreach_mul_(norms, norms)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_div_(norms, [tensor.numel() for tensor in tensors])  # pyright: ignore[reportPrivateImportUsage]
    return norms


def move_together(targets: Sequence[Tensor], values: Sequence[Tensor], rate: Tensor, *, adding: bool) -> None:
    """Target + rate · (value − target) or, if `adding`, target + rate · value, by a rate that is on their device."""
    steps = list(values) if adding else torch._foreach_sub(list(values), list(targets))  # pyright: ignore
    torch._foreach_mul_(steps, rate.to(steps[0].dtype))  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_add_(list(targets), steps)  # pyright: ignore[reportPrivateImportUsage]


def lerp_together(targets: Sequence[Tensor], values: Sequence[Tensor], rate: Tensor) -> None:
    """`lerp_` of each target, one number, to its value by a rate that is on their device."""
    torch._foreach_lerp_(list(targets), list(values), [rate] * len(targets))  # pyright: ignore


def count_together(counts: Sequence[Tensor]) -> None:
    """Adds one to each."""
    torch._foreach_add_(list(counts), 1)  # pyright: ignore[reportPrivateImportUsage]


def products(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    """The products of two lists of tensors."""
    return torch._foreach_mul(list(left), list(right))  # pyright: ignore


def copy_together(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """`copy_` of each value to its target."""
    torch._foreach_copy_(list(targets), list(values))  # pyright: ignore[reportPrivateImportUsage]


def can_skip_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer can leave its parameters alone if a number on their device says so: one with `fused=True`.

    `torch.amp.GradScaler` asks and tells it in the same way; there is no public question for it.
    """
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def step_unless(optimizer: torch.optim.Optimizer, refused: Tensor) -> None:
    """An update by an optimizer that does nothing if `refused`, on its device, is not 0; see `can_skip_step`."""
    own: Any = optimizer
    own.found_inf = torch.ne(refused, 0, out=torch.empty_like(refused, dtype=torch.float32))
    own.grad_scale = None
    try:
        optimizer.step()
    finally:
        del own.found_inf, own.grad_scale


class OwnStorage(nn.Module):
    """A module that converts, saves and loads some of its parameters itself.

    torch offers no public hook for `.to()` and its like, and its hooks around `load_state_dict` cannot keep it from
    loading a parameter in its own way. So these three methods are overridden, and the parameters hidden from torch's.
    """

    def own_parameters(self) -> dict[str, Any]:
        """The parameters that torch must not touch, by name."""
        raise NotImplementedError

    def convert_own(self, parameter: Any, convert: Callable[[Tensor], Tensor]) -> nn.Parameter:
        """A parameter after a change of device or type."""
        raise NotImplementedError

    def save_own(self, parameter: Any) -> dict[str, Tensor]:
        """What stands for a parameter in a `state_dict`, by what follows its name in the keys."""
        raise NotImplementedError

    def load_own(self, parameter: Any, saved: dict[str, Tensor], name: str, assign: bool) -> nn.Parameter:
        """A parameter with the values of `save_own`; a `ValueError` is reported with those of other layers.

        Args:
            parameter: The parameter as it is.
            saved: What `save_own` made, all of it.
            name: Of the parameter, for messages.
            assign: Whether to take the tensor itself, not a copy.
        """
        raise NotImplementedError

    def refuse_wrapper(self, wrapper: str) -> None:
        """Refuses to become part of a module that spreads parameters over processes or devices, if it has its own."""
        if self.own_parameters():
            raise UserError(
                f"{wrapper}: received a network with binary weights, which are bits that it does not see; expected one "
                "without. To train on many processes, call bsnn.train.distribute(net, optimizers, world) within `with "
                "bsnn.train.joined_world() as world:`, and then the network itself."
            )

    @property
    def _is_fsdp_managed_module(self) -> bool:
        return False

    @_is_fsdp_managed_module.setter
    def _is_fsdp_managed_module(self, value: bool) -> None:  # what FSDP does first to every module that it is given
        self.refuse_wrapper("FullyShardedDataParallel")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "OwnStorage":
        own = self.own_parameters()
        self._parameters.update(dict.fromkeys(own))  # hidden, keeping their place in the order
        try:
            super()._apply(fn, recurse)
        finally:
            self._parameters.update(own)
        with torch.no_grad():
            self._parameters.update({name: self.convert_own(p, fn) for name, p in own.items()})
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, parameter in self.own_parameters().items():
            for ending, tensor in self.save_own(parameter).items():
                if ending and prefix + name + ending in destination:
                    raise UserError(
                        f"state_dict: {type(self).__name__} has a tensor named {name + ending}, which a part of "
                        f"{name} is saved under; expected another name."
                    )
                destination[prefix + name + ending] = tensor

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
        own, assign = self.own_parameters(), local_metadata.get("assign_to_params_buffers", False)
        taken: set[str] = set()
        for name, parameter in list(own.items()):
            key = prefix + name
            keys = {ending: key + ending for ending in self.save_own(parameter)}
            missing = [part for part in keys.values() if part not in state_dict]
            taken.update(keys.values())
            if not missing:
                try:
                    saved = {ending: state_dict[part] for ending, part in keys.items()}
                    own[name] = self.load_own(parameter, saved, key, assign)
                except ValueError as error:
                    error_msgs.append(str(error))
            elif len(missing) < len(keys):
                found = state_dict[next(part for part in keys.values() if part in state_dict)]
                error_msgs.append(
                    f"{key}: received {found.dtype} of shape {tuple(found.shape)} without {', '.join(missing)}; "
                    f"expected {' and '.join(keys.values())}, as this version of bsnn saves binary weights."
                )
            if strict:
                missing_keys.extend(missing)
        others = {key: value for key, value in state_dict.items() if key not in taken}
        self._parameters.update(dict.fromkeys(own))
        try:
            super()._load_from_state_dict(
                others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
        finally:
            self._parameters.update(own)


def _refuse_wrappers(wrapper: nn.Module, name: str, module: nn.Module | None) -> None:
    """Keeps binary weights out of modules that would copy their placeholders, not their bits, to other processes.

    Called for every module that becomes part of another. DistributedDataParallel would fail with words of its own or,
    told not to copy, let the processes train apart.
    """
    if module is None or not isinstance(wrapper, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return
    for part in module.modules():
        if isinstance(part, OwnStorage):
            part.refuse_wrapper(type(wrapper).__name__)


nn.modules.module.register_module_module_registration_hook(_refuse_wrappers)
