"""How gradients reach a flip optimizer: from `.grad`, or, within `folding`, straight from the backward pass."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.kernels import pieces, together
from bsnn.kernels.operations import folds, mean_square
from bsnn.kernels.pieces import is_whole, widest
from bsnn.nn.bits import BinaryParameter
from bsnn.optim.momentum import move

# What belongs to an unfinished sequence or to this very object, and is no part of its copies.
_NOT_COPIED = {
    "_answers", "_accumulated", "_accumulated_times", "_folded", "_handles", "_refusals", "_refused", "_waiting",
}  # fmt: skip


Given = tuple[dict[str, Any], BinaryParameter, Tensor]
"""The settings of a parameter, the parameter, and its gradient."""


class NotFinite(UserError):
    """A gradient with NaN or infinite values. No weight has changed when it is raised, nor is it in the momentum.

    Finite gradients of the same step may be in the momentum: those that backward handed over within `folding`.
    """


class GradientOptimizer(Optimizer):
    """The part of a flip optimizer that takes gradients; what becomes of them is `_fold`'s."""

    _handles: tuple[Any, ...] = ()

    defers: ClassVar[bool] = False
    """Whether what the rule observes goes through `accepted`, so that on a GPU nobody waits for a gradient's check."""

    def _fold(self, group: dict[str, Any], parameter: BinaryParameter, gradient: Tensor) -> None:
        raise NotImplementedError

    def _fold_all(self, given: list[Given]) -> None:
        """Takes gradients on GPUs into the momentum, all that are treated alike at once."""
        alike: dict[tuple[float, bool, torch.device], list[Given]] = {}
        for group, parameter, gradient in given:
            stored = self.state[parameter]
            move(stored, parameter)
            if "scales" in stored or group["initial_momentum"] or stored["momentum"].dtype != gradient.dtype:
                self._fold(group, parameter, gradient)
            else:
                kind = group["one_minus_beta1"], parameter in self._accumulated, parameter.device
                alike.setdefault(kind, []).append((group, parameter, gradient))
        for (rate, adding, device), entries in alike.items():
            momenta = [self.state[parameter]["momentum"].view(-1) for _, parameter, _ in entries]
            gradients = [gradient.reshape(-1) for _, _, gradient in entries]
            together.fold(gradients, momenta, self.refusal(device), rate, adding)

    def refusal(self, device: torch.device) -> Tensor:
        """One number on a device: 0 as long as every gradient was finite, and NaN from then on."""
        if device not in self._refusals:
            self._refusals[device] = torch.zeros((), dtype=widest(device), device=device)
        return self._refusals[device]

    def refusals(self) -> list[Tensor]:
        """`refusal` of each GPU in use."""
        return [number for number in self._refusals.values() if is_whole(number)]

    def _measured(self, gradient: Tensor) -> Tensor:
        """The mean square of a gradient, which is 0 if the gradient is refused on its own device."""
        self._answers.clear()
        return mean_square(gradient, self.refusal(gradient.device))

    def _is_finite(self, square: Tensor) -> bool:
        """Whether a gradient is, as far as the host is to know: on a GPU, the check is deferred if the rule allows it.

        Args:
            square: As `_measured` returns it.
        """
        if is_whole(square):
            return self.defers or bool(self.refusal(square.device) == 0)
        return bool(square.isfinite())

    def accepted(self, new: Tensor, old: Tensor) -> Tensor:
        """What is new or, if a gradient on a GPU was refused and the host does not know it yet, what was before."""
        if not (is_whole(new) and self.defers):
            return new
        return torch.where(self._accepting(new.device), new, old)

    def accepted_rate(self, rate: float, like: Tensor) -> float | Tensor:
        """A rate, in the same way: on a GPU a number there that is 0 if a gradient was refused."""
        if not (is_whole(like) and self.defers):
            return rate
        if (like.device, rate) not in self._answers:
            self._answers[like.device, rate] = (self.refusal(like.device) + rate).nan_to_num_(0)
        return self._answers[like.device, rate]

    def _accepting(self, device: torch.device) -> Tensor:
        if (device, None) not in self._answers:
            self._answers[device, None] = self.refusal(device) == 0
        return self._answers[device, None]

    def check_refused(self) -> None:
        """Raises `NotFinite` if a gradient on a GPU was not finite; waits for it.

        A GPU checks gradients itself: from the first bad one on, neither momentum nor weights change, and it is here
        that the host learns of it. `flip_counts`, `flip_ratio` and `state_dict` ask too.
        """
        refused = [number.device for number in self.refusals() if bool(number != 0)]
        if refused:
            self._take_folded()
            self._start_sequence()
            raise NotFinite(
                f"{type(self).__name__}: a gradient on {refused[0]} held NaN or infinite values since this was last "
                "asked; expected finite ones. No weight was flipped since, and it is not in the momentum. Look for a "
                "loss that overflows or for bad inputs, then call zero_grad()."
            )

    def _start_sequence(self) -> None:
        self._accumulated: set[BinaryParameter] = set()
        self._accumulated_times: set[int] = set()
        # Mean squares of the gradients that are in the momentum and wait for their time step to end.
        self._folded: dict[BinaryParameter, Tensor] = {}
        # Gradients of this backward pass that are on a GPU and are folded together, when it has ended.
        self._waiting: list[Given] = []
        self._refused: BinaryParameter | None = None
        self._refusals: dict[torch.device, Tensor] = {}
        # Whether gradients were accepted since the last was measured, and rates that are 0 if not; on each device.
        self._answers: dict[tuple[torch.device, float | None], Tensor] = {}

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
        folded, self._folded, self._waiting = self._folded, {}, []
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
        group = next(g for g in self.param_groups if any(p is parameter for p in g["params"]))
        if self._waits(gradient):
            self._waiting.append((group, parameter, gradient))
            square = gradient  # stands for it until all are known
        else:
            square = self._measured(gradient)
            if self._refused is None and not self._is_finite(square):
                self._refused = parameter
            if self._refused is None:
                self._fold(group, parameter, gradient)
        self._folded[parameter], parameter.grad_is_folded = square, True

    def _waits(self, gradient: Tensor) -> bool:
        """Whether a gradient is folded with all others of its time step: fewer launches, for the memory of all."""
        return self.defers and not folds(gradient)

    def check_finite(self) -> None:
        """Raises `NotFinite` if `step` would, so that several optimizers can be asked before any of them steps.

        On a GPU nobody waits: `refusal` is NaN then, which the optimizers tell each other.
        """
        self._measure_waiting()
        refused = []
        for parameter, gradient in ((p, p.grad) for _, p in self._everything() if p not in self._folded):
            if gradient is not None and self.defers and is_whole(gradient):
                self._measured(gradient)
            elif gradient is not None and not pieces.mean_square(gradient).isfinite():
                refused.append(parameter)
        self._refuse(refused)

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

    def _measure_together(self, given: list[Given]) -> dict[BinaryParameter, Tensor]:
        """The mean squares of gradients on GPUs, all those on one device at once."""
        squares: dict[BinaryParameter, Tensor] = {}
        for device in dict.fromkeys(parameter.device for _, parameter, _ in given):
            here = [(parameter, gradient) for _, parameter, gradient in given if parameter.device == device]
            self._answers.clear()
            found = together.mean_squares([gradient for _, gradient in here], self.refusal(device))
            squares |= dict(zip((parameter for parameter, _ in here), found, strict=True))
        return squares

    def _measure_waiting(self) -> None:
        unknown = [entry for entry in self._waiting if self._folded[entry[1]] is entry[2]]
        self._folded |= self._measure_together(unknown)

    def _take_gradients(self) -> list[Given]:
        """Every parameter that has a gradient, which is in the momentum then, with its mean square."""
        self._measure_waiting()
        everything, waiting, squares = self._everything(), self._waiting, self._take_folded()
        given = [(group, p, p.grad) for group, p in everything if p.grad is not None]
        if any(p in squares for _, p, _ in given):
            self.abandon()
            raise UserError(
                "step: some gradients are in the momentum already, because bsnn.optim.folding was asked for, and the "
                "same parameters have a .grad; expected one or the other. No weight was flipped. Call step() or "
                "accumulate() after each backward pass."
            )
        kept = [entry for entry in given if self._waits(entry[2])]
        given = [entry for entry in given if not self._waits(entry[2])]
        squares |= self._measure_together(kept)
        self._fold_all([*waiting, *kept])
        squares |= {p: self._measured(gradient) for _, p, gradient in given}
        self._refuse([p for _, p, _ in given if not self._is_finite(squares[p])])
        for group, parameter, gradient in given:
            self._fold(group, parameter, gradient)
        return [(group, p, squares[p]) for group, p in everything if p in squares]
