from bsnn.paper.recipes import PAPER as PAPER, RECIPES as RECIPES, recipe as recipe
from bsnn.paper.targets import TARGETS as TARGETS, reproduce as reproduce
