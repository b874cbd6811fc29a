"""The memory that is available for a model, and the budget that follows from it."""

from __future__ import annotations

from airllm.architectures.tensor_names import NamedTensors
from airllm.backends.devices import host_memory
from airllm.files import pages
from airllm.memory.budget import CHUNK, CONTEXT, Limit
from airllm.memory.estimate import estimate, weight_bytes

# Left to other programs: a part of what is free, and bytes.
_MARGIN_PART, _MARGIN = 32, 256 << 20


def available_memory() -> int | None:
    """Bytes of the machine, or of this process's control group, that a model may take; None if unknown. The
    page cache counts as free. A margin for other programs is left.
    """
    _, free = host_memory()
    return None if free is None else max(free - free // _MARGIN_PART - _MARGIN, 0)


def free_for(nbytes: int) -> int:
    """The bytes that must be free, for `nbytes` to be available."""
    return -(-(nbytes + _MARGIN) * _MARGIN_PART // (_MARGIN_PART - 1))


def memory_limit(
    tensors: NamedTensors,
    max_memory: int | None = None,
    context: int | None = None,
    cache_dtype: str = "f16",
    share: bool = False,
) -> Limit | None:
    """The limit of a model's memory: `max_memory`, or what is available if the model needs more; else None.

    A process that holds a `share` of a model has no limit of its own.
    """
    available = available_memory() if pages.SUPPORTED else None
    if max_memory is not None:
        return Limit(max_memory, from_disk=available is not None and weight_bytes(tensors) > available)
    if available is None or share or needed_bytes(tensors, context, cache_dtype) <= available:
        return None
    return Limit(available, by_user=False, from_disk=True)


def needed_bytes(tensors: NamedTensors, context: int | None = None, cache_dtype: str = "f16") -> int:
    """Bytes of a model that is all in memory, with a sequence of `context` tokens, at most the default."""
    tokens = min(context or CONTEXT, tensors.config.context, CONTEXT)
    return estimate(tensors, tokens, cache_dtype, CHUNK).total_bytes
