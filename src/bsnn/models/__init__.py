"""The networks of the paper (Section 5.1), and networks of your own plan."""

from bsnn.models.residual import residual
from bsnn.models.resnet import resnet18
from bsnn.models.vgg import vgg, vgg11

__all__ = ["residual", "resnet18", "vgg", "vgg11"]
