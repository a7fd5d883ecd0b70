"""How one-bit weights change (paper, Sections 4.2 to 4.4): flip rules, their optimizers, schedules.

May import: nn.bits, nn.claims, kernels, errors. To add a rule, add a file to `rules/`; CONTRIBUTING.md says how.
"""

from bsnn._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
