"""The forward pass of one-bit synapses on the engine's kernel: spikes are bits, so what they add up to is a count.

Sums of ±1 over spikes, or over means of four spikes, are whole numbers of quarters, which single precision holds
exactly in any order of addition: the kernel gives the very bits that torch's convolution gives.
"""

import ctypes
from functools import cache

import torch
from torch import Tensor

from bso.engine.native import OpTable, SynapseLayout, Threads, libraries

# Fewer channels than this leave bits of a word of the kernel idle; then torch is as fast.
_MIN_CHANNELS = 64

_Pair = tuple[int, int]
_threads = cache(Threads)


def convolve(
    x: Tensor, bits: Tensor, shape: torch.Size, stride: _Pair, padding: _Pair, dilation: _Pair, groups: int
) -> Tensor | None:
    """The convolution of spikes with one-bit weights of `shape`, channels last; None where the kernel does not serve.

    It serves where it was built, in single precision on a CPU, for spikes and means of four spikes.
    """
    found, (outs, ins, height, width) = libraries(), shape
    if not found or x.device.type != "cpu" or x.dtype != torch.float32 or outs // groups < _MIN_CHANNELS or not len(x):
        return None
    library = list(found.values())[-1]
    x = x.detach().contiguous(memory_format=torch.channels_last)
    layout = _layout(tuple(x.shape[1:]), tuple(shape), stride, padding, dilation, groups)
    rows = torch.zeros(layout.weight_bytes, dtype=torch.uint8)
    library.bso_rows(_at(bits), outs, ins, height * width, groups, layout.op.row, _at(rows))
    op = OpTable.from_buffer_copy(layout.op)
    op.weight = rows.data_ptr()
    currents = torch.empty((len(x), *layout.made), memory_format=torch.channels_last)
    threads = _threads(torch.get_num_threads())
    workspace = torch.empty(threads.number, layout.workspace_bytes, dtype=torch.uint8)

    def run(rank: int) -> int:
        return library.bso_currents(
            ctypes.byref(op), layout.values, _at(x), _at(currents), len(x), _at(workspace[rank]),
            ctypes.c_size_t(layout.values_bytes), rank, threads.number,
        )  # fmt: skip

    return None if any(threads.run(run)) else currents


_layout = cache(SynapseLayout)


def _at(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())
