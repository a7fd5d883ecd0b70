"""What `torch.compile` sees of this folder: operators of torch, `torch.ops.bsnn`, that it does not look into.

A function of plain tensors, numbers and names runs as it is; while the compiler traces, the operator of the same name
stands for it. So a network becomes one graph, and every number is computed by the same code as without the compiler.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

LIBRARY = torch.library.Library("bsnn", "FRAGMENT")
"""Where all operators are."""

_F = TypeVar("_F", bound=Callable[..., Any])


def alone(made: Tensor) -> Tensor:
    """A tensor with memory of its own: results of an operator must not share theirs, as rows of one tensor do."""
    return made.clone() if made.untyped_storage().nbytes() > made.nbytes else made


def operator(schema: str, fake: Callable[..., Any], finish: Callable[..., Any]) -> Callable[[_F], _F]:
    """Makes a function an operator of torch for the compiler, `torch.ops.bsnn.NAME`.

    Args:
        schema: Its arguments, those that it writes to marked as `Tensor(a!)`, and what it returns: new tensors.
        fake: Returns what the operator does, for tensors without numbers.
        finish: Makes what the operator returns of what the function does: tensors in the memory order of `fake`'s.
    """

    def decorate(function: _F) -> _F:
        name = function.__name__
        LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        LIBRARY.impl(name, lambda *arguments: finish(function(*arguments)), "CompositeExplicitAutograd")
        torch.library.register_fake(f"bsnn::{name}", fake, lib=LIBRARY)
        traced = getattr(torch.ops.bsnn, name).default

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return traced(*arguments) if torch.compiler.is_compiling() else function(*arguments)

        return call  # pyright: ignore[reportReturnType]

    return decorate
