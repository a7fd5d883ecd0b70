from bsnn.optim._folding import folding as folding
from bsnn.optim._gradients import NotFinite as NotFinite
from bsnn.optim.base import FlipOptimizer as FlipOptimizer
from bsnn.optim.rules.bso import BSO as BSO, bso_flips as bso_flips
from bsnn.optim.rules.sigma import SigmaBSO as SigmaBSO
from bsnn.optim.rules.tbso import TBSO as TBSO, tbso_flips as tbso_flips
from bsnn.optim.schedule import (
    Factor as Factor,
    Schedule as Schedule,
    constant as constant,
    cosine as cosine,
    inverse_sqrt as inverse_sqrt,
    step_decay as step_decay,
    warmup as warmup,
)
