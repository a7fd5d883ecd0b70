"""Train binary spiking networks in constant memory and deploy them in a megabyte.

`__init__.pyi` lists the public names. They load on first use, so that what needs no torch does not import it.
"""

from bsnn._lazy import attach

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
