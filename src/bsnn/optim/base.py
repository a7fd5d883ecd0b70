"""What all flip optimizers share: the momentum, the flips, and the checks (paper, Sections 4.2 and 4.3, Algorithm 1).

    M ← β1 M + (1 − β1) G[t]                                             Eq. 11, 13

The momentum may be stored in eight bits per weight (momentum.py). Gradients come from `.grad`, or, within `folding`,
straight from the backward pass.

Legend: M momentum, G gradient.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from bsnn.errors import UserError
from bsnn.kernels import operations, together
from bsnn.kernels.pieces import is_whole, widest
from bsnn.kernels.torch_internals import num_writes
from bsnn.nn.bits import BinaryParameter, signs, unpack
from bsnn.nn.claims import claim, is_elementwise
from bsnn.optim._gradients import Given, GradientOptimizer
from bsnn.optim.momentum import ON_CPU, change_pieces, dense, move, read_pieces, stored_shape, stored_zeros
from bsnn.optim.settings import Settings, check_numbers, with_rates

FlipRule = Callable[[Tensor, Tensor], Tensor]


class ThresholdRule(NamedTuple):
    """A flip rule that compares W·M with one number, so that backends can compute it too."""

    flips: FlipRule
    threshold: operations.FlipThreshold

    def __call__(self, signs: Tensor, momentum: Tensor) -> Tensor:
        """See `FlipOptimizer.rule`."""
        return self.flips(signs, momentum)


class FlipOptimizer(GradientOptimizer):
    """What all flip optimizers share: momentum, flips, checks. To add a rule, subclass it and override `rule`.

    It follows torch's conventions. `backward` fills `.grad` and touches no optimizer; several backward passes add up,
    and `zero_grad` discards. Between `backward` and `step`, gradients can be clipped, scaled or logged. `step` takes
    `.grad` into the momentum, flips, and leaves `.grad` as it is; `accumulate` takes it without a flip and sets it to
    None, and one `step` at the end of the sequence flips. Within `bsnn.optim.folding`, backward hands each gradient to
    the momentum at once, so that the gradient of one parameter is alive at a time.

    The same gradients give the same flips, bit for bit, on any device that computes them alike; no step draws random
    numbers but the rounding of an 8-bit momentum, whose seeds are part of the state.

    Attributes:
        label: What reports call the rule; by default the name of its class.
        elementwise: Whether the rule's function decides about each weight by itself, so that it may be given flat
            pieces of a parameter, which takes less memory. A subclass with methods of its own says so itself.
        time_steps: How many time steps the rule tells apart; None if any number.
        flip_counts: After each `step`, how many weights of each parameter flipped, in their order.
    """

    label: ClassVar[str] = ""
    elementwise: ClassVar[bool] = False
    time_steps: int | None = None
    _momentum_bits = 32

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Decided now, because torch adds a method to the first class of which there is an object.
        cls.elementwise = claim(cls, "elementwise") is True
        cls.defers = claim(cls, "defers") is True

    def __init__(self, params: Any, defaults: dict[str, Any], *, momentum_bits: int = 32) -> None:
        if type(self).rule is FlipOptimizer.rule:
            raise UserError(f"{type(self).__name__} has no flip rule; override `rule`, as in examples/own_rule.py.")
        if "one_minus_beta1" not in defaults:
            raise UserError(
                f"{type(self).__name__}: received the settings {', '.join(defaults) or 'none'}; expected "
                "one_minus_beta1, the rate of the momentum, among them."
            )
        defaults = {**defaults, "initial_momentum": defaults.get("initial_momentum", 0.0)}
        check_numbers(defaults)
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
        self._flips: dict[BinaryParameter, Tensor] = {}
        self._start_sequence()
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Where torch ends loading, copying and unpickling; none of them goes on in the middle of a sequence.
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds it here, and then to every new group
        self.param_groups = [Settings(type(self).__name__, group) for group in self.param_groups]
        self._start_sequence()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with settings of their own; refuses any that are not binary."""
        param_group = with_rates(param_group, self.defaults)
        unknown = param_group.keys() - self.defaults.keys() - {"params", "param_names"}
        if unknown:
            raise UserError(
                f"{type(self).__name__}: received the setting {', '.join(sorted(unknown))}; expected some of "
                f"{', '.join(self.defaults)}."
            )
        super().add_param_group(param_group)
        added = self.param_groups.pop()
        for parameter in added["params"]:
            if not isinstance(parameter, BinaryParameter):
                raise UserError(
                    f"{type(self).__name__}: received a real-valued parameter of shape "
                    f"{tuple(parameter.shape)}; expected binary parameters only. Split them with "
                    "binary, real = bsnn.split_parameters(net) and give the real ones to torch.optim.SGD."
                )
        check_numbers(added)
        self.param_groups.append(Settings(type(self).__name__, added))
        # Made at once, so that a network that trains for one step is known to fit for all.
        for parameter in added["params"]:
            self.state[parameter] = self.initial_state(parameter)

    @property
    def flip_counts(self) -> list[int]:
        """Weights that flipped in the last update, parameter by parameter; on a GPU, asking waits for it."""
        self.check_refused()
        return [int(self.flipped(parameter)) for _, parameter in self._everything()]

    def flipped(self, parameter: BinaryParameter) -> Tensor | int:
        """How many weights of a parameter flipped in the last update, as a number on its device, without a wait."""
        return self._flips.get(parameter, 0)

    @property
    def flip_ratio(self) -> float:
        """Share of all weights that flipped in the last update."""
        total = sum(p.numel() for _, p in self._everything())
        return sum(self.flip_counts) / total

    @torch.no_grad()
    def accumulate(self, *, t: int | None = None) -> None:
        """Takes the gradients of one time step into the momentum and sets `.grad` to None; no weight flips.

        Over a sequence, M ← β1 M + (1 − β1) Σ G[t], with the momentum itself as the accumulator.

        Raises:
            NotFinite: If a gradient is not finite. The sequence ends there without a flip; that gradient is not in
                the momentum.
        """
        t = self.checked_time(t)
        taken = self._take_gradients()
        self.observe_all(taken, t)
        for _, parameter, _ in taken:
            parameter.grad = None
            self._accumulated.add(parameter)
        if t is not None:
            self._accumulated_times.add(t)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, t: int | None = None) -> Any:
        """Updates the momentum from `.grad`, which stays as it is, and flips; after `accumulate`, only flips.

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
        taken = self._take_gradients()
        # One parameter after another, unless the rule is known to treat each by itself.
        for part in [taken] if self.defers else [[entry] for entry in taken]:
            self.observe_all(part, t)
            self._flip([(group, parameter) for group, parameter, _ in part], t)
        return loss

    def _flip_accumulated(self, t: int | None) -> None:
        pending = self._folded or any(p.grad is not None for _, p in self._everything())
        if t is not None or pending:
            raise UserError(
                f"step: received {'gradients that are not' if pending else f't={t} with gradients'} "
                "accumulated; expected, after accumulate(t=t) for every time step, a plain step()."
            )
        self._flips = {}
        self._flip([entry for entry in self._everything() if entry[1] in self._accumulated], None)
        self._accumulated.clear()
        self._accumulated_times.clear()

    def momentum(self, parameter: BinaryParameter) -> Tensor:
        """M of a parameter as an ordinary tensor of its shape, whatever it is stored in."""
        return dense(self.state[parameter], parameter.shape)

    @torch.no_grad()
    def set_momentum(self, parameter: BinaryParameter, momentum: Tensor) -> None:
        """Sets M of a parameter from an ordinary tensor of its shape."""
        if momentum.shape != parameter.shape:
            raise UserError(
                f"set_momentum: received shape {tuple(momentum.shape)}; expected {tuple(parameter.shape)}, one number "
                "per weight."
            )
        flat = momentum.reshape(-1)
        self._change_momentum(parameter, lambda piece, place: piece.copy_(flat[place]))

    def _change_momentum(self, parameter: BinaryParameter, change: Callable[[Tensor, slice], object]) -> None:
        change_pieces(self.state[parameter], parameter, change, lambda: self._next_seed(parameter))

    def _next_seed(self, parameter: BinaryParameter) -> int:
        """A seed for each rounding of each parameter, so that a resumed run rounds as an unbroken one."""
        index = next(i for i, (_, p) in enumerate(self._everything()) if p is parameter)
        self.state[parameter]["roundings"] += 1
        return (index * 0x9E3779B1 + int(self.state[parameter]["roundings"])) % 2**32

    def _fold(self, group: dict[str, Any], parameter: BinaryParameter, gradient: Tensor) -> None:
        # A momentum of zeros moves to −δ·W only now that it is known which weights to hold on to.
        if group["initial_momentum"] and not self.state[parameter]["momentum"].any():
            self.set_momentum(parameter, signs(parameter) * -group["initial_momentum"])
        rate, adding, flat = group["one_minus_beta1"], parameter in self._accumulated, gradient.reshape(-1)
        stored, refusal = self.state[parameter], self.refusal(gradient.device)
        move(stored, parameter)
        if operations.fold(flat, stored, refusal, rate, adding, lambda: self._next_seed(parameter)):
            return

        def change(momentum: Tensor, place: slice) -> None:
            part = flat[place].to(momentum.dtype)
            part = self.accepted(part, torch.zeros_like(part) if adding else momentum)
            _ = momentum.add_(part, alpha=rate) if adding else momentum.lerp_(part, rate)

        self._change_momentum(parameter, change)

    def _flip(self, chosen: list[tuple[dict[str, Any], BinaryParameter]], t: int | None) -> None:
        rules = {parameter: self.rule(group, parameter, t) for group, parameter in chosen}
        known = {p: rule.threshold for p, rule in rules.items() if isinstance(rule, ThresholdRule)}
        for device in dict.fromkeys(parameter.device for parameter in known):
            here = [parameter for parameter in known if parameter.device == device]
            weights = [operations.Flippable(p.bits, p.numel(), self.state[p], known[p]) for p in here]
            flipped = operations.flip(weights, self.refusal(device))
            if flipped is None and is_whole(weights[0].bits) and self.defers:
                momenta = [dense(self.state[p], p.shape).view(-1) for p in here]
                flipped = together.flip(weights, momenta, self.refusal(device))
            self._flips |= {} if flipped is None else dict(zip(here, flipped, strict=True))
        for parameter, rule in rules.items():
            if parameter not in self._flips:
                self._flips[parameter] = self._flip_by(rule, parameter)

    def _flip_by(self, rule: FlipRule, parameter: BinaryParameter) -> Tensor:
        """Flips the weights of a parameter by a rule's function; returns their number."""
        count = torch.zeros((), dtype=torch.int64, device=parameter.device)
        for start, values, momentum in self._parts(parameter):
            written = num_writes(momentum)
            flips = rule(values, momentum)
            if num_writes(momentum) != written:
                raise UserError(
                    f"{type(self).__name__}: its rule wrote to the momentum that it was given; expected it to be read "
                    "only. Call self.set_momentum(parameter, momentum) before the function is returned."
                )
            if not isinstance(flips, Tensor) or flips.dtype != torch.bool or flips.shape != momentum.shape:
                kind = f"{flips.dtype} of shape {tuple(flips.shape)}" if isinstance(flips, Tensor) else repr(flips)
                raise UserError(
                    f"{type(self).__name__}: its rule returned {kind}; expected torch.bool of shape "
                    f"{tuple(momentum.shape)}, true where a weight flips."
                )
            flips = self.accepted(flips, torch.zeros_like(flips))
            parameter.flip_(flips, start)
            count += flips.count_nonzero()
        return count

    def _parts(self, parameter: BinaryParameter) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Signs and momentum as a rule sees them, and where they begin: flat pieces, or all in their shape."""
        if not is_elementwise(self):
            momentum = self.momentum(parameter)
            yield 0, unpack(parameter.bits, parameter.numel(), momentum.dtype).view(parameter.shape), momentum
            return
        for place, momentum in read_pieces(self.state[parameter], parameter.numel()):
            packed = parameter.bits[place.start // 8 : math.ceil(place.stop / 8)]
            yield place.start, unpack(packed, len(momentum), momentum.dtype), momentum

    # What a rule overrides; only `rule` has to be.

    def initial_state(self, parameter: BinaryParameter) -> dict[str, Any]:
        """What is kept for a parameter: the momentum, and whatever tensors and numbers a rule adds to it."""
        return stored_zeros(parameter, self._momentum_bits)

    def observe(self, group: dict[str, Any], parameter: BinaryParameter, mean_square: Tensor, t: int | None) -> None:
        """Takes note of the mean square of a gradient of time step `t`."""

    def observe_all(self, taken: list[Given], t: int | None) -> None:
        """The same for many parameters, each with its settings and its mean square; by default one after another."""
        for group, parameter, mean_square in taken:
            self.observe(group, parameter, mean_square, t)

    def rule(self, group: dict[str, Any], parameter: BinaryParameter, t: int | None) -> FlipRule:
        """Which weights flip: a function of signs and momentum that returns booleans of their shape.

        The function sees a whole parameter in its shape, unless the class is `elementwise`. It must not write to the
        momentum, which may be a copy.

        Args:
            group: The settings, such as `gamma`.
            parameter: Whose weights they are.
            t: The time step; None after `accumulate`.
        """
        raise NotImplementedError

    def checked_time(self, t: int | None) -> int | None:
        """The time step, if the rule can use it."""
        return t

    def change_time_steps(self, time_steps: int) -> None:
        """Goes on with another number of time steps; only a rule that tells time steps apart has something to do."""
        if self.time_steps is None:
            return
        raise UserError(
            f"{type(self).__name__}: received time_steps={time_steps} for an optimizer of {self.time_steps}; its rule "
            "does not say what becomes of its state. Override change_time_steps, or build another optimizer."
        )

    def state_dict(self) -> dict[str, Any]:
        """Settings, momentum and second moments; see `torch.optim.Optimizer.state_dict`."""
        self._check_finished("state_dict")
        self.check_refused()
        return super().state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes from `state_dict`, bit for bit; refuses one of other shapes or another `time_steps`."""
        if not {"state", "param_groups"} <= state_dict.keys():
            raise UserError(
                f"load_state_dict: received {', '.join(map(str, state_dict)) or 'nothing'}; expected state and "
                f"param_groups, as {type(self).__name__}.state_dict() gives them."
            )
        groups = state_dict["param_groups"]
        received, expected = ([len(group["params"]) for group in given] for given in (groups, self.param_groups))
        if received != expected:
            raise UserError(
                f"load_state_dict: received groups of {received} parameters; expected {expected}, those of this "
                f"{type(self).__name__}."
            )
        saved = [
            (saved_group, index, group, parameter)
            for saved_group, group in zip(groups, self.param_groups, strict=True)
            for index, parameter in zip(saved_group["params"], group["params"], strict=True)
        ]
        for saved_group, index, group, parameter in saved:
            self._check_saved(saved_group, state_dict["state"].get(index, {}), group, parameter)
            self.check_settings(saved_group)
        super().load_state_dict(state_dict)
        # torch has cast the state to the parameters' type: take it again as it was saved.
        for _, index, _, parameter in saved:
            for name, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    device = value.device if name in ON_CPU else parameter.device
                    dtype = widest(device) if value.dtype == torch.float64 else value.dtype
                    value = value.detach().clone().to(device, dtype)
                self.state[parameter][name] = value

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
        check_numbers(saved_group)
        if stored_shape(saved) != tuple(parameter.shape):
            raise UserError(
                f"load_state_dict: received momentum of shape {stored_shape(saved)} for weights of shape "
                f"{tuple(parameter.shape)}; expected the same network."
            )
