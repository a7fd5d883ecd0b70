"""Data sets as NumPy arrays, and batches from them: the paper's five, MNIST and Fashion-MNIST, and your own data.

`load(folder, split)` finds out what is there; each set also has a function with settings of its own. Readers never
import torch; augmentation and the loader do. May import: _lazy, extras, errors.
"""

from bsnn._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
