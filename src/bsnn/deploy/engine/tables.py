"""The tables of csrc/engine.h, as ctypes has them."""

import ctypes
from typing import Any

KINDS = {"input": 0, "spikes": 1, "counts": 1, "fixed": 2}
"""Of values, as engine.h numbers them."""
COUNT, DENSE, LIF, POOL, SCATTER, POOL_FIXED, ADD, CONCAT, SCALE = range(9)

_Integer, _Pair, _Size, _Pointer = ctypes.c_int32, ctypes.c_int32 * 2, ctypes.c_size_t, ctypes.c_void_p


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class ValueTable(ctypes.Structure):
    """`bsnn_value` of engine.h."""

    _fields_ = _fields(_Integer, "kind channels height width planes words ring local") + _fields(
        _Size, "offset step row pixel"
    )


class OpTable(ctypes.Structure):
    """`bsnn_op` of engine.h."""

    _fields_ = (
        _fields(_Integer, "op still input other output")
        + _fields(_Pair, "kernel stride padding dilation")
        + _fields(
            _Integer, "groups windows input_shift shift wide largest count_padding neurons leak threshold membrane_step"
        )
        + _fields(ctypes.c_uint32, "row")
        + _fields(_Size, "lists ends rows row_ends window sums membrane list_capacity row_capacity")
        + _fields(_Pointer, "weight multiplier offset")
    )


class TaskTable(ctypes.Structure):
    """`bsnn_task` of engine.h."""

    _fields_ = _fields(ctypes.c_uint16, "op ops first last")


def contents(table: ctypes.Structure) -> dict[str, int | list[int]]:
    """The fields of a table by name: numbers, or lists of them; a null pointer is 0.

    Example:
        >>> contents(ValueTable(kind=1, channels=8))["channels"]
        8
    """
    fields = {name: getattr(table, name) for name, *_ in table._fields_}
    return {name: list(v) if isinstance(v, ctypes.Array) else int(v or 0) for name, v in fields.items()}


class ModelTable(ctypes.Structure):
    """`bsnn_model` of engine.h."""

    _fields_ = _fields(_Integer, "num_tasks output") + _fields(_Size, "frame") + _fields(_Pointer, "tasks ops values")


class CallTable(ctypes.Structure):
    """`bsnn_call` of engine.h."""

    _fields_ = (
        _fields(_Pointer, "model frames of_byte")
        + _fields(_Integer, "num_frames batch time_steps chunk")
        + _fields(_Pointer, "membranes records outputs workspace")
        + _fields(_Size, "values_bytes scratch_bytes")
        + _fields(_Integer, "threads by_rows")
        + _fields(_Pointer, "barrier")
    )
