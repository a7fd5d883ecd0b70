"""The networks of the paper (Section 5.1)."""

from bsnn.models.resnet import resnet18
from bsnn.models.vgg import vgg, vgg11

__all__ = ["resnet18", "vgg", "vgg11"]
