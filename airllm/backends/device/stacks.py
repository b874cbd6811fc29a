"""Matrices that lie one after the other in one piece of memory: `Memory.stack` has their rows."""

from __future__ import annotations

from typing import Any

from airllm.backends.device.tensor import Tensor
from airllm.formats import Quantized


def data_of(weight: Any) -> Any:
    """The tensor of a weight's values or blocks."""
    return weight.data if isinstance(weight, Quantized) else weight


def whole_of(weight: Any) -> Any:
    """All matrices of a stack as one, by one of them."""
    data = data_of(weight)
    rows = sum(data.memory.stack)
    whole: Any = Tensor(data.ops, data.memory, data.dtype, (rows, *data.shape[1:]))
    return Quantized(whole, weight.format) if isinstance(weight, Quantized) else whole
