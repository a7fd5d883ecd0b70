"""How gradients reach a flip optimizer: from `.grad`, or, within `folding`, straight from the backward pass."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.kernels.pieces import mean_square
from bsnn.nn.bits import BinaryParameter

# What belongs to an unfinished sequence or to this very object, and is no part of its copies.
_NOT_COPIED = {"_accumulated", "_accumulated_times", "_folded", "_handles", "_refused"}


class NotFinite(UserError):
    """A gradient with NaN or infinite values. No weight has changed when it is raised, nor is it in the momentum.

    Finite gradients of the same step may be in the momentum: those that backward handed over within `folding`.
    """


class GradientOptimizer(Optimizer):
    """The part of a flip optimizer that takes gradients; what becomes of them is `_fold`'s."""

    _handles: tuple[Any, ...] = ()

    def _fold(self, group: dict[str, Any], parameter: BinaryParameter, gradient: Tensor) -> None:
        raise NotImplementedError

    def _start_sequence(self) -> None:
        self._accumulated: set[BinaryParameter] = set()
        self._accumulated_times: set[int] = set()
        # Mean squares of the gradients that are in the momentum and wait for their time step to end.
        self._folded: dict[BinaryParameter, Tensor] = {}
        self._refused: BinaryParameter | None = None

    def _everything(self) -> list[tuple[dict[str, Any], BinaryParameter]]:
        return [(group, parameter) for group in self.param_groups for parameter in group["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discards the gradients.

        Raises:
            UserError: If some are in the momentum already, as within `folding` after a backward pass.
        """
        if self._folded:
            raise UserError(
                "zero_grad: the gradients of the last backward pass are in the momentum already, because "
                "bsnn.optim.folding was asked for, and cannot be discarded; expected step() or accumulate() first. "
                "After an error, call abandon()."
            )
        super().zero_grad(set_to_none)

    def abandon(self) -> None:
        """Ends an unfinished sequence after an error: discards `.grad` and flips nothing.

        What is in the momentum already stays there.
        """
        self._take_folded()
        self._start_sequence()
        self.zero_grad()

    def _take_folded(self) -> dict[BinaryParameter, Tensor]:
        folded, self._folded = self._folded, {}
        for parameter in folded:
            parameter.grad_is_folded = False
        return folded

    def _check_finished(self, caller: str) -> None:
        if self._accumulated or self._folded:
            raise UserError(
                f"{caller}: gradients of an unfinished sequence are in the momentum; expected none. Call step() first."
            )

    def __getstate__(self) -> dict[str, Any]:
        self._check_finished("copy")
        # As in torch, hooks of the optimizer stay behind.
        dropped = _NOT_COPIED | {name for name in vars(self) if name.startswith("_optimizer_")}
        return {name: value for name, value in vars(self).items() if name not in dropped}

    @property
    def is_folding(self) -> bool:
        """Whether backward hands gradients to the momentum at once; see `bsnn.optim.folding`."""
        return bool(self._handles)

    def start_folding(self) -> None:
        """Lets backward hand gradients over from now on."""
        trained = [p for _, p in self._everything() if p.requires_grad]
        self._handles = tuple(p.register_post_accumulate_grad_hook(self._fold_at_once) for p in trained)

    def stop_folding(self) -> None:
        """Lets backward fill `.grad` again."""
        for handle in self._handles:
            handle.remove()
        self._handles = ()

    @torch.no_grad()
    def _fold_at_once(self, parameter: Any) -> None:
        """Takes a gradient that backward has just made."""
        if parameter in self._folded:
            raise UserError(
                "backward: the gradients of the backward pass before are in the momentum already, because "
                "bsnn.optim.folding was asked for; expected step() or accumulate() after each backward pass. Add up "
                "the losses, or leave folding out: gradients then add up in .grad."
            )
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return  # a hook has taken it away
        square = mean_square(gradient)
        if self._refused is None and not square.isfinite():
            self._refused = parameter
        if self._refused is None:
            group = next(g for g in self.param_groups if any(p is parameter for p in g["params"]))
            self._fold(group, parameter, gradient)
        self._folded[parameter], parameter.grad_is_folded = square, True

    def check_finite(self) -> None:
        """Raises `NotFinite` if `step` would, so that several optimizers can be asked before any of them steps."""
        given = [p for _, p in self._everything() if p not in self._folded and p.grad is not None]
        self._refuse([p for p in given if p.grad is not None and not mean_square(p.grad).isfinite()])

    def _refuse(self, parameters: list[BinaryParameter]) -> None:
        """Raises `NotFinite` if there are any, or if there was one in the backward pass."""
        refused = [*parameters, *([] if self._refused is None else [self._refused])]
        if refused:
            self._take_folded()
            self._start_sequence()
            raise NotFinite(
                f"{type(self).__name__}: the gradient of a binary parameter of shape {tuple(refused[0].shape)} holds "
                "NaN or infinite values; expected finite ones. No weight was flipped, and it is not in the momentum. "
                "Look for a loss that overflows or for bad inputs, then call zero_grad()."
            )

    def _take_gradients(self) -> list[tuple[dict[str, Any], BinaryParameter, Tensor]]:
        """Every parameter that has a gradient, which is in the momentum then, with its mean square."""
        everything, squares = self._everything(), self._take_folded()
        given = [(group, p, p.grad) for group, p in everything if p.grad is not None]
        if any(p in squares for _, p, _ in given):
            self.abandon()
            raise UserError(
                "step: some gradients are in the momentum already, because bsnn.optim.folding was asked for, and the "
                "same parameters have a .grad; expected one or the other. No weight was flipped. Call step() or "
                "accumulate() after each backward pass."
            )
        squares |= {p: mean_square(gradient) for _, p, gradient in given}
        self._refuse([p for _, p, _ in given if not squares[p].isfinite()])
        for group, parameter, gradient in given:
            self._fold(group, parameter, gradient)
        return [(group, p, squares[p]) for group, p in everything if p in squares]
