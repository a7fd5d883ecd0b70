"""The run that the tests of this folder compare with, made anew for each module because some tests add to it."""

from pathlib import Path

import pytest
import torch
from training_runs import TINY

from bsnn.train import loop as train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of TINY."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "whole"
    train.train(TINY, out)
    return out
