"""Ops of a device as methods, by the names and rules of `KernelBackend`: what all such objects share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

# NumPy's functions that `combine` computes, by their numbers in kernels: of two arrays, and of one.
OF_TWO = ("add", "subtract", "multiply", "divide", "minimum", "maximum")
ELEMENTWISE = (*OF_TWO, "tanh")
_INTO = "_into"


class OpMethods:
    """`ops.name(...)` and `ops.name_into(...)` for each op that `place` has a kernel of, by the class's own
    `call`.
    """

    elementwise = ELEMENTWISE
    place: Any
    _ops: Mapping[str, Any]  # the declarations
    _backend: str
    _extensions: dict[str, Any]

    def __repr__(self) -> str:
        return f"<DeviceOps {self._backend}: {self.place.label}>"

    def name(self) -> str:
        """The backend's name."""
        return self._backend

    def device(self) -> str:
        """The device it runs on, in one line."""
        return self.place.label

    def extension(self, name: str) -> Any:
        """What it has for the decoder besides ops."""
        return self._extensions.get(name)

    def __getattr__(self, method: str) -> Callable:
        name = method.removesuffix(_INTO)
        if method.startswith("_") or name not in self._ops:
            raise AttributeError(f"{self!r} has no op {method!r}")
        if not self.place.has(name):
            raise NotImplementedError(f"{name}: {self._backend} has no kernel of it on its device")
        call = partial(self._into if method != name else self.call, self._ops[name])
        setattr(self, method, call)
        return call

    def call(self, op: Any, *given: Any, out: Any = None, **named: Any) -> Any:
        """Run an op; `out` is an array, or one for each result."""
        raise NotImplementedError

    def _into(self, op: Any, *given: Any, **named: Any) -> Any:
        """`call` with the last argument as `out`, unless it is given by name; None: a new array."""
        if "out" not in named:
            *given, named["out"] = given  # type: ignore[assignment]
        return self.call(op, *given, **named)
