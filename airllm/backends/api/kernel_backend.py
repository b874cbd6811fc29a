"""Backend objects with ops as methods; they do not depend on the backend of the process."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm import tensor_ops
from airllm.backends import registry
from airllm.backends.api.discovery import BackendPreference, choose_backend_name
from airllm.backends.declaration import all_declarations, function

_INTO = "_into"


class KernelBackend:
    """Every op of `airllm.tensor_ops` as a method, on the backend `name`.

    `be.rms_norm(x, weight)` returns a new array. `be.rms_norm_into(x, weight, out)` writes to `out`, which
    may be `x` if the op allows it. `softmax`, `softmax_view`, `rmsnorm` and `apply_rope` change `x` in place.
    Threads may share the object; a copy or a pickle of it uses the same backend. Raises ImportError with the
    reason if the backend cannot run here, ValueError if there is no such backend.
    """

    # The types of 1-D and 2-D arguments and results.
    Tensor1 = Tensor2 = np.ndarray

    def __init__(self, name: str):
        self._backend = registry.require_backend(name)

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), (self.name(),)

    def name(self) -> str:
        """The backend's name."""
        return self._backend.name

    def device(self) -> str:
        """The device it runs on, in one line."""
        return self._backend.device

    @staticmethod
    def is_available() -> bool:
        """Always True: NumPy runs everywhere."""
        return True

    def extension(self, name: str) -> Any:
        """An attribute of the backend's module that is not an op, or None, such as what
        `engine/layers/native_decode.py` calls.
        """
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
        return self._call(tensor_ops.rms_norm, x, weight, eps, out=_require_writable("rms_norm", x))

    def softmax(self, x: Any, scale: float = 1.0, mask: Any = None) -> Any:
        """`softmax` in place; `softmax_into` does not change `x`."""
        return self._call(tensor_ops.softmax, x, scale, mask, out=_require_writable("softmax", x))

    def softmax_view(self, view: Any) -> Any:
        """`softmax` in place, for a view of a larger array."""
        return self.softmax(view)

    def apply_rope(self, x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
        """`apply_rope` in place; `apply_rope_into` does not change `x`."""
        return self._call(
            tensor_ops.apply_rope, x, cos, sin, interleaved, out=_require_writable("apply_rope", x)
        )

    def weighted_sum_rows(self, weights: Any, matrix: Any, out: Any = None) -> Any:
        """`weighted_sum_rows` into `out`, or into a new array if that is None."""
        return self._call(tensor_ops.weighted_sum_rows, weights, matrix, out=out)

    def compute_attention_scores(self, query: Any, keys: Any, scores: Any, scale: float) -> Any:
        """`attention_scores` into `scores`."""
        return self.attention_scores(query, keys, scale, out=scores)

    def _call(self, op: Callable, *args: Any, **kwargs: Any) -> Any:
        return op(*args, backend=self.name(), **kwargs)

    def _into(self, op: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call an op with its last argument as `out`, unless `out` is given by name; None: a new array."""
        if "out" not in kwargs:
            *args, kwargs["out"] = args  # type: ignore[assignment]
        return self._call(op, *args, **kwargs)


def _require_writable(op: str, x: Any) -> Any:
    """`x` as the `out` of an in-place op; TypeError or ValueError if it cannot be changed."""
    expected = f"expected an array that is changed in place ({op}_into writes elsewhere)"
    if not hasattr(x, "dtype"):
        raise TypeError(f"{op}: x has type {type(x).__name__}, {expected}")
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ValueError(f"{op}: x is read-only, {expected}")
    return x


def with_threads(backend: KernelBackend, threads: int) -> KernelBackend:
    """The same backend with `threads` threads. ValueError if the backend has no thread count."""
    if own := all_declarations()[backend.name()].threads:
        return function(own)(threads, "threads")
    counted = ", ".join(name for name, own in all_declarations().items() if own.threads)
    found = f"threads has value {threads!r}, expected none with the backend {backend.name()}"
    raise ValueError(f"{found}: only {counted} has threads that can be counted")


def options_of(name: str) -> tuple[str, ...]:
    """The options of a backend that `with_options` accepts."""
    return tuple(all_declarations()[name].options)


def with_options(name: str, options: Mapping[str, Any]) -> KernelBackend:
    """The backend `name` with `options`; None values are ignored. ValueError for an option that it does not
    declare.
    """
    known = all_declarations()[name].options
    backend = None
    for option, value in options.items():
        if option not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"the backend {name!r} has no option {option!r}, expected one of: {names}")
        if value is not None:
            backend = function(known[option])(value)
    return backend or KernelBackend(name)


def init_backend(
    preference: BackendPreference | str = "auto", fallback_backends: Sequence[str] = ()
) -> KernelBackend:
    """A backend as an object with all ops as methods.

    "auto" is the backend that runs ops now. Otherwise the named backend or one of `fallback_backends`, tried
    in order, must run here; a `BackendPreference` other than `Cpu` falls back to the automatic order. Raises
    BackendUnavailable (a ValueError and an ImportError) with every reason if none runs.
    """
    return KernelBackend(choose_backend_name(preference, fallback_backends))


__all__ = ["KernelBackend", "init_backend"]
