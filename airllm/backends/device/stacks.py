"""Matrices that are multiplied together: `Memory.stack` has the rows of those that lie one after the other in
one piece of memory. Those of several formats are stacks beside each other.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.backends.device.tensor import Memory, Tensor
from airllm.formats import Quantized


def data_of(weight: Any) -> Any:
    """The tensor of a weight's values or blocks."""
    return weight.data if isinstance(weight, Quantized) else weight


def format_of(weight: Any) -> str:
    """The format of a weight's blocks; "" for floats."""
    return weight.format if isinstance(weight, Quantized) else ""


def whole_of(weight: Any) -> Any:
    """All matrices of a stack as one, by one of them."""
    data = data_of(weight)
    return _whole(data.ops, data.memory, data.dtype, data.shape[1:], format_of(weight))


def whole_in(ops: Any, memory: Memory) -> Any:
    """All matrices of a stack that has another beside it, as one."""
    return _whole(ops, memory, *memory.kind)


def _whole(ops: Any, memory: Memory, dtype: Any, row: tuple[int, ...], of: str) -> Any:
    whole: Any = Tensor(ops, memory, dtype, (sum(memory.stack), *row))
    return Quantized(whole, of) if of else whole


def memories_beside(weight: Any) -> tuple[Memory, ...]:
    """The memories of all matrices that are multiplied together with this one."""
    memory = data_of(weight).memory
    found = [each() for each in memory.beside]
    return tuple(each for each in found if each is not None) if found and None not in found else (memory,)


def put_beside(*groups: Sequence[Any]) -> None:
    """Tell the memories of matrices, each group in one of its own, that they are multiplied together."""
    memories = []
    for group in groups:
        data = data_of(group[0])
        data.memory.stack = data.memory.stack or tuple(len(data_of(each)) for each in group)
        data.memory.kind = data.dtype, data.shape[1:], format_of(group[0])
        memories.append(data.memory)
    for memory in memories:
        memory.beside = tuple(map(weakref.ref, memories))


def put_together(ops: Any, parts: Sequence[Any]) -> list[Any]:
    """Copy matrices of the host, or vectors, to a device: those of one format one after the other in memory.
    Views of them, in order.
    """
    kinds = [format_of(each) or str(each.dtype) for each in parts]
    groups = {
        kind: _stack(ops, [each for each, of in zip(parts, kinds, strict=True) if of == kind])
        for kind in dict.fromkeys(kinds)
    }
    if len(groups) > 1:
        put_beside(*groups.values())
    views = {kind: iter(group) for kind, group in groups.items()}
    return [next(views[kind]) for kind in kinds]


def _stack(ops: Any, parts: Sequence[Any]) -> list[Any]:
    """Views of matrices of one format."""
    data = [np.asarray(data_of(each)) for each in parts]
    whole = ops.to_device(np.concatenate(data))
    whole.memory.stack = tuple(map(len, data))
    starts = np.cumsum([0, *map(len, data)]).tolist()
    views = [whole[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    of = format_of(parts[0])
    return [Quantized(view, of) for view in views] if of else views
