"""What all flip optimizers share: the momentum, the flips, and the checks (paper, Sections 4.2 and 4.3, Algorithm 1).

    M ← β1 M + (1 − β1) G[t]                                             Eq. 11, 13

What is stored is 1 − β, because β = 1 − 1e-8 is 1 in single precision. The momentum may be stored in eight bits per
weight (momentum.py).

Legend: M momentum, G gradient.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.kernels.pieces import mean_square
from bsnn.nn.bits import BinaryParameter, signs, unpack
from bsnn.optim.momentum import change_pieces, dense, read_pieces, stored_zeros

# The rates that are stored for the decays that are given.
_RATES = {"beta": ("one_minus_beta1",), "betas": ("one_minus_beta1", "one_minus_beta2")}

FlipRule = Callable[[Tensor, Tensor], Tensor]


class NotFinite(UserError):
    """A gradient with NaN or infinite values; whoever raises it has changed nothing."""


class FlipOptimizer(Optimizer):
    """What all flip optimizers share: momentum, flips, checks. To add a rule, subclass it and override `rule`.

    Each gradient is folded into the momentum and freed as soon as backward has made it, so that the gradient of one
    parameter is alive at a time; `.grad` is None afterwards. `step` flips in real time; `accumulate` ends a time step
    without a flip, and one `step` at the end of the sequence flips. A `.grad` that was set by hand is used as well.

    Attributes:
        label: What reports call the rule; by default the name of its class.
        flip_counts: After each `step`, how many weights of each parameter flipped, in their order.
    """

    label: ClassVar[str] = ""
    _momentum_bits = 32

    def __init__(self, params: Any, defaults: dict[str, Any], *, momentum_bits: int = 32) -> None:
        if type(self).rule is FlipOptimizer.rule:
            raise UserError(f"{type(self).__name__} has no flip rule; override `rule`, as in examples/own_rule.py.")
        if "one_minus_beta1" not in defaults:
            raise UserError(
                f"{type(self).__name__}: received the settings {', '.join(defaults) or 'none'}; expected "
                "one_minus_beta1, the rate of the momentum, among them."
            )
        defaults = {**defaults, "initial_momentum": defaults.get("initial_momentum", 0.0)}
        _check_numbers(defaults)
        if momentum_bits not in (8, 32):
            raise UserError(f"momentum_bits: received {momentum_bits!r}; expected 32, or 8 for less memory.")
        self._momentum_bits = momentum_bits
        if isinstance(params, Tensor):
            raise UserError(f"{type(self).__name__}: received one parameter; expected a list of them, [parameter].")
        params = list(params)
        if not params:
            raise UserError(
                f"{type(self).__name__}: received no parameters; expected binary ones, as in "
                "binary, real = bsnn.split_parameters(net)."
            )
        self._start_sequence()
        self._reduce: Callable[[Tensor], object] = lambda gradient: None
        super().__init__(params, defaults)

    def _start_sequence(self) -> None:
        self._accumulated: set[BinaryParameter] = set()
        self._accumulated_times: set[int] = set()
        self._flips: dict[BinaryParameter, Tensor] = {}
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        # Mean squares of the gradients that are in the momentum and wait for their time step to end.
        self._folded: dict[BinaryParameter, Tensor] = {}
        self._refused: BinaryParameter | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Where torch ends loading, copying and unpickling; none of them goes on in the middle of a sequence.
        super().__setstate__(state)
        self._start_sequence()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with settings of their own; refuses any that are not binary."""
        param_group = dict(param_group)
        for name, rates in _RATES.items():
            if name in param_group and rates[-1] in self.defaults:
                betas = param_group.pop(name)
                betas = (betas,) if name == "beta" else tuple(betas)
                check_betas(*betas)
                param_group |= {rate: 1 - beta for rate, beta in zip(rates, betas, strict=True)}
        unknown = param_group.keys() - self.defaults.keys() - {"params", "param_names"}
        if unknown:
            raise UserError(
                f"{type(self).__name__}: received the setting {', '.join(sorted(unknown))}; expected some of "
                f"{', '.join(self.defaults)}."
            )
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        for parameter in added["params"]:
            if not isinstance(parameter, BinaryParameter):
                self.param_groups.pop()
                raise UserError(
                    f"{type(self).__name__}: received a real-valued parameter of shape "
                    f"{tuple(parameter.shape)}; expected binary parameters only. Split them with "
                    "binary, real = bsnn.split_parameters(net) and give the real ones to torch.optim.SGD."
                )
        _check_numbers(added)
        # Made at once, so that a network that trains for one step is known to fit for all.
        for parameter in added["params"]:
            self.state[parameter] = self.initial_state(parameter)
            parameter.register_post_accumulate_grad_hook(_folding(weakref.ref(self)))

    def reduce_gradients(self, reduce: Callable[[Tensor], object]) -> None:
        """Sets what happens to each gradient, in place, before it is used: a mean over processes, for example."""
        self._reduce = reduce

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of an unfinished time step; those that are in the momentum already stay there."""
        super().zero_grad(set_to_none)
        self._forget_gradients()

    @property
    def flip_counts(self) -> list[int]:
        """Weights that flipped in the last update, parameter by parameter."""
        return [int(self._flips.get(p, 0)) for group in self.param_groups for p in group["params"]]

    @property
    def flip_ratio(self) -> float:
        """Share of all weights that flipped in the last update."""
        total = sum(p.numel() for group in self.param_groups for p in group["params"])
        return sum(self.flip_counts) / total

    @torch.no_grad()
    def accumulate(self, *, t: int | None = None) -> None:
        """Folds the gradients of one time step into the momentum and frees them; no weight flips.

        Over a sequence, M ← β1 M + (1 − β1) Σ G[t], with the momentum itself as the accumulator.

        Raises:
            NotFinite: If a gradient is not finite. The sequence ends there without a flip; that gradient is not in
                the momentum.
        """
        t = self.checked_time(t)
        for group, parameter, square in self._take_gradients():
            self.observe(group, parameter, square, t)
            parameter.grad = None
            self._accumulated.add(parameter)
        if t is not None:
            self._accumulated_times.add(t)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, t: int | None = None) -> Any:
        """Updates the momentum from `.grad` and flips; after `accumulate`, only flips.

        Args:
            closure: Recomputes loss and gradients, as for any optimizer.
            t: Time step of the gradients, from 0.

        Raises:
            NotFinite: If a gradient is not finite; no weight flips then, and that gradient is not in the momentum.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._accumulated:
            self._flip_accumulated(t)
            return loss
        t = self.checked_time(t)
        self._flips = {}
        for group, parameter, square in self._take_gradients():
            self.observe(group, parameter, square, t)
            self._flip(group, parameter, t)
        return loss

    def _flip_accumulated(self, t: int | None) -> None:
        pending = self._folded or any(p.grad is not None for group in self.param_groups for p in group["params"])
        if t is not None or pending:
            raise UserError(
                f"step: received {'gradients that are not' if pending else f't={t} with gradients'} "
                "accumulated; expected, after accumulate(t=t) for every time step, a plain step()."
            )
        self._flips = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self._accumulated:
                    self._flip(group, parameter, None)
        self._accumulated.clear()
        self._accumulated_times.clear()

    def _fold_at_once(self, parameter: BinaryParameter) -> None:
        """Takes a gradient that backward has just made."""
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            raise UserError("two flip optimizers hold the same parameter; expected one. Delete the one before.")
        if parameter in self._folded:
            raise UserError(
                "backward: the gradients of the backward pass before are in the momentum already; expected step() or "
                "accumulate() after each backward pass. Add up the losses, or set .grad yourself."
            )
        self._reduce(gradient)
        square = mean_square(gradient)
        if self._refused is None and not square.isfinite():
            self._refused = parameter
        if self._refused is None:
            group = next(g for g in self.param_groups if any(p is parameter for p in g["params"]))
            self._fold(group, parameter, gradient)
        self._folded[parameter] = square

    def _take_gradients(self) -> list[tuple[dict[str, Any], BinaryParameter, Tensor]]:
        """Every parameter that has a gradient, which is in the momentum then, with its mean square."""
        everything = [(g, p) for g in self.param_groups for p in g["params"]]
        squares = {p: mean_square(p.grad) for _, p in everything if p.grad is not None}
        refused = [p for p, square in squares.items() if not square.isfinite()]
        if self._refused is not None or refused:
            parameter = refused[0] if self._refused is None else self._refused
            self._start_sequence()
            raise NotFinite(
                f"{type(self).__name__}: the gradient of a binary parameter of shape {tuple(parameter.shape)} holds "
                "NaN or infinite values; expected finite ones. No weight was flipped, and it is not in the momentum. "
                "Look for a loss that overflows or for bad inputs, then call zero_grad()."
            )
        for group, parameter in everything:
            if parameter.grad is not None:
                self._fold(group, parameter, parameter.grad)
        squares |= self._folded
        self._folded = {}
        return [(group, p, squares[p]) for group, p in everything if p in squares]

    def momentum(self, parameter: BinaryParameter) -> Tensor:
        """M of a parameter as an ordinary tensor of its shape, whatever it is stored in."""
        return dense(self.state[parameter], parameter.shape)

    @torch.no_grad()
    def set_momentum(self, parameter: BinaryParameter, momentum: Tensor) -> None:
        """Sets M of a parameter from an ordinary tensor of its shape."""
        flat = momentum.reshape(-1)
        self._change_momentum(parameter, lambda piece, place: piece.copy_(flat[place]))

    def _change_momentum(self, parameter: BinaryParameter, change: Callable[[Tensor, slice], object]) -> None:
        change_pieces(self.state[parameter], parameter, change, lambda: self._next_seed(parameter))

    def _next_seed(self, parameter: BinaryParameter) -> int:
        """A seed for each rounding of each parameter, so that a resumed run rounds as an unbroken one."""
        everything = [p for group in self.param_groups for p in group["params"]]
        index = next(i for i, p in enumerate(everything) if p is parameter)
        self.state[parameter]["roundings"] += 1
        return (index * 0x9E3779B1 + int(self.state[parameter]["roundings"])) % 2**32

    def _fold(self, group: dict[str, Any], parameter: BinaryParameter, gradient: Tensor) -> None:
        # A momentum of zeros moves to −δ·W only now that it is known which weights to hold on to.
        if group["initial_momentum"] and not self.state[parameter]["momentum"].any():
            self.set_momentum(parameter, signs(parameter) * -group["initial_momentum"])
        rate, adding, flat = group["one_minus_beta1"], parameter in self._accumulated, gradient.reshape(-1)

        def change(momentum: Tensor, place: slice) -> None:
            part = flat[place].to(momentum.dtype)
            _ = momentum.add_(part, alpha=rate) if adding else momentum.lerp_(part, rate)

        self._change_momentum(parameter, change)

    def _flip(self, group: dict[str, Any], parameter: BinaryParameter, t: int | None) -> None:
        rule = self.rule(group, parameter, t)
        count = torch.zeros((), dtype=torch.int64, device=parameter.device)
        for place, momentum in read_pieces(self.state[parameter], parameter.numel()):
            packed = parameter.bits[place.start // 8 : math.ceil(place.stop / 8)]
            flips = rule(unpack(packed, len(momentum), momentum.dtype), momentum)
            parameter.flip_(flips, place.start)
            count += flips.count_nonzero()
        self._flips[parameter] = count

    # What a rule overrides; only `rule` has to be.

    def initial_state(self, parameter: BinaryParameter) -> dict[str, Tensor]:
        """What is kept for a parameter: the momentum, and whatever else a rule adds to it."""
        return stored_zeros(parameter, self._momentum_bits)

    def observe(self, group: dict[str, Any], parameter: BinaryParameter, mean_square: Tensor, t: int | None) -> None:
        """Takes note of the mean square of a gradient of time step `t`."""

    def rule(self, group: dict[str, Any], parameter: BinaryParameter, t: int | None) -> FlipRule:
        """Which weights flip, as a function of signs and momentum.

        Args:
            group: The settings, such as `gamma`.
            parameter: Whose weights they are.
            t: The time step; None after `accumulate`.
        """
        raise NotImplementedError

    def checked_time(self, t: int | None) -> int | None:
        """The time step, if the rule can use it."""
        return t

    def state_dict(self) -> dict[str, Any]:
        """Settings, momentum and second moments; see `torch.optim.Optimizer.state_dict`."""
        if self._accumulated or self._folded:
            raise UserError(
                "state_dict: gradients of an unfinished sequence are in the momentum; expected none. Call step() first."
            )
        return super().state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes from `state_dict`, bit for bit; refuses one of other shapes or another `time_steps`."""
        saved = [
            (saved_group, index, group, parameter)
            for saved_group, group in zip(state_dict["param_groups"], self.param_groups, strict=False)
            for index, parameter in zip(saved_group["params"], group["params"], strict=False)
        ]
        for saved_group, index, group, parameter in saved:
            self._check_saved(saved_group, state_dict["state"].get(index, {}), group, parameter)
            self.check_settings(saved_group)
        super().load_state_dict(state_dict)
        # torch has cast the state to the parameters' type: take it again as it was saved.
        for _, index, _, parameter in saved:
            for name, value in state_dict["state"].get(index, {}).items():
                device = value.device if name == "roundings" else parameter.device
                self.state[parameter][name] = value.detach().clone().to(device)

    def check_settings(self, saved_group: dict[str, Any]) -> None:
        """Refuses saved settings of a parameter group that this optimizer cannot go on with."""

    def _check_saved(
        self, saved_group: dict[str, Any], saved: dict[str, Any], group: dict[str, Any], parameter: BinaryParameter
    ) -> None:
        settings = (group.keys() ^ saved_group.keys()) - {"param_names"}
        tensors = saved.keys() ^ self.state[parameter].keys()
        if settings or tensors:
            raise UserError(
                f"load_state_dict: the state differs in {', '.join(sorted(settings | tensors))}; expected one saved by "
                f"{type(self).__name__}."
            )
        if saved["momentum"].shape != self.state[parameter]["momentum"].shape:
            raise UserError(
                f"load_state_dict: received momentum of shape {tuple(saved['momentum'].shape)} for weights of "
                f"shape {tuple(parameter.shape)}; expected the same network."
            )


def _folding(optimizer: "weakref.ref[FlipOptimizer]") -> Callable[[Any], None]:
    """A hook that hands a parameter's gradient to its optimizer, as long as that lives."""

    @torch.no_grad()
    def hook(parameter: Any) -> None:
        owner = optimizer()
        if owner is not None:
            owner._fold_at_once(parameter)

    return hook


def _check_numbers(settings: dict[str, Any]) -> None:
    for name in ("gamma", "eps", "initial_momentum"):
        if not settings.get(name, 0.0) >= 0 or math.isinf(settings.get(name, 0.0)):
            raise UserError(f"{name}: received {settings[name]}; expected a finite number that is not negative.")
    for name in ("one_minus_beta1", "one_minus_beta2"):
        if not 0 <= settings.get(name, 0.0) <= 1:
            raise UserError(f"{name}: received {settings[name]}; expected a number from 0 to 1.")


def check_betas(*betas: float) -> None:
    """Refuses decays outside of [0, 1)."""
    if any(not 0 <= beta < 1 for beta in betas):
        raise UserError(f"beta: received {betas}; expected decays from 0 to just under 1, such as 0.999.")
