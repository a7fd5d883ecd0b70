"""Stand-ins for the classes of SpikingJelly and snnTorch that conversions know: their names, options and formulas.

If the packages are installed, the tests take the real classes (`benchmarks/migration.py` always does).
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class _Arctan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strict: bool) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(x)
        return (x > 0).float() if strict else (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore
        (x,) = ctx.saved_tensors
        return grad / (1 + (torch.pi * x) ** 2), None


class ATan(nn.Module):
    spiking, alpha = True, 2.0

    def forward(self, x: Tensor) -> Tensor:
        return _Arctan.apply(x, False)  # pyright: ignore


class IFNode(nn.Module):
    def __init__(
        self, v_threshold: float = 1.0, v_reset: float | None = 0.0, surrogate_function: Any = None,
        detach_reset: bool = False, step_mode: str = "s",
    ) -> None:  # fmt: skip
        super().__init__()
        self.v_threshold, self.v_reset, self.detach_reset = v_threshold, v_reset, detach_reset
        self.surrogate_function, self.step_mode = surrogate_function or ATan(), step_mode
        self.reset()

    def reset(self) -> None:
        self.v: Any = self.v_reset or 0.0

    def charge(self, x: Tensor) -> Tensor:
        return self.v + x

    def forward(self, x: Tensor) -> Tensor:
        if self.step_mode == "m":
            self.step_mode = "s"
            made = torch.stack([self(frame) for frame in x])
            self.step_mode = "m"
            return made
        potential = self.charge(x)
        spikes = self.surrogate_function(potential - self.v_threshold)
        reset = spikes.detach() if self.detach_reset else spikes
        if self.v_reset is None:
            self.v = potential - reset * self.v_threshold
        else:
            self.v = (1 - reset) * potential + reset * self.v_reset
        return spikes


class LIFNode(IFNode):
    def __init__(self, tau: float = 2.0, decay_input: bool = True, **options: Any) -> None:
        self.tau, self.decay_input = tau, decay_input  # before the modules
        super().__init__(**options)
        self.tau, self.decay_input = tau, decay_input

    def charge(self, x: Tensor) -> Tensor:
        rest = self.v_reset or 0.0
        if self.decay_input:
            return self.v + (x - (self.v - rest)) / self.tau
        return self.v - (self.v - rest) / self.tau + x


class ParametricLIFNode(LIFNode):
    """Refused by its name."""


class Dropout(nn.Dropout):
    """Refused by its name."""


class Conv2d(nn.Conv2d):
    def __init__(self, *args: Any, step_mode: str = "s", **options: Any) -> None:
        super().__init__(*args, **options)
        self._step_mode = step_mode


class BatchNorm2d(nn.BatchNorm2d):
    pass


class SeqToANNContainer(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Leaky(nn.Module):
    def __init__(
        self, beta: Any, threshold: float = 1.0, spike_grad: Any = None, init_hidden: bool = False,
        inhibition: bool = False, learn_beta: bool = False, learn_threshold: bool = False,
        reset_mechanism: str = "subtract", state_quant: Any = False, output: bool = False,
        graded_spikes_factor: float = 1.0, reset_delay: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value, learned in (("beta", beta, learn_beta), ("threshold", threshold, learn_threshold)):
            tensor = torch.as_tensor(value)
            self.register_parameter(name, nn.Parameter(tensor)) if learned else self.register_buffer(name, tensor)
        self.spike_grad = spike_grad or (lambda x: _Arctan.apply(x, True))
        self.init_hidden, self.output, self.inhibition = init_hidden, output, inhibition
        self.reset_mechanism, self.state_quant, self.reset_delay = reset_mechanism, state_quant, reset_delay
        self.register_buffer("graded_spikes_factor", torch.as_tensor(graded_spikes_factor))
        self.register_buffer("mem", torch.zeros(0), False)

    def forward(self, x: Tensor, mem: Tensor | None = None) -> Any:
        self.mem: Any = self.mem if mem is None else mem
        if self.mem.shape != x.shape:
            self.mem = torch.zeros_like(x)
        reset = self.spike_grad(self.mem - self.threshold).detach()
        if self.reset_mechanism == "zero":
            self.mem = (1 - reset) * self.mem
        self.mem = self.beta.clamp(0, 1) * self.mem + x  # pyright: ignore
        if self.reset_mechanism == "subtract":
            self.mem = self.mem - reset * self.threshold
        spikes = self.spike_grad(self.mem - self.threshold) * self.graded_spikes_factor
        if not self.reset_delay:
            self.mem = self.mem - (spikes - reset) * (self.mem if self.reset_mechanism == "zero" else self.threshold)
        return spikes if self.init_hidden and not self.output else (spikes, self.mem)


class Synaptic(Leaky):
    """Refused by its name."""


def _installed(name: str, package: str, *stand_ins: type) -> Any:
    """A namespace of the real classes or, without the package, of stand-ins that pretend to live in it."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        for kind in stand_ins:
            kind.__module__ = package
        return SimpleNamespace(**{kind.__name__: kind for kind in stand_ins})


_home = "spikingjelly.activation_based"
neuron = _installed(f"{_home}.neuron", f"{_home}.neuron.lif", IFNode, LIFNode, ParametricLIFNode)
layer = _installed(f"{_home}.layer", f"{_home}.layer", Dropout, Conv2d, BatchNorm2d, SeqToANNContainer)
snntorch = _installed("snntorch", "snntorch._neurons.leaky", Leaky, Synaptic)
