"""Every kernel is an operator as torch wants them: what its schema says, what its fake does, under the compiler too."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bsnn.kernels.torch_internals import TorchDispatchMode

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_kernels.py"
NAMES = (
    "unpack_signs", "moments", "fold_norm", "fire", "through", "through_norm", "mean_square", "fold", "fold_8", "flip",
    "mixed_loss",
)  # fmt: skip


class Caught(TorchDispatchMode):
    """Takes note of calls of our operators instead of running them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "bsnn":
            self.calls.append((func, args, kwargs or {}))
            return None
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("gpu_kernels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["gpu_kernels"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(BATCH=1, CHANNELS=16, SIZE=4)
    module.loaded()
    return module.cases()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own, from its compiler
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str, cases: dict[str, Any]) -> None:
    call = next(call for case, (call, _) in cases.items() if case.split()[0] == name)
    with Caught() as caught:
        call()
    ((operator, args, kwargs),) = caught.calls
    torch.library.opcheck(operator, args, kwargs)


def test_the_roofline_counts_the_bytes_that_kernels_must_move(cases: dict[str, Any]) -> None:
    sys.path.append(str(SCRIPT.parent))
    from gpu_roofline import moved_bytes

    for name, (call, least) in cases.items():
        with Caught() as caught:
            call()
        ((operator, args, kwargs),) = caught.calls
        # Beside what the least has there are scalars, and numbers of each of the sixteen channels.
        assert least <= moved_bytes(operator, args, kwargs, None) <= least + 16 * 4 * 12, name


def test_no_operator_is_left_out(cases: dict[str, Any]) -> None:
    assert {case.split()[0] for case in cases} == set(NAMES)
