"""A surrogate by its name: one that comes with the library, or your own class."""

import pytest

from bsnn.nn import surrogate


class Steep:
    """A surrogate of a user's own."""

    def derivative(self, x):
        return 9 * x


@pytest.mark.parametrize("name", ["sigmoid", "triangle"])
def test_by_the_name_of_its_class(name: str) -> None:
    assert type(surrogate.named(name)).__name__.lower() == name


def test_your_own_by_module_and_class() -> None:
    made = surrogate.named(f"{__name__}:Steep")
    assert isinstance(made, Steep)
    assert made.derivative(2) == 18
