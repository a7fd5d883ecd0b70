"""What a time step launches on a GPU, counted on tensors without storage: few operations, and nobody waits."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from gpu_launches import launches

TRITON = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
# For one time step of training and one of evaluation, as benchmarks/results/gpu_launches.json has them.
MOST = {
    ("vgg11", "triton"): (115, 36),
    ("vgg11", "fused"): (238, 177),
    ("resnet18", "triton"): (295, 138),
    ("resnet18", "fused"): (486, 422),
}


@pytest.mark.parametrize(("network", "backend"), MOST)
def test_few_operations_whatever_the_batch_and_no_wait(network: str, backend: str) -> None:
    if backend == "triton" and not TRITON:
        pytest.skip("runs with Triton and TRITON_INTERPRET=1")
    few, many = (launches(network, backend, batch) for batch in (2, 128))
    assert few == many
    training, evaluation = MOST[network, backend]
    assert few["training"].total() <= training
    assert few["evaluation"].total() <= evaluation
