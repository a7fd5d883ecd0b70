"""Train binary spiking networks in constant memory and deploy them in a megabyte.

Public names load on first use, so that what needs no torch does not import it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bso.errors import UserError

if TYPE_CHECKING:
    from bso import data, models, optim, surrogate
    from bso.bits import BinaryModule, BinaryParameter, signs, split_parameters
    from bso.bptt import bptt_update
    from bso.convert import export
    from bso.engine import Engine, digits_model, load
    from bso.evaluation import counting_spikes, evaluate, over_time, predict
    from bso.layers import BinaryConv2d, BinaryLinear, TracedConv2d, TracedLinear
    from bso.ledger import assert_memory_constant, predict_memory
    from bso.loss import step_loss
    from bso.network import Concat, ImageNetwork, Residual, Sequential
    from bso.neuron import LIF, LIFState, Stateful, lif_step, map_state
    from bso.norm import BatchNorm1d, BatchNorm2d, estimating_statistics
    from bso.online import Moment, online_update, stream_update
    from bso.size import model_size
    from bso.trace import BPTT, NDOT, OTTT, SLTT, Activity, GradientRule

__version__ = "0.1.0"

_HOME = {
    "bso.bits": ("BinaryModule", "BinaryParameter", "signs", "split_parameters"),
    "bso.bptt": ("bptt_update",),
    "bso.convert": ("export",),
    "bso.engine": ("Engine", "digits_model", "load"),
    "bso.evaluation": ("counting_spikes", "evaluate", "over_time", "predict"),
    "bso.layers": ("BinaryConv2d", "BinaryLinear", "TracedConv2d", "TracedLinear"),
    "bso.ledger": ("assert_memory_constant", "predict_memory"),
    "bso.loss": ("step_loss",),
    "bso.network": ("Concat", "ImageNetwork", "Residual", "Sequential"),
    "bso.neuron": ("LIF", "LIFState", "Stateful", "lif_step", "map_state"),
    "bso.norm": ("BatchNorm1d", "BatchNorm2d", "estimating_statistics"),
    "bso.online": ("Moment", "online_update", "stream_update"),
    "bso.size": ("model_size",),
    "bso.trace": ("BPTT", "NDOT", "OTTT", "SLTT", "Activity", "GradientRule"),
}
_LAZY = {name: module for module, names in _HOME.items() for name in names}
_MODULES = ("data", "models", "optim", "surrogate")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bso.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'bso' has no attribute {name!r}")


__all__ = [
    "BPTT",
    "LIF",
    "NDOT",
    "OTTT",
    "SLTT",
    "Activity",
    "BatchNorm1d",
    "BatchNorm2d",
    "BinaryConv2d",
    "BinaryLinear",
    "BinaryModule",
    "BinaryParameter",
    "Concat",
    "Engine",
    "GradientRule",
    "ImageNetwork",
    "LIFState",
    "Moment",
    "Residual",
    "Sequential",
    "Stateful",
    "TracedConv2d",
    "TracedLinear",
    "UserError",
    "__version__",
    "assert_memory_constant",
    "bptt_update",
    "counting_spikes",
    "data",
    "digits_model",
    "estimating_statistics",
    "evaluate",
    "export",
    "lif_step",
    "load",
    "map_state",
    "model_size",
    "models",
    "online_update",
    "optim",
    "over_time",
    "predict",
    "predict_memory",
    "signs",
    "split_parameters",
    "step_loss",
    "stream_update",
    "surrogate",
]
