"""What a model does when its device fails: another backend goes on, with the sequences that there are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from airllm.backends import config, registry
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.backends.device.faults import MEMORY, DeviceFault
from airllm.engine.exact_ops import ExactOps
from airllm.memory.kv_cache import Cache

T = TypeVar("T")


class BackendFallback(UserWarning):
    """A device failed, and another backend goes on."""


class Fallbacks:
    """The backends that go on after a device has failed, in order. ValueError for an unknown name."""

    def __init__(self, names: Sequence[str]):
        self._names = [config.canonical_name(name) for name in names]

    def __bool__(self) -> bool:
        return bool(self._names)

    def next_ops(self, fault: DeviceFault, ops: Any) -> Any:
        """The ops of the next backend that runs here, exact if `ops` are. Raises the fault if there is none.
        Warns with BackendFallback.
        """
        failed = (ops.backend if isinstance(ops, ExactOps) else ops).name()
        while self._names:
            opened = registry.open_backend(self._names.pop(0))
            if opened.why_not or opened.name == failed:
                continue
            found = KernelBackend(opened.name)
            warnings.warn(f"{opened.name} goes on: {fault}", BackendFallback, 2)
            return ExactOps(found) if isinstance(ops, ExactOps) else found
        raise fault


def leave_device(cache: Cache, tokens: list[int], fault: DeviceFault) -> list[int]:
    """Keep a cache in host memory from now on, with these of its tokens. Returns those that must be computed
    again: none if the device still gives keys and values back, which it may if it only lacks memory.
    """
    in_file = type(cache) is not Cache
    if (fault.kind == MEMORY or in_file) and cache.cut(len(tokens)) == len(tokens) <= cache.length:
        cache.truncate(len(tokens))
        with suppress(Exception):  # a driver may raise anything
            cache.fetch_layers()
            return []
    cache.leave_device()
    return tokens


class FallingBack(Protocol):
    """What `go_on` needs of a model."""

    on_device: Any

    def fall_back(self, fault: DeviceFault) -> None: ...

    def run(self, batch: Sequence[list[int]], caches: Sequence[Cache]) -> Any: ...


def go_on(model: FallingBack, caches: Sequence[Cache], call: Callable[[], T]) -> T:
    """The result of a call that computes next tokens of these sequences. If the device fails meanwhile,
    another backend computes it again, after the tokens that all sequences had before.
    """
    before = [(cache, list(cache.tokens)) for cache in caches]
    try:
        return call()
    except DeviceFault as fault:
        there = {cache: list(cache.tokens) for cache in model.on_device.caches()} | dict(before)
        model.on_device.close()
        lost = [(cache, leave_device(cache, tokens, fault)) for cache, tokens in there.items()]
        model.fall_back(fault)
        for cache, tokens in lost:
            if tokens:
                model.run([tokens], [cache])
    return go_on(model, caches, call) if model.on_device else call()
