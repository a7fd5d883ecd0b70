"""The public names of the packages that load them on first use."""

import importlib
import pkgutil

import pytest

MODULES = {"bsnn": {"data", "models", "optim", "train", "zoo"}, "bsnn.data": {"audio", "events"}}


@pytest.mark.parametrize("package", ["bsnn", "bsnn.data", "bsnn.optim", "bsnn.paper", "bsnn.train"])
def test_no_public_name_is_hidden_by_a_module(package: str) -> None:
    # Importing a submodule sets an attribute of its name, which from then on hides a function of that name.
    module = importlib.import_module(package)
    submodules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert submodules & set(module.__all__) == MODULES.get(package, set())
