"""The C++ backend as an object, optionally without SIMD or threads, or with its own thread count."""

import functools
from collections.abc import Callable
from typing import Any

from airllm.backends import registry
from airllm.backends.api.kernel_backend import KernelBackend


class CpuBackend(KernelBackend):
    """The C++ backend, optionally without SIMD or threads, or with its own thread count.

    Without `use_simd`, kernels use only instructions that every CPU of this architecture has: SSE2 on x86-64,
    whose compilers have no other floating-point unit; NEON on ARM. Without `use_parallel`, they use one
    thread. ValueError if `num_threads` is not an integer from 1 to 4096.
    """

    def __init__(self, use_simd: bool = True, use_parallel: bool = True, num_threads: int | None = None):
        super().__init__("cpp")
        module: Any = self._backend.module
        self.use_simd, self.use_parallel = use_simd, use_parallel
        self.num_threads = None if num_threads is None else _threads(num_threads, module)

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), (self.use_simd, self.use_parallel, self.num_threads)

    @staticmethod
    def is_available() -> bool:
        """Whether the C++ backend runs here."""
        return not registry.open_backend("cpp").why_not

    def device(self) -> str:
        """The instruction set and the threads that it uses."""
        module: Any = self._backend.module
        return self._within(module.device)

    def __repr__(self) -> str:
        threads = "" if self.num_threads is None else f", num_threads={self.num_threads}"
        options = f"use_simd={self.use_simd}, use_parallel={self.use_parallel}{threads}"
        return f"<CpuBackend({options}): {self.device()}>"

    def extension(self, name: str) -> Any:
        """As in KernelBackend; functions run with this object's options."""
        found = super().extension(name)
        return functools.partial(self._within, found) if callable(found) else found

    def _call(self, op: Callable, *args: Any, **kwargs: Any) -> Any:
        return self._within(super()._call, op, *args, **kwargs)

    def _within(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._backend.module
        isa = None if self.use_simd else module.baseline
        threads = self.num_threads if self.use_parallel else 1
        return module.within(isa, threads, function, *args, **kwargs)


def with_threads(number: int, what: str) -> KernelBackend:
    """The C++ backend with `number` threads; errors call the number `what`."""
    return CpuBackend(num_threads=_threads(number, registry.require_backend("cpp").module, what))


def with_workers(number: int) -> KernelBackend:
    """The C++ backend with `number` threads, for the `num_workers` of `PersistentKernel`."""
    return with_threads(number, "num_workers")


def _threads(number: Any, module: Any, what: str = "num_threads") -> int:
    most = module.most_threads
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
        raise ValueError(f"{what} has value {number!r}, expected a whole number from 1 to {most}")
    return number
