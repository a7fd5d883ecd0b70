"""One call for all optimizers: a bad gradient of any of them reaches none."""

import pytest
import torch
from torch import nn

import bsnn
from bsnn.optim import NotFinite
from bsnn.optim.drive import Updates


@pytest.mark.parametrize("bad", ["binary", "real"])
@pytest.mark.parametrize("flip_first", [True, False])
def test_a_bad_gradient_changes_nothing(bad: str, flip_first: bool) -> None:
    binary, real = bsnn.BinaryLinear(8, 4).weight, nn.Parameter(torch.ones(4))
    flip, sgd = bsnn.optim.BSO([binary], gamma=0.0), torch.optim.SGD([real], lr=0.1)
    for name, parameter in (("binary", binary), ("real", real)):
        parameter.grad = torch.full(parameter.shape, torch.nan if name == bad else 1.0)
    signs = bsnn.signs(binary)
    with pytest.raises(NotFinite), Updates([flip, sgd] if flip_first else [sgd, flip]) as updates:
        updates.update(None)
    assert torch.equal(bsnn.signs(binary), signs)
    assert torch.equal(real.detach(), torch.ones(4))
    assert binary.grad is None
    assert real.grad is None
