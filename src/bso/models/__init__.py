"""The networks of the paper (Section 5.1)."""

from bso.models.resnet import resnet18
from bso.models.vgg import vgg, vgg11

__all__ = ["resnet18", "vgg", "vgg11"]
