"""The text that declares an array of an op: named axes, dtypes and broadcasting.

The text has the axes, with "..." for any number of leading ones. A colon and the kind follow, except for the
op's own float arrays. An axis with a "?" is optional, as in the signatures of NumPy's generalized ufuncs:
"... m? k" is a matrix, a stack of matrices, or a vector (k).

    "... d"                floats of one dtype, that of the first array; a weight (no "...") may also be
                           float32. Leading axes broadcast as in NumPy
    "... s d : any float"  floats of any dtype; leading axes broadcast to those of the op's own arrays
    "... d : mask"         bool (True: keep) or floats to add; all axes broadcast to the ones given
    "n k : stored"         floats of any dtype, or a Quantized: a checkpoint's weights
    "... k : quantized"    a Quantized
    "... : index of v"     integers from 0 to v - 1
    "... : number"         integers or floats
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from airllm.formats import FORMATS, Quantized
from airllm.ops.dlpack import device_of

DTYPES = tuple(np.dtype(dtype) for dtype in (np.float32, np.float16, ml_dtypes.bfloat16))
FLOAT32, FLOAT64, BOOL = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.bool_)
_FLOATS = "float32, float16 or bfloat16"
_EXPECTED = {"mask": "bool, ", "index": "int64 or int32", "number": "whole numbers or floats"}


@dataclass(frozen=True)
class Operand:
    """An array parameter or a result of an op."""

    name: str
    axes: tuple[str, ...]
    kind: str = "own"
    of: str = ""  # an index is below the length of this axis
    optional: bool = False
    droppable: frozenset[str] = frozenset()  # the optional axes; a vector lacks them

    @classmethod
    def parse(cls, name: str, text: str, optional: bool = False) -> "Operand":
        axes, _, kind = text.partition(":")
        kind, _, of = kind.strip().partition(" of ")
        droppable = frozenset(axis[:-1] for axis in axes.split() if axis.endswith("?"))
        return cls(name, tuple(axes.replace("?", "").split()), kind or "own", of, optional, droppable)

    @property
    def inner(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.axes if axis != "...")

    @property
    def leads(self) -> bool:
        """Whether it accepts any number of leading axes."""
        return "..." in self.axes

    @property
    def is_float(self) -> bool:
        return self.kind in ("own", "any float", "stored")

    def __str__(self) -> str:
        return f"({' '.join(self.axes)})"

    def dropped_axes(self, ndim: int) -> frozenset[str]:
        """The axes that an array with `ndim` axes lacks."""
        return self.droppable if ndim == len(self.inner) - len(self.droppable) else frozenset()

    def full_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """`shape` with size 1 for each axis that it lacks."""
        if not (dropped := self.dropped_axes(len(shape))):
            return tuple(shape)
        sizes = iter(shape)
        return tuple(1 if axis in dropped else next(sizes) for axis in self.inner)

    def expected_axes(self, ndim: int) -> str:
        """The axes expected of an array with `ndim` axes, for error messages."""
        vector = f"({' '.join(axis for axis in self.inner if axis not in self.droppable)})"
        if self.dropped_axes(ndim):
            return vector
        return f"{self} or {vector}" if self.droppable and ndim < len(self.inner) else str(self)

    def check_type(self, op: str, value: Any, float64: bool) -> None:
        """TypeError unless `value` is an array of any library, or a Quantized if the kind allows it."""
        if isinstance(value, Quantized) and self.kind in ("stored", "quantized"):
            return
        wrong = f"{op}: {self.name} has"
        is_array = hasattr(value, "dtype") and not isinstance(
            value, np.ma.MaskedArray
        )  # ops do not support masked arrays
        if not is_array or self.kind == "quantized":
            expected = {"quantized": "Quantized", "stored": "NumPy array or a Quantized"}
            found = f"type {type(value).__name__}, expected a {expected.get(self.kind, 'NumPy array')}"
            raise TypeError(f"{wrong} {found}")
        if not self._accepts(value.dtype, float64):
            floats = f"float64, {_FLOATS}" if float64 else _FLOATS
            expected_dtype = _EXPECTED.get(self.kind, "") + (
                floats if self.kind not in ("index", "number") else ""
            )
            raise TypeError(f"{wrong} dtype {value.dtype}, expected {expected_dtype}")

    def _accepts(self, dtype: np.dtype, float64: bool) -> bool:
        if self.kind == "index":
            return dtype.kind in "iu" if float64 else dtype in (np.int64, np.int32)
        floats = dtype in DTYPES or (float64 and dtype == FLOAT64)
        return (
            floats
            or (self.kind == "mask" and dtype == BOOL)
            or (self.kind == "number" and dtype.kind in "iuf")
        )

    def check_range(self, op: str, value: Any, sizes: dict[str, int]) -> None:
        """ValueError if an index in host memory is out of range."""
        if self.kind != "index" or not isinstance(value, np.ndarray) or not value.size:
            return
        for found in (value.min(), value.max()):
            if not 0 <= found < sizes[self.of]:
                raise ValueError(f"{op}: {self.name} has value {found}, expected 0 to {sizes[self.of] - 1}")

    def random(self, rng: np.random.Generator, dtype: Any, batch: tuple, sizes: dict[str, int]) -> Any:
        """Standard normal floats, or integers in range; `batch` and `sizes` give the shape."""
        shape = (*(batch if self.leads else ()), *(sizes[axis] for axis in self.inner))
        if self.kind in ("index", "number"):
            return rng.integers(0, sizes.get(self.of, 1000), shape)
        normal = rng.standard_normal(shape, np.float32)
        if self.kind == "quantized":
            return Quantized(FORMATS["q8_0"].encode(normal), "q8_0")
        return normal.astype(FLOAT32 if self.kind == "mask" else dtype)


@dataclass(frozen=True)
class Requirement:
    """A condition on axis sizes: its text and its predicate."""

    text: str
    holds: Callable[..., Any]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.holds).parameters)


class Shapes:
    """The sizes of an op's axes, collected from one array after the other.

    With `in_full`, arrays must have all axes, as kernels require; else they may drop the optional ones.
    """

    def __init__(self, op: str, requirements: Sequence[Requirement] = (), in_full: bool = False):
        self.op, self.requirements, self.in_full = op, requirements, in_full
        self.sizes: dict[str, int] = {}
        self.batch: tuple[int, ...] = ()
        self.dropped: frozenset[str] = frozenset()

    def of(self, operand: Operand) -> tuple[int, ...]:
        """The shape of a result."""
        inner = (self.sizes[axis] for axis in operand.inner if axis not in self.dropped)
        return (*(self.batch if operand.leads else ()), *inner)

    def full_shape_of(self, operand: Operand) -> tuple[int, ...]:
        """The shape of a result with dropped axes restored as size 1."""
        return (*(self.batch if operand.leads else ()), *(self.sizes[axis] for axis in operand.inner))

    def add(self, operand: Operand, value: Any) -> None:
        """Record an array's sizes; ValueError that names it and the known sizes if its shape does not fit."""
        shape, before = tuple(value.shape), self.known_sizes(operand, len(value.shape))
        fits = self._broadcasts(shape, operand) if operand.kind == "mask" else self._matches(shape, operand)
        if not fits:
            where = f" with {before}" if before else ""
            expected = operand if self.in_full else operand.expected_axes(len(shape))
            raise ValueError(f"{self.op}: {operand.name} has shape {shape}, expected {expected}{where}")
        for requirement in self.requirements:
            axes = requirement.axes
            if set(axes) & set(operand.inner) and all(axis in self.sizes for axis in axes):
                self._check(requirement, operand, shape)

    def known_sizes(self, operand: Operand, ndim: int) -> str:
        """The sizes that earlier arrays fix for this one, for error messages."""
        sizes = [f"{axis}={self.sizes[axis]}" for axis in operand.inner if axis in self.sizes]
        if self.batch and operand.leads and ndim > len(operand.inner):
            sizes.append(f"...={self.batch}")
        return ", ".join(sizes)

    def _check(self, requirement: Requirement, operand: Operand, shape: tuple[int, ...]) -> None:
        sizes = {axis: self.sizes[axis] for axis in requirement.axes}
        if not requirement.holds(**sizes):
            found = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
            expected = f"expected {operand} with {requirement.text}, found {found}"
            raise ValueError(f"{self.op}: {operand.name} has shape {shape}, {expected}")

    def _broadcasts(self, shape: tuple[int, ...], operand: Operand) -> bool:
        full = self.of(operand)
        return _broadcast(shape, full) == full

    def _matches(self, shape: tuple[int, ...], operand: Operand) -> bool:
        if not self.in_full and (dropped := operand.dropped_axes(len(shape))):
            shape, self.dropped = operand.full_shape(shape), self.dropped | dropped
        lead = len(shape) - len(operand.inner)
        if lead < 0 or (lead > 0 and not operand.leads):
            return False
        inner = zip(operand.inner, shape[lead:], strict=True)
        if not all(self.sizes.setdefault(axis, size) == size for axis, size in inner):
            return False
        batch = _broadcast(self.batch, shape[:lead])
        if batch is None or (operand.kind in ("any float", "stored") and batch != self.batch):
            return False
        self.batch = batch
        return True


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def device_of_operand(value: Any) -> str:
    """Name of the device that holds an array or a Quantized's blocks; "" for host memory."""
    return device_of(value.data if isinstance(value, Quantized) else value)
