"""The ops as methods of an object, on one backend, whatever the rest of the process uses."""

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

    `be.rms_norm(x, weight)` returns a new array, `be.rms_norm_into(x, weight, out)` writes to `out`, which
    may be `x` where the op says so; `softmax`, `softmax_view`, `rmsnorm` and `apply_rope` change `x` itself.
    Safe to use from several threads; a copy or a pickle of it is the same backend. Raises ImportError with
    the reason if the backend cannot run here, ValueError if there is none of that name.
    """

    # What its methods take and give, of one axis and of two.
    Tensor1 = Tensor2 = np.ndarray

    def __init__(self, name: str):
        self._backend = registry.require_backend(name)

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
        return self._call(tensor_ops.rms_norm, x, weight, eps, out=_require_writable("rms_norm", x))

    def softmax(self, x: Any, scale: float = 1.0, mask: Any = None) -> Any:
        """`softmax` in place; `softmax_into` leaves `x` as it is."""
        return self._call(tensor_ops.softmax, x, scale, mask, out=_require_writable("softmax", x))

    def softmax_view(self, view: Any) -> Any:
        """`softmax` in place, of a view into a larger array."""
        return self.softmax(view)

    def apply_rope(self, x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
        """`apply_rope` in place; `apply_rope_into` leaves `x` as it is."""
        return self._call(
            tensor_ops.apply_rope, x, cos, sin, interleaved, out=_require_writable("apply_rope", x)
        )

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


def _require_writable(op: str, x: Any) -> Any:
    """`x`, as the `out` of an op in place; TypeError or ValueError if it cannot be changed."""
    expected = f"expected an array that is changed in place ({op}_into writes elsewhere)"
    if not hasattr(x, "dtype"):
        raise TypeError(f"{op}: x has type {type(x).__name__}, {expected}")
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ValueError(f"{op}: x is read-only, {expected}")
    return x


def with_threads(backend: KernelBackend, threads: int) -> KernelBackend:
    """The same backend with so many threads. ValueError for one that has none of its own."""
    if own := all_declarations()[backend.name()].threads:
        return function(own)(threads, "threads")
    counted = ", ".join(name for name, own in all_declarations().items() if own.threads)
    found = f"threads has value {threads!r}, expected none with the backend {backend.name()}"
    raise ValueError(f"{found}: only {counted} has threads that can be counted")


def options_of(name: str) -> tuple[str, ...]:
    """The options that `with_options` knows of a backend."""
    return tuple(all_declarations()[name].options)


def with_options(name: str, options: Mapping[str, Any]) -> KernelBackend:
    """The backend `name` as `options` want it, those that are None left aside. ValueError for one that it
    does not declare.
    """
    known = all_declarations()[name].options
    backend = None
    for option, value in options.items():
        if option not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"the backend {name!r} has no option {option!r}, it knows: {names}")
        if value is not None:
            backend = function(known[option])(value)
    return backend or KernelBackend(name)


def init_backend(
    preference: BackendPreference | str = "auto", fallback_backends: Sequence[str] = ()
) -> KernelBackend:
    """A backend as an object with all ops as methods.

    "auto" is the one that runs ops now. A name must run here, or one of `fallback_backends`, tried in order;
    a `BackendPreference` other than `Cpu` gives way to the automatic order. BackendUnavailable, which is a
    ValueError and an ImportError, with every reason if none runs.
    """
    return KernelBackend(choose_backend_name(preference, fallback_backends))


__all__ = ["KernelBackend", "init_backend"]
