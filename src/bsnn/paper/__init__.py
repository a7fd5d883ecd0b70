"""The paper: what it reports, its recipes, its tables and figures measured again, and its regret bounds tried.

`bsnn reproduce` calls `reproduce`; each table or figure has a module with a function `measure`. `numbers` and
`recipes` need no torch. May import: train, deploy and what is below them.
"""

from bsnn._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
