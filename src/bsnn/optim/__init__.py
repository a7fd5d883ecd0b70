"""How one-bit weights change (paper, Sections 4.2 to 4.4): flip rules, their optimizers, schedules.

May import: nn.bits, kernels, errors. To add a rule, see `FlipOptimizer` and CONTRIBUTING.md.
"""

from bsnn.optim.base import FlipOptimizer as FlipOptimizer, NotFinite as NotFinite
from bsnn.optim.bso import BSO as BSO
from bsnn.optim.rules import bso_flips as bso_flips, tbso_flips as tbso_flips
from bsnn.optim.schedule import (
    Factor as Factor,
    Schedule as Schedule,
    constant as constant,
    cosine as cosine,
    inverse_sqrt as inverse_sqrt,
    step_decay as step_decay,
)
from bsnn.optim.sigma import SigmaBSO as SigmaBSO
from bsnn.optim.tbso import TBSO as TBSO
