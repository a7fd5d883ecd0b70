"""Data sets as NumPy arrays, and batches from them: the paper's five, MNIST and its kin, and your own data.

`load(folder, split)` finds out what is there; each set also has a function that takes its own settings. Readers never
import torch; augmentation and batches do. May import: errors, extras.
"""

from bsnn._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
