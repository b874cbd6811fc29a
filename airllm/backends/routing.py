"""Choose the backend of a call by measured times: a table of winners for each op and dtype.

A call runs on the winner at the nearest measured size, in powers of two of its first one or two arrays. Only
calls with NumPy arrays of one measured dtype are routed. Device arrays, stored weights and other dtypes go to
the backend that comes first in the order.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from airllm.backends.backend import Backend
from airllm.backends.config_schema import on_processor
from airllm.backends.tuning_file import Point, Time, Tuning

OCTAVES = 48  # sizes are distinguished by their bit lengths
MARGIN = 1.1  # how many times faster than the usual backend another one must be
INDEX_KINDS = "iu"
UNMEASURED = "not measured, the first that runs in the order"


class Table:
    """`kernels` has the function that runs each op. `usual` is the first backend of the order.

    `order` has the backends that may run ops. Those that win are opened when first needed.
    """

    def __init__(
        self, tuning: Tuning, usual: Backend, order: Iterable[str], opened: Callable[[str], Backend]
    ):
        self.tuning, self.usual, self.opened = tuning, usual, opened
        self.order = tuple(order)
        self.refused: dict[str, str] = {}  # measured backends that cannot be used, and why
        self.kernels = {op_name: self.kernel(op_name) for op_name in usual.kernels}

    def kernel(self, op_name: str) -> Callable:
        """The usual kernel if no backend was faster; else a function that opens the faster ones at a call."""
        if not any(self._faster(p) for points in self.tuning.ops.get(op_name, {}).values() for p in points):
            return self.usual.kernels[op_name]

        def first(*args: Any, **kwargs: Any) -> Any:
            if self.kernels[op_name] is first:
                self.kernels[op_name] = self._make_router(op_name)
            return self.kernels[op_name](*args, **kwargs)

        return first

    def _make_router(self, op_name: str) -> Callable:
        usual = self.usual.kernels[op_name]
        dtypes = self.tuning.ops.get(op_name, {})
        winners = {dtype: [self.winner(p) for p in points] for dtype, points in dtypes.items()}
        if {name for names in winners.values() for name in names} <= {self.usual.name}:
            return usual
        places = {dtype: self._places(op_name, dtypes[dtype], names) for dtype, names in winners.items()}
        points = next(iter(dtypes.values()))
        found = (getattr(self.opened(name).module, "route", None) for name in on_processor())
        make = next(filter(None, found), route)
        return make(usual, len(deciding_arrays(points[0])), places)

    def _places(
        self, op_name: str, points: Sequence[Point], winners: Sequence[str]
    ) -> tuple[list[Callable], bytes]:
        """The kernels that win at some size, and the winner's index at each octave of the deciding arrays."""
        names = list(dict.fromkeys(winners))
        which = np.array([names.index(name) for name in winners], np.uint8)
        kernels = [self.opened(name).kernels[op_name] for name in names]
        return kernels, which[nearest_points(points)].tobytes()

    def winner(self, point: Point) -> str:
        """The backend that runs calls of this size: the usual one, unless another is clearly faster."""
        return next((name for name in self._faster(point) if not self._refusal(name)), self.usual.name)

    def _faster(self, point: Point) -> list[str]:
        """The backends that are clearly faster than the usual one, fastest first."""
        usual = point.times.get(self.usual.name)
        names = [n for n, time in point.times.items() if usual is None or clearly_faster(time, usual)]
        return sorted(names, key=lambda name: point.times[name].median)

    def _refusal(self, name: str) -> str:
        """Why a measured backend is not used, "" if it is. Warns once if the backend has changed."""
        if name not in self.order:
            return "it is not in backend_priority"
        if name not in self.refused:
            self.refused[name] = reason = self._describe_change(self.opened(name))
            if reason:
                warnings.warn(
                    f"airllm: {self.tuning.path}: {name} was measured and is not used: {reason}", stacklevel=2
                )
        return self.refused[name]

    def _describe_change(self, backend: Backend) -> str:
        measured = self.tuning.machine.backends[backend.name]
        same = backend.why_not or backend.device == measured
        return backend.why_not if same else f"its device is {backend.device}, measured: {measured}"

    # ---- explanations ----

    def points(self, op_name: str) -> list[str]:
        """The measured times of an op and the choice, one line per size."""
        return [
            self._line(op_name, dtype, _shapes(point), point)
            for dtype, points in self.tuning.ops.get(op_name, {}).items()
            for point in points
        ]

    def rows(self) -> list[dict[str, Any]]:
        """All measured times with the "winner" of each row, as plain values for JSON."""
        return [
            {
                "op": op,
                "dtype": dtype,
                "shapes": [list(shape) for shape in _shapes(point)],
                "us": {name: [time.median, time.low, time.high] for name, time in point.times.items()},
                "winner": self.winner(point),
            }
            for op, dtypes in self.tuning.ops.items()
            for dtype, points in dtypes.items()
            for point in points
        ]

    def summary(self, op_name: str) -> list[str]:
        """The sizes at which an op runs on another backend than the usual one, one line per dtype."""
        lines = []
        for dtype, points in self.tuning.ops.get(op_name, {}).items():
            found: dict[str, list[str]] = {}
            for point in points:
                if (name := self.winner(point)) != self.usual.name:
                    found.setdefault(name, []).append(" x ".join(map(str, _shapes(point))))
            where = "; ".join(f"{name} at {', '.join(sizes)}" for name, sizes in found.items())
            lines += [f"{op_name} {dtype}: {where}"] if where else []
        return lines

    def explain(self, op_name: str, shapes: Sequence[tuple[int, ...]], dtype: str) -> str:
        """Which backend runs a call with these shapes and dtype, and why."""
        points = self.tuning.ops.get(op_name, {}).get(dtype)
        if not points:
            return f"{case(op_name, shapes, dtype)}: {self.usual.name}: {UNMEASURED}"
        names = deciding_arrays(points[0])
        if len(shapes) < len(names):
            expected = f"expected {' and '.join(names)}, of which {self.tuning.path} has times"
            raise ValueError(f"explain: {op_name} has {len(shapes)} arrays, {expected}")
        sizes = tuple(octave_of(math.prod(shape)) for shape in shapes[: len(names)])
        return self._line(op_name, dtype, shapes, points[nearest_points(points)[sizes]])

    def _line(self, op_name: str, dtype: str, shapes: Sequence[tuple[int, ...]], point: Point) -> str:
        winner = self.winner(point)
        measured = _shapes(point)
        where = "" if list(shapes[: len(measured)]) == measured else f"as measured at {_text(measured)}: "
        others = sorted(point.times.items(), key=lambda item: (item[0] != winner, item[1].median))
        reasons = [f"{name}{',' if name == winner else ''} {us(time.median)}" for name, time in others]
        refused = {name: self._refusal(name) for name in self._faster(point)}
        reasons += [f"{name} is not used: {reason}" for name, reason in refused.items() if reason]
        fastest = min(point.times, key=lambda name: point.times[name].median)
        if fastest not in (winner, *refused):
            reasons.append(f"{winner} comes first in the order, and {fastest} is not clearly faster")
        return f"{case(op_name, shapes, dtype)}: {where}{'; '.join(reasons)}"


def clearly_faster(time: Time, than: Time) -> bool:
    """Whether `time` is faster than `than` by more than MARGIN, and their quartile ranges do not overlap."""
    return time.median * MARGIN < than.median and time.high < than.low


def deciding_arrays(point: Point) -> list[str]:
    """Names of the arrays whose sizes decide: the first two."""
    return list(point.arrays)[:2]


def octave_of(size: int) -> int:
    """The index of a size in a table."""
    return min(size.bit_length(), OCTAVES - 1)


def nearest_points(points: Sequence[Point]) -> np.ndarray:
    """The index in `points` of the nearest one, for each octave of each deciding array."""
    names = deciding_arrays(points[0])
    centres = np.arange(OCTAVES) - 0.5  # a size of n bits is from 2^(n-1) to below 2^n
    distances: Any = 0
    for axis, name in enumerate(names):
        measured = np.log2([max(1, math.prod(point.arrays[name])) for point in points])
        squares = (centres[:, None] - measured) ** 2
        distances = distances + (squares if axis else squares.reshape(OCTAVES, *[1] * (len(names) - 1), -1))
    return np.argmin(distances, axis=-1)


def route(usual: Callable, arrays: int, tables: Mapping[str, tuple[list[Callable], bytes]]) -> Callable:
    """A function that dispatches calls to the kernels of `tables` by its first `arrays` arguments.

    Used if `tensor_ops_cpp.route` is not built, which takes a tenth of the time.
    """

    measured = {np.dtype(getattr(ml_dtypes, name, name)): table for name, table in tables.items()}

    def kernel_of(args: tuple) -> Callable:
        if len(args) < arrays:
            return usual
        place, dtype = 0, None
        for array in args[:arrays]:
            if type(array) is not np.ndarray and type(array) is not np.memmap:
                return usual
            place = place * OCTAVES + octave_of(array.size)
            own = array.dtype
            if own.kind not in INDEX_KINDS:
                if own not in measured or (dtype is not None and own != dtype):
                    return usual
                dtype = own
        if dtype is None:
            return usual
        kernels, places = measured[dtype]
        return kernels[places[place]]

    def routed(*args: Any, **kwargs: Any) -> Any:
        return kernel_of(args)(*args, **kwargs)

    return routed


# ---- text ----


def _shapes(point: Point) -> list[tuple[int, ...]]:
    return [point.arrays[name] for name in deciding_arrays(point)]


def _text(shapes: Iterable[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))


def case(op_name: str, shapes: Iterable[tuple[int, ...]], dtype: str) -> str:
    return f"{op_name} {_text(shapes)}{'' if dtype == 'float32' else f' {dtype}'}"


def us(median: float) -> str:
    """A time as text with three significant digits: in us, or in ms from 1000 us."""
    value, unit = (median, "us") if median < 1000 else (median / 1000, "ms")
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
