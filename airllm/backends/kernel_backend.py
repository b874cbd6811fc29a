"""The ops as methods of an object, on one backend, whatever the rest of the process uses."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm import tensor_ops
from airllm.backends import registry
from airllm.backends.discovery import BackendPreference, preferred

_INTO = "_into"


class KernelBackend:
    """Every op of `airllm.tensor_ops` as a method, on the backend `name`.

    `be.rms_norm(x, weight)` returns a new array, `be.rms_norm_into(x, weight, out)` writes to `out`, which
    may be `x` where the op says so; `softmax`, `softmax_view`, `rmsnorm` and `apply_rope` change `x` itself.
    Safe to use from several threads; a copy or a pickle of it is the same backend. Raises ImportError with
    the reason if the backend cannot run here, ValueError if there is none of that name.
    """

    # What its methods take and give, of one axis and of two.
    Tensor1 = Tensor2 = np.ndarray

    def __init__(self, name: str):
        self._backend = registry.asked_for(name)

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), (self.name(),)

    def name(self) -> str:
        """The backend's name."""
        return self._backend.name

    def device(self) -> str:
        """The device it runs on, in a line."""
        return self._backend.device

    @staticmethod
    def is_available() -> bool:
        """Whether one can be made here: always, since NumPy runs everywhere."""
        return True

    def extension(self, name: str) -> Any:
        """What the backend's module has under a name that is no op's, or None: see `models/fused.py`."""
        return getattr(self._backend.module, name, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name()}: {self.device()}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *tensor_ops.OPS, *(f"{op}{_INTO}" for op in tensor_ops.OPS)})

    def __getattr__(self, method: str) -> Callable:
        op = method.removesuffix(_INTO)
        if op not in tensor_ops.OPS:
            raise AttributeError(
                f"{type(self).__name__} has no op {method!r}; it has: {', '.join(tensor_ops.OPS)}"
            )
        call = self._into if method != op else self._call
        return functools.partial(call, getattr(tensor_ops, op))

    def rmsnorm(self, x: Any, weight: Any, eps: float = 1e-6) -> Any:
        """`rms_norm` in place."""
        return self._call(tensor_ops.rms_norm, x, weight, eps, out=_changeable("rms_norm", x))

    def softmax(self, x: Any, scale: float = 1.0, mask: Any = None) -> Any:
        """`softmax` in place; `softmax_into` leaves `x` as it is."""
        return self._call(tensor_ops.softmax, x, scale, mask, out=_changeable("softmax", x))

    def softmax_view(self, view: Any) -> Any:
        """`softmax` in place, of a view into a larger array."""
        return self.softmax(view)

    def apply_rope(self, x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
        """`apply_rope` in place; `apply_rope_into` leaves `x` as it is."""
        return self._call(tensor_ops.apply_rope, x, cos, sin, interleaved, out=_changeable("apply_rope", x))

    def weighted_sum_rows(self, weights: Any, matrix: Any, out: Any = None) -> Any:
        """`weighted_sum_rows` into `out`, a new array if that is None."""
        return self._call(tensor_ops.weighted_sum_rows, weights, matrix, out=out)

    def compute_attention_scores(self, query: Any, keys: Any, scores: Any, scale: float) -> Any:
        """`attention_scores` into `scores`."""
        return self.attention_scores(query, keys, scale, out=scores)

    def _call(self, op: Callable, *args: Any, **kwargs: Any) -> Any:
        return op(*args, backend=self.name(), **kwargs)

    def _into(self, op: Callable, *args: Any, **kwargs: Any) -> Any:
        """The last argument is `out`, unless it is given by name; None is a new array."""
        if "out" not in kwargs:
            *args, kwargs["out"] = args  # type: ignore[assignment]
        return self._call(op, *args, **kwargs)


class CpuBackend(KernelBackend):
    """The C++ backend with a part of it switched off, or a number of threads of its own.

    Without `use_simd`, kernels use only what every CPU of this architecture has (SSE2 on x86-64, whose
    compilers know no other floating-point unit; NEON on ARM); without `use_parallel`, one thread. ValueError
    for a `num_threads` that is no whole number from 1 to 4096, or more than 1 where there is no OpenMP.
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
        return not registry.opened("cpp").why_not

    def device(self) -> str:
        """The instruction set and threads it uses."""
        module: Any = self._backend.module
        return self._within(module.device)

    def __repr__(self) -> str:
        threads = "" if self.num_threads is None else f", num_threads={self.num_threads}"
        options = f"use_simd={self.use_simd}, use_parallel={self.use_parallel}{threads}"
        return f"<CpuBackend({options}): {self.device()}>"

    def extension(self, name: str) -> Any:
        """The same, on the part that is on."""
        found = super().extension(name)
        return functools.partial(self._within, found) if callable(found) else found

    def _call(self, op: Callable, *args: Any, **kwargs: Any) -> Any:
        return self._within(super()._call, op, *args, **kwargs)

    def _within(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._backend.module
        isa = None if self.use_simd else module.baseline
        threads = self.num_threads if self.use_parallel else 1
        return module.within(isa, threads, function, *args, **kwargs)


def _changeable(op: str, x: Any) -> Any:
    """`x`, as the `out` of an op in place; TypeError or ValueError if it cannot be changed."""
    expected = f"expected an array that is changed in place ({op}_into writes elsewhere)"
    if not hasattr(x, "dtype"):
        raise TypeError(f"{op}: x has type {type(x).__name__}, {expected}")
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ValueError(f"{op}: x is read-only, {expected}")
    return x


def _threads(number: Any, module: Any, what: str = "num_threads") -> int:
    most = module.most_threads
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
        raise ValueError(f"{what} has value {number!r}, expected a whole number from 1 to {most}")
    if number > 1 and not module.has_openmp:
        raise ValueError(f"{what} has value {number}, expected 1: tensor_ops_cpp was built without OpenMP")
    return number


def _with_workers(number: int) -> KernelBackend:
    return CpuBackend(num_threads=_threads(number, registry.asked_for("cpp").module, "num_workers"))


def _with_cutlass(wanted: bool) -> KernelBackend:
    """cuBLAS's kernels are made with CUTLASS; the other products are this library's own."""
    backend = KernelBackend("cuda")
    found = backend.extension("get_cuda_info")()["matmul"]
    if wanted and not found.startswith("cublas"):
        raise ValueError(f"use_cutlass_kernel has value True, expected False or None: products are {found}")
    return backend


# What else can be said of a backend, and how it is made then.
_OPTIONS: dict[str, dict[str, Callable[[Any], KernelBackend]]] = {
    "cpp": {"num_workers": _with_workers},
    "cuda": {"use_cutlass_kernel": _with_cutlass},
}


def with_threads(backend: KernelBackend, threads: int) -> KernelBackend:
    """The same backend with so many threads. ValueError for one that has none of its own."""
    if backend.name() != "cpp":
        found = f"threads has value {threads!r}, expected none with the backend {backend.name()}"
        raise ValueError(f"{found}: only cpp has threads that can be counted")
    return CpuBackend(num_threads=_threads(threads, registry.asked_for("cpp").module, "threads"))


def options_of(name: str) -> tuple[str, ...]:
    """The options that `with_options` knows of a backend."""
    return tuple(_OPTIONS.get(name, ()))


def with_options(name: str, options: Mapping[str, Any]) -> KernelBackend:
    """The backend `name` as `options` want it, those that are None left aside. "cpp": `num_workers`, threads;
    "cuda": `use_cutlass_kernel`, whether products of many rows must be cuBLAS's. ValueError for others.
    """
    known = _OPTIONS.get(name, {})
    backend = None
    for option, value in options.items():
        if option not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"the backend {name!r} has no option {option!r}, it knows: {names}")
        if value is not None:
            backend = known[option](value)
    return backend or KernelBackend(name)


def init_backend(
    preference: BackendPreference | str = "auto", fallback_backends: Sequence[str] = ()
) -> KernelBackend:
    """A backend as an object with all ops as methods.

    "auto" is the one that runs ops now. A name must run here, or one of `fallback_backends`, tried in order;
    a `BackendPreference` other than `Cpu` gives way to the automatic order. BackendUnavailable, which is a
    ValueError and an ImportError, with every reason if none runs.
    """
    return KernelBackend(preferred(preference, fallback_backends))


__all__ = ["CpuBackend", "KernelBackend", "init_backend"]
