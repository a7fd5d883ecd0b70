"""The networks of the paper (Section 5.1) and of what it compares with, and networks of your own plan."""

from bsnn.models.basic import basic_resnet, wide_7b
from bsnn.models.nf_resnet import nf_resnet34
from bsnn.models.plain import plain
from bsnn.models.residual import residual
from bsnn.models.resnet import resnet18
from bsnn.models.transformer import stst
from bsnn.models.vgg import vgg, vgg11

__all__ = ["basic_resnet", "nf_resnet34", "plain", "residual", "resnet18", "stst", "vgg", "vgg11", "wide_7b"]
