"""Train binary spiking networks in constant memory and deploy them in a megabyte."""

from bso.errors import UserError

__all__ = ["UserError", "__version__"]

__version__ = "0.1.0"
