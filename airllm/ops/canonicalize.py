"""Convert an op's arguments to what kernels take: dense NumPy arrays with matching dtypes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.formats import Quantized
from airllm.ops.declaration import Declaration
from airllm.ops.dlpack import as_numpy
from airllm.ops.operands import FLOAT32, FLOAT64, Operand, Shapes


def host_array(op: Declaration, operand: Operand, value: Any) -> Any:
    """`value` as a NumPy array in native byte order, without a copy if possible."""
    if (value is None and operand.optional) or isinstance(value, Quantized):
        return value
    if operand.kind == "quantized":
        operand.check_type(op.name, value, True)
    array = _as_array(op, operand, value)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def host_out(op: Declaration, value: Any, out: Operand) -> np.ndarray:
    if not hasattr(value, "__array_interface__") and not hasattr(value, "__dlpack__"):  # such as a list
        raise TypeError(f"{op.name}: {out.name} has type {type(value).__name__}, expected a NumPy array")
    return _as_array(op, out, value)


def _as_array(op: Declaration, operand: Operand, value: Any) -> np.ndarray:
    wrong = f"{op.name}: {operand.name} has type {type(value).__name__}, expected a"
    try:
        array = as_numpy(value)
    except Exception as error:  # another library may raise any exception
        raise TypeError(f"{wrong}n array: {error}") from error
    if array.dtype == object or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{wrong} NumPy array" + " or a Quantized" * (operand.kind == "stored"))
    return array


def canonicalize(op: Declaration, arrays: Sequence[Any], shapes: Shapes) -> list[Any]:
    """The arrays as C-contiguous, in dtypes that kernels take; the op's own with equal leading axes."""
    own = [a.dtype for o, a in op.floats(arrays) if o.kind == "own"]
    others = [a.dtype for o, a in op.floats(arrays) if o.kind == "any float"]
    wide = any(a.dtype == FLOAT64 for _, a in op.floats(arrays))
    weights_only = all(not o.leads for o in _own_operands(op)[1:])
    found: list[Any] = []
    for operand, a in zip(op.operands, arrays, strict=True):
        if a is None or isinstance(a, Quantized):
            found.append(a)
            continue
        a = a.reshape(operand.full_shape(a.shape))
        if operand.kind == "mask":
            a = with_last_axis(a, shapes.sizes[operand.axes[-1]])
        if operand.kind == "own":
            first = operand is _own_operands(op)[0]
            keep = first and weights_only and not wide  # kernels take float32 weights
            dtype = a.dtype if keep else FLOAT64 if wide else _common_dtype(own)
            a = _with_batch(operand, a, shapes, first)
        else:
            dtype = _dtype_of_other(operand, a.dtype, wide, others)
        found.append(np.require(a, dtype, ["C", "ALIGNED"]))
    return found


def with_last_axis(mask: np.ndarray, length: int) -> np.ndarray:
    """The mask with its last axis expanded: kernels broadcast masks along all other axes."""
    return mask if mask.shape[-1:] == (length,) else np.broadcast_to(mask, (*mask.shape[:-1], length))


def _own_operands(op: Declaration) -> list[Operand]:
    return [operand for operand in op.operands if operand.kind == "own"]


def _with_batch(operand: Operand, a: np.ndarray, shapes: Shapes, first: bool) -> np.ndarray:
    """Broadcast to all leading axes, except for an array without any after the first: kernels share it."""
    lead = a.ndim - len(operand.inner)
    if not operand.leads or a.shape[:lead] == shapes.batch or not (lead or first):
        return a
    return np.broadcast_to(a, (*shapes.batch, *a.shape[lead:]))


def _common_dtype(dtypes: Sequence[np.dtype]) -> np.dtype:
    """The dtype that can represent all: float16 with bfloat16 gives float32."""
    return dtypes[0] if len(set(dtypes)) == 1 else FLOAT32


def _dtype_of_other(operand: Operand, dtype: np.dtype, wide: bool, others: Sequence[np.dtype]) -> np.dtype:
    """The dtype in which a kernel takes an array that is not one of the op's own float arrays."""
    if operand.kind == "any float":
        return FLOAT64 if wide else _common_dtype(others)
    if operand.kind == "stored":
        return FLOAT64 if wide else dtype
    if operand.kind == "mask" and dtype == FLOAT64 and not wide:
        return FLOAT32
    if operand.kind == "index" and dtype not in (np.int32, np.int64):
        return np.dtype(np.int64)
    return dtype
