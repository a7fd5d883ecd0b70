"""A surrogate by its name: one that comes with the library, or your own class."""

import pytest
import torch

from bsnn.nn import surrogate


class Steep:
    """A surrogate of a user's own."""

    def derivative(self, x):
        return 9 * x


@pytest.mark.parametrize(
    ("name", "parameter", "highest"), [("sigmoid", 4, 1), ("rectangle", 1, 1), ("triangle", 1, 1), ("arctan", 2, 1)]
)
def test_by_the_name_of_its_class_with_the_slope_that_makes_it_1_at_the_threshold(
    name: str, parameter: float, highest: float
) -> None:
    made = surrogate.named(name)
    assert type(made).__name__.lower() == name
    assert made.parameter == parameter  # pyright: ignore[reportAttributeAccessIssue]
    assert made.derivative(torch.zeros(1)).item() == highest


def test_your_own_by_module_and_class() -> None:
    made = surrogate.named(f"{__name__}:Steep")
    assert isinstance(made, Steep)
    assert made.derivative(2) == 18
