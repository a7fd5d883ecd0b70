"""Booleans as packed bits, and bits as signs.

Bit i of byte k is value 8k + i in row-major order; as a weight, 1 stands for +1 and 0 for −1.
"""

from functools import cache

import torch
from torch import Tensor

from bsnn.errors import UserError
from bsnn.kernels.pieces import is_whole

# Multiplying eight bytes of 0 or 1, read as one little-endian integer, by this moves byte i to bit 56 + i.
_GATHER_BITS = 0x0102040810204080


def pack(mask: Tensor) -> Tensor:
    """Packs booleans into bytes, eight to a byte, the last byte filled up with zeros.

    Example:
        >>> pack(torch.tensor([True, False, True, True]))
        tensor([13], dtype=torch.uint8)
    """
    if mask.dtype != torch.bool:
        raise UserError(f"pack: received {mask.dtype}; expected torch.bool, true for +1, as in pack(w >= 0).")
    # A copy of its own, whole bytes long, so that it can be read eight booleans at a time.
    flat = torch.cat([mask.reshape(-1), mask.new_zeros(-mask.numel() % 8)])
    return pack_flat(flat)


def pack_flat(flat: Tensor) -> Tensor:
    """Packs whole bytes of booleans, a flat tensor that begins where eight of them can be read as one number."""
    groups = flat.view(torch.int64)
    return (groups.mul(_GATHER_BITS) >> 56).bitwise_and_(0xFF).to(torch.uint8)


def unpack(bits: Tensor, num_weights: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Unpacks bytes into a flat tensor of `num_weights` signs, −1 or +1.

    Example:
        >>> unpack(torch.tensor([13], dtype=torch.uint8), 4)
        tensor([ 1., -1.,  1.,  1.])
    """
    if is_whole(bits):  # one launch less; on a CPU, a table of bytes stays in the cache
        return _look_up(_sign_rows(bits.device, dtype), bits).view(-1)[:num_weights]
    return _look_up(_sign_table(bits.device), bits).view(torch.int8)[:num_weights].to(dtype)


def silent(bits: Tensor, num_neurons: int) -> Tensor:
    """Unpacks bits of spikes into a flat tensor of bytes, 1 where a neuron did not fire.

    Example:
        >>> silent(torch.tensor([13], dtype=torch.uint8), 4)
        tensor([0, 1, 0, 0], dtype=torch.uint8)
    """
    return _look_up(_silent_table(bits.device), bits).view(torch.uint8)[:num_neurons]


def _look_up(table: Tensor, bits: Tensor) -> Tensor:
    return table.index_select(0, bits.int())


@cache
def _sign_table(device: torch.device) -> Tensor:
    """The eight signs of every byte, one byte each, read as one integer."""
    return (2 * _bits_of_bytes(device) - 1).to(torch.int8).view(torch.int64).view(-1)


@cache
def _sign_rows(device: torch.device, dtype: torch.dtype) -> Tensor:
    """The eight signs of every byte, in the type of the weights."""
    return (2 * _bits_of_bytes(device) - 1).to(dtype)


@cache
def _silent_table(device: torch.device) -> Tensor:
    """For every byte of spikes, eight bytes that are 1 where a neuron did not fire, read as one integer."""
    return (1 - _bits_of_bytes(device)).to(torch.uint8).view(torch.int64).view(-1)


def _bits_of_bytes(device: torch.device) -> Tensor:
    return (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)) & 1
