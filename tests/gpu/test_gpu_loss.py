"""The loss of a time step by Triton against the same loss in torch."""

import pytest
import torch
from torch import Tensor

import bsnn


def labels(kind: str, batch: int, classes: int) -> Tensor:
    random = torch.Generator().manual_seed(1)
    if kind == "indices":
        return torch.randint(classes, (batch,), generator=random)
    mixed = torch.rand(batch, classes, generator=random)
    return mixed / mixed.sum(1, keepdim=True) if kind == "distributions" else mixed


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["indices", "distributions", "others"])
@pytest.mark.parametrize(("batch", "classes"), [(5, 10), (1, 3), (130, 17), (2, 1000)])
def test_the_loss_and_its_gradient_are_those_of_torch(batch: int, classes: int, kind: str, smoothing: float) -> None:
    made = []
    for backend in ("triton", "reference"):
        logits = 3 * torch.randn(batch, classes, generator=torch.Generator().manual_seed(0))
        logits[0, 0] = 200.0  # exp() of it overflows
        logits.requires_grad_()
        with bsnn.backend(backend):
            given = labels(kind, batch, classes)
            value = bsnn.step_loss(logits, given, time_steps=4, mse_share=0.2, label_smoothing=smoothing)
            (2 * value).backward()
        made.append((value.detach(), logits.grad))
    torch.testing.assert_close(*made, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_does_not_go_unnoticed(label: int) -> None:
    logits = torch.zeros(2, 4, requires_grad=True)
    with bsnn.backend("triton"):
        value = bsnn.step_loss(logits, torch.tensor([0, label]), time_steps=1, mse_share=0.0)
        value.backward()
    assert value.isnan()
    assert logits.grad is not None
    assert logits.grad[1].isnan().all()
