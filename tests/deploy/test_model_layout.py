"""Where the header and the tensors of a model file lie: nothing overlaps, nothing is left over."""

import json
import struct

import pytest
from model_bytes import assembled, changed, padded, sealed, split, tensors

from bsnn.deploy.codec import decode
from bsnn.deploy.schema import BadModel


def move(number: int, offset: int, length: int = 0):
    """A change of where a tensor begins and how long it is."""

    def change(header: dict) -> None:
        place = tensors(header)[number]
        place[:] = place[0] + offset, place[1] + length

    return change


def swap(first: int, second: int):
    def change(header: dict) -> None:
        one, other = tensors(header)[first], tensors(header)[second]
        one[:], other[:] = other[:], one[:]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (move(1, 4), "`multiplier` begins at byte 20 of the data; expected a multiple of 8"),
        (swap(1, 2), "`multiplier` begins at byte 32 of the data and leaves a gap; expected it at 16"),
        (move(2, -32), "`offset` lies before the tensor before it; expected tensors in the order"),
        (move(2, -8), "`offset` begins at byte 24 of the data and overlaps .* ends at 28; expected it at 32"),
        (move(1, -16), "`multiplier` begins at byte 0 of the data and overlaps"),
        (move(0, 8), "`weight` begins at byte 8 of the data and leaves a gap; expected it at 0"),
        (move(2, 8), "`offset` begins at byte 40 .* leaves a gap; expected it at 32, where the tensor before it ends"),
        (move(2, 0, 4), "`offset` ends at byte 48 of the data, which has 44"),
        (move(0, 0, -2), "`weight` is 10 bytes long; expected whole rows of 6"),
        (move(2, 0, -4), "3 multipliers and 2 offsets"),
    ],
)
def test_tensors_out_of_place_are_refused(odd: bytes, change, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        decode(changed(odd, change))


@pytest.mark.parametrize(("place", "name"), [(12, "multiplier"), (15, "multiplier"), (31, "offset")])
def test_gaps_between_tensors_are_zero(odd: bytes, place: int, name: str) -> None:
    (length,) = struct.unpack_from("<I", odd, 12)
    filled = bytearray(odd)
    filled[56 + length + place] = 1
    with pytest.raises(BadModel, match=f"between layer s: `{name}` and the tensor before it are not zero"):
        decode(sealed(bytes(filled)))


@pytest.mark.parametrize("extra", [1, 4, 8])
def test_nothing_is_left_over_at_the_end(odd: bytes, extra: int) -> None:
    header, data = split(odd)
    text = padded(json.dumps(header))
    assert decode(assembled(text, data)).name == "odd"
    with pytest.raises(BadModel, match=f"{extra} bytes are left over behind the last tensor"):
        decode(assembled(text, data + bytes(extra)))


@pytest.mark.parametrize("filling", [b"\0", b"\n", b"\t", b"}", b"x"])
def test_a_header_is_filled_up_with_spaces_alone(odd: bytes, filling: bytes) -> None:
    header, data = split(odd)
    text = json.dumps(header).encode()
    spaces = 8 + -len(text) % 8
    assert decode(assembled(text + b" " * spaces, data)).name == "odd"
    with pytest.raises(BadModel, match="filled up with something else than spaces"):
        decode(assembled(text + b" " * (spaces - 1) + filling, data))
    with pytest.raises(BadModel, match="not JSON"):
        decode(assembled(b" " * spaces + text, data))


@pytest.mark.parametrize("key", ["name", "shape", "op"])
def test_keys_that_stand_twice_are_refused(odd: bytes, key: str) -> None:
    header, data = split(odd)
    text = json.dumps(header).replace(f'"{key}":', f'"{key}": 0, "{key}":', 1)
    with pytest.raises(BadModel, match=f"has the key '{key}' twice in one object"):
        decode(assembled(padded(text), data))
