"""The limits of numbers in a model file's header: the last that is allowed, and the first that is not."""

import pytest
from model_bytes import changed

from bsnn.deploy.codec import decode
from bsnn.deploy.schema import BadModel


@pytest.mark.parametrize("key", ["multiplier", "offset"])
@pytest.mark.parametrize(("allowed", "refused"), [(2**31 - 1, 2**31), (-(2**31), -(2**31) - 1)])
def test_numbers_of_the_input_have_32_bits(odd: bytes, key: str, allowed: int, refused: int) -> None:
    def give(value: int):
        return lambda header: header["input"][key].__setitem__(0, value)

    assert getattr(decode(changed(odd, give(allowed))).input, key)[0] == allowed
    with pytest.raises(BadModel, match=f"`{key}`"):
        decode(changed(odd, give(refused)))
