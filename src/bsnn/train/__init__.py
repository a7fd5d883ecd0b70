"""Training runs: config and recipes, the trainer, run directories, checkpoints, many processes, sweeps.

May import: online, models, data, optim, nn, kernels, errors; never deploy.
"""

from bsnn._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
