"""Nothing compiled before a test, and an error where torch would give up and run uncompiled without a word."""

from collections.abc import Iterator

import pytest
import torch._dynamo


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
