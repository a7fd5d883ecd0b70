"""T-BSO (paper, Section 4.3): a flip threshold for each time step.

    v[t] ← β2 v[t] + (1 − β2) mean(G²[t])                                Eq. 13, one number per layer and time step
    W    ← −sign(W ⊙ M − γ sqrt(v[t] + ε)) ⊙ W                           Eq. 14

Legend: W signs, M momentum, v second moment, G gradient, γ gamma.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bsnn.errors import UserError
from bsnn.kernels.operations import FlipThreshold
from bsnn.kernels.pieces import is_whole, widest
from bsnn.kernels.torch_internals import lerp_together
from bsnn.nn.bits import BinaryParameter
from bsnn.optim._gradients import Given
from bsnn.optim.base import FlipOptimizer, FlipRule, ThresholdRule
from bsnn.optim.momentum import moved
from bsnn.optim.settings import check_betas


def tbso_flips(signs: Tensor, momentum: Tensor, second_moment: Tensor, gamma: float, eps: float) -> Tensor:
    """T-BSO's rule (Eq. 14): which weights flip at a time step with second moment v[t].

    Example:
        >>> v = torch.tensor(0.25)
        >>> tbso_flips(torch.tensor([1.0, 1.0]), torch.tensor([0.3, 0.1]), v, gamma=0.4, eps=0.0)
        tensor([ True, False])
    """
    return signs * momentum > gamma * torch.sqrt(second_moment + eps)


def _check_time_steps(time_steps: Any) -> None:
    if not isinstance(time_steps, int) or isinstance(time_steps, bool) or time_steps < 1:
        raise UserError(f"TBSO: received time_steps={time_steps!r}; expected a whole number T ≥ 1.")


def tbso_rule(second_moment: Tensor, gamma: float, eps: float) -> ThresholdRule:
    """The same as what an optimizer returns, for one number v."""
    flips = partial(tbso_flips, second_moment=second_moment, gamma=gamma, eps=eps)
    return ThresholdRule(flips, FlipThreshold(gamma, second_moment, eps))


class TBSO(FlipOptimizer):
    """Temporal-aware BSO: flips where W·M > γ sqrt(v[t] + ε), a threshold of its own for each time step.

    Accumulated over a sequence, each v[t] is updated from its G[t] and the one flip at the end uses their mean.

    Args:
        params: Binary parameters, or groups of them.
        gamma: γ, in units of the gradient's root mean square.
        betas: Decays of momentum and second moments.
        eps: ε, inside the root.
        time_steps: T; `step` takes t = 0 … T−1.
        bias_correction: Divide v, which begins at 0, by the share of it that is filled. γ is then in units of the
            gradient's root mean square from the first update on; at the paper's β2 it is not for 100,000 of them.
        initial_momentum: δ: the momentum begins at −δ·W; see `BSO`.
        momentum_bits: 32, or 8 for a quarter of the memory; see `bsnn.optim.momentum`.

    Example:
        >>> layer = bsnn.BinaryLinear(8, 4)
        >>> flip = TBSO([layer.weight], time_steps=2)
        >>> for t in range(2):
        ...     layer(torch.ones(2, 8)).sum().backward()
        ...     flip.step(t=t)
        ...     flip.zero_grad()
        >>> bsnn.signs(layer.weight).unique()
        tensor([-1.])
    """

    label = "T-BSO"
    elementwise = True
    defers = True
    _bias_correction = False

    def __init__(
        self,
        params: Any,
        gamma: float = 5e-7,
        betas: tuple[float, float] = (0.999, 0.99999),
        eps: float = 1e-20,
        *,
        time_steps: int,
        bias_correction: bool = False,
        initial_momentum: float = 0.0,
        momentum_bits: int = 32,
    ) -> None:
        beta1, beta2 = check_betas("betas", betas, 2)
        _check_time_steps(time_steps)
        self._bias_correction = bias_correction
        super().__init__(
            params,
            dict(
                gamma=gamma,
                one_minus_beta1=1 - beta1,
                one_minus_beta2=1 - beta2,
                eps=eps,
                time_steps=time_steps,
                initial_momentum=initial_momentum,
            ),
            momentum_bits=momentum_bits,
        )

    @property
    def time_steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """T, the number of thresholds of each parameter."""
        return self.defaults["time_steps"]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with settings of their own; all groups share one `time_steps`."""
        if param_group.get("time_steps", self.time_steps) != self.time_steps:
            raise UserError(
                f"TBSO: received a group with time_steps={param_group['time_steps']}; expected {self.time_steps}, as "
                "for the whole optimizer."
            )
        super().add_param_group(param_group)

    def initial_state(self, parameter: BinaryParameter) -> dict[str, Tensor]:
        """See `FlipOptimizer.initial_state`."""
        moments = torch.zeros(self.time_steps, dtype=widest(parameter.device), device=parameter.device)
        state = {**super().initial_state(parameter), "second_moment": moments}
        return {**state, "filled": torch.zeros_like(moments)} if self._bias_correction else state

    def _moments(self, parameter: BinaryParameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        names = [name for name in ("second_moment", "filled") if name in state]
        state.update((name, moved(state[name], parameter)) for name in names)
        return {name: state[name] for name in names}

    def second_moment(self, parameter: BinaryParameter) -> Tensor:
        """What the thresholds take for v, of each time step."""
        moments = self._moments(parameter)
        return moments["second_moment"] / moments["filled"] if "filled" in moments else moments["second_moment"]

    def observe(self, group: dict[str, Any], parameter: BinaryParameter, mean_square: Tensor, t: int | None) -> None:
        """See `FlipOptimizer.observe`."""
        assert t is not None
        moments = self._moments(parameter)
        rate = self.accepted_rate(group["one_minus_beta2"], mean_square)
        moments["second_moment"][t].lerp_(mean_square, rate)
        if "filled" in moments:
            moments["filled"][t] += rate * (1 - moments["filled"][t])

    def observe_all(self, taken: list[Given], t: int | None) -> None:
        """See `FlipOptimizer.observe_all`; on a GPU, all parameters of a group take one launch."""
        alike: dict[tuple[float, torch.device], list[tuple[BinaryParameter, Tensor]]] = {}
        own = type(self).observe is not TBSO.observe or self._bias_correction or not self.defers
        for group, parameter, mean_square in taken:
            if own or not is_whole(mean_square):
                self.observe(group, parameter, mean_square, t)
            else:
                alike.setdefault((group["one_minus_beta2"], mean_square.device), []).append((parameter, mean_square))
        for (rate, _), entries in alike.items():
            assert t is not None
            squares = [square for _, square in entries]
            moments = [self._moments(parameter)["second_moment"][t] for parameter, _ in entries]
            accepted = self.accepted_rate(rate, squares[0])
            assert isinstance(accepted, Tensor)
            lerp_together(moments, squares, accepted)

    def rule(self, group: dict[str, Any], parameter: BinaryParameter, t: int | None) -> FlipRule:
        """See `FlipOptimizer.rule`."""
        moments = self.second_moment(parameter)
        moment = moments[sorted(self._accumulated_times)].mean() if t is None else moments[t]
        return tbso_rule(moment, group["gamma"], group["eps"])

    def checked_time(self, t: int | None) -> int:
        """The time step; refuses one that has no threshold."""
        whole = hasattr(t, "__index__") and not isinstance(t, bool)
        if t is None or not whole or not 0 <= t < self.time_steps:
            raise UserError(
                f"TBSO: received t={t}; expected the time step of the gradients, 0 to {self.time_steps - 1}, "
                "as in flip.step(t=t). Its thresholds differ by time step (time_steps sets how many)."
            )
        return int(t)

    @torch.no_grad()
    def change_time_steps(self, time_steps: int) -> None:
        """Goes on with another number of time steps; the momentum stays as it is.

        Each v[t] stays with its time step, and new time steps begin with the last v there was. As the loss of a time
        step is divided by T, so are its gradients: every v is multiplied by (old T / new T)², since by itself it would
        take 1/(1 − β2) updates to follow.

        Args:
            time_steps: The new T.

        Example:
            >>> flip = TBSO([bsnn.BinaryLinear(8, 4).weight], time_steps=1)
            >>> flip.change_time_steps(4)
            >>> flip.time_steps
            4
        """
        _check_time_steps(time_steps)
        self._check_finished("change_time_steps")
        ratio = self.time_steps / time_steps
        kept = [min(t, self.time_steps - 1) for t in range(time_steps)]
        for _, parameter in self._everything():
            moments = {name: moment[kept] for name, moment in self._moments(parameter).items()}
            moments["second_moment"] *= ratio**2
            self.state[parameter].update(moments)
        self.defaults["time_steps"] = time_steps
        # Groups refuse this change from anywhere else.
        for group in self.param_groups:
            dict.update(group, time_steps=time_steps)

    def check_settings(self, saved_group: dict[str, Any]) -> None:
        """See `FlipOptimizer.check_settings`."""
        if saved_group["time_steps"] != self.time_steps:
            raise UserError(
                f"load_state_dict: the state was saved with time_steps={saved_group['time_steps']}; this "
                f"optimizer has time_steps={self.time_steps}. Build it with the saved number, or start afresh."
            )
