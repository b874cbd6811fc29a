"""An op is declared once: the axes of its arrays, its meaning, and the NumPy code that defines it.

    @op(x="... d", weight="d", out="... d")
    def rms_norm(x, weight, eps=1e-6):
        '''Scale each row of `x` to unit root-mean-square, then by `weight`.'''
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight

From that follow the signature, the checks and their messages, the dispatch, the kernel of last resort,
the float64 truth and the random inputs of tests and benchmarks, and the bytes an op must move.
"""

import functools
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from airllm.arrays import as_kind_of, as_numpy, device_of, is_dense, overlap, place_of
from airllm.backends import registry

OPS: dict[str, "Op"] = {}
DTYPES = tuple(np.dtype(dtype) for dtype in (np.float32, np.float16, ml_dtypes.bfloat16))
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_DTYPE_NAMES = "float32, float16 or bfloat16"


def op(**axes: str) -> Callable[[Callable], Callable]:
    """Declare an op. The keywords are the axes of its array parameters, and of `out`.

    "..." stands for any number of leading axes. The decorated function gets arrays of one dtype, float32
    or float64, and returns that dtype.
    """

    def declare(definition: Callable) -> Callable:
        declared = OPS[definition.__name__] = Op(
            definition, {name: tuple(a.split()) for name, a in axes.items()}
        )
        registry.declare(declared.name, declared.define)
        return declared.function()

    return declare


class Op:
    """A declared op: see the module's documentation."""

    def __init__(self, definition: Callable, axes: dict[str, tuple[str, ...]]):
        self.name, self.definition = definition.__name__, definition
        self.out = axes.pop("out")
        self.arrays = axes
        parameters = list(inspect.signature(definition).parameters.values())
        if [p.name for p in parameters[: len(axes)]] != list(axes):
            raise TypeError(f"{self.name}: its arrays {list(axes)} must be its first parameters")
        self.defaults = {p.name: p.default for p in parameters[len(axes) :]}
        keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=None)
        self.signature = inspect.Signature([*parameters, keyword("out"), keyword("backend")])

    def __repr__(self) -> str:
        return f"<op {self.name}{self.signature}>"

    # The way of a call

    def function(self) -> Callable:
        """The public function: hands the arrays to the kernel in use, which rejects what it cannot take."""
        name, scoped = self.name, registry.scoped_choice

        @functools.wraps(self.definition)
        def call(*args, backend=None, **kwargs):
            try:
                if backend is not None:
                    return registry.current(backend).kernels[name](*args, **kwargs)
                return (scoped() or registry.process_wide).kernels[name](*args, **kwargs)
            except (TypeError, ValueError):
                pass  # not one for the kernel as it stands: prepare it, or say what is wrong with it
            return self.prepared(args, {**kwargs, "backend": backend})

        call.__signature__ = self.signature  # type: ignore[attr-defined]
        return call

    def prepared(self, args: tuple, kwargs: dict) -> Any:
        """The call for arguments that no kernel takes as they are: strides, lists, float64, DLPack."""
        bound = self._bound(args, kwargs)
        bound.apply_defaults()
        given = [bound.arguments.pop(array) for array in self.arrays]
        out, backend = bound.arguments.pop("out"), registry.current(bound.arguments.pop("backend"))
        kernel, parameters = backend.kernels[self.name], bound.arguments
        if devices := [found for a in (*given, out) if (found := device_of(a))]:
            if not backend.takes_device_arrays:
                first = next(
                    n for n, a in zip([*self.arrays, "out"], (*given, out), strict=True) if device_of(a)
                )
                raise TypeError(f"{self.name}: {first} has device {devices[0]}, expected host memory")
            return kernel(*given, **parameters, out=out)
        arrays = [self._host(array, value) for array, value in zip(self.arrays, given, strict=True)]
        target: Any = None if out is None else self._host("out", out)
        shape = self.check(arrays, target, (*DTYPES, FLOAT64))
        if any(a.dtype not in DTYPES for a in arrays):
            kernel = self.define  # float64 is never narrowed
        alike = self._alike(arrays, shape)
        if target is not None and target.dtype == alike[0].dtype and is_dense(target):
            kernel(*alike, **parameters, out=target)
            return out
        with np.errstate(all="ignore"):  # too large for float16 is infinite, as in the kernels
            result = kernel(*alike, **parameters).astype(arrays[0].dtype, copy=False)
        if out is None:
            return as_kind_of(given[0], result)
        target[...] = result
        return out

    def _bound(self, args: tuple, kwargs: dict) -> inspect.BoundArguments:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            says = str(error).replace("missing a required argument: ", "missing required argument ")
            raise TypeError(f"{self.name}() {says}") from None
        self.check_parameters(bound.arguments)
        for name in self.defaults.keys() & bound.arguments.keys():
            if isinstance(self.defaults[name], float):
                bound.arguments[name] = float(bound.arguments[name])
        return bound

    def define(self, *args: Any, out: np.ndarray | None = None, **parameters: Any) -> Any:
        """The definition as a kernel: float32 arithmetic (float64 for float64), the first array's dtype."""
        bound = self._bound(args, parameters).arguments
        arrays = [bound.pop(array) for array in self.arrays]
        shape = self.check(arrays, out, (*DTYPES, FLOAT64))
        wide = FLOAT64 if any(a.dtype == FLOAT64 for a in arrays) else FLOAT32
        result = self._computed([a.astype(wide, copy=False) for a in arrays], bound, shape)
        with np.errstate(all="ignore"):  # too large for float16 is infinite, as in the kernels
            result = result.astype(arrays[0].dtype, copy=False)
        if out is None:
            return result
        out[...] = result
        return out

    def exact(self, *args: Any, **parameters: Any) -> np.ndarray:
        """The definition in float64: what every kernel must agree with."""
        bound = self.signature.bind(*args, **parameters).arguments
        arrays = [np.asarray(bound.pop(array)).astype(FLOAT64) for array in self.arrays]
        return self._computed(arrays, bound, self.out_shape(arrays))

    def _computed(self, arrays: list[np.ndarray], parameters: dict, shape: tuple[int, ...]) -> np.ndarray:
        if 0 in shape:
            return np.empty(shape, arrays[0].dtype)  # a reduction over nothing has no NumPy answer
        with np.errstate(all="ignore"):  # exp(-x) overflows on its way to the right answer
            return np.asarray(self.definition(*arrays, **parameters))

    # Checks

    def check(self, arrays: Sequence[Any], out: Any = None, dtypes: tuple = DTYPES) -> tuple[int, ...]:
        """The result's shape; TypeError or ValueError, naming the argument, if an argument is wrong.

        Arrays need `shape` and `dtype` only, so that a backend can check arrays of its own kind.
        """
        for array, value in zip(self.arrays, arrays, strict=True):
            if not hasattr(value, "dtype") or isinstance(value, np.ma.MaskedArray):  # no op has masks
                raise TypeError(
                    f"{self.name}: {array} has type {type(value).__name__}, expected a NumPy array"
                )
            if value.dtype not in dtypes:
                expected = _DTYPE_NAMES if dtypes is DTYPES else f"float64, {_DTYPE_NAMES}"
                raise TypeError(f"{self.name}: {array} has dtype {value.dtype}, expected {expected}")
            if dtypes is DTYPES:
                self._check_agrees(array, value.dtype, arrays[0].dtype)
        shape = self.out_shape(arrays)
        if out is not None:
            self._check_out(arrays, out, shape)
        return shape

    def check_parameters(self, parameters: dict[str, Any]) -> None:
        """TypeError or ValueError if a parameter that is a number by its default is given none."""
        for name, default in self.defaults.items():
            value = parameters.get(name, default)
            found = f"{self.name}: {name} has type {type(value).__name__}, expected a number"
            if isinstance(default, float) and (
                not isinstance(value, numbers.Real) or isinstance(value, bool)
            ):
                raise TypeError(found)
            try:
                float(value) if isinstance(default, float) else None
            except OverflowError:
                raise ValueError(f"{found} that a float holds") from None

    def _check_agrees(self, array: str, dtype: np.dtype, first: np.dtype) -> None:
        """Arrays share one dtype; a weight, which has no leading axes, may also be float32."""
        allowed = {first} if "..." in self.arrays[array] else {first, FLOAT32}
        if dtype not in allowed:
            expected = " or ".join(str(a) for a in sorted(allowed, key=str))
            raise TypeError(f"{self.name}: {array} has dtype {dtype}, expected {expected}")

    def out_shape(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Shape of the result; ValueError, naming the array that breaks the declaration, if there is none."""
        sizes: dict[str, int] = {}
        batch: tuple[int, ...] = ()
        for (array, axes), value in zip(self.arrays.items(), arrays, strict=True):
            shape = tuple(value.shape)
            inner = [axis for axis in axes if axis != "..."]
            lead = len(shape) - len(inner)
            known = ", ".join(f"{axis}={sizes[axis]}" for axis in inner if axis in sizes)
            known += f"{', ' if known else ''}...={batch}" if batch and lead > 0 and "..." in axes else ""
            fits = lead == 0 or (lead > 0 and "..." in axes)
            fits = fits and all(
                sizes.setdefault(axis, n) == n for axis, n in zip(inner, shape[lead:], strict=True)
            )
            try:
                batch = np.broadcast_shapes(batch, shape[: max(lead, 0)])
            except ValueError:
                fits = False
            if not fits:
                where = f" with {known}" if known else ""
                raise ValueError(
                    f"{self.name}: {array} has shape {shape}, expected ({' '.join(axes)}){where}"
                )
        return (*batch, *(sizes[axis] for axis in self.out if axis != "..."))

    def _check_out(self, arrays: Sequence[Any], out: Any, shape: tuple[int, ...]) -> None:
        if not hasattr(out, "dtype") or not hasattr(out, "shape"):
            raise TypeError(f"{self.name}: out has type {type(out).__name__}, expected a NumPy array")
        if tuple(out.shape) != shape:
            raise ValueError(f"{self.name}: out has shape {tuple(out.shape)}, expected {shape}")
        if out.dtype != arrays[0].dtype:
            raise TypeError(f"{self.name}: out has dtype {out.dtype}, expected {arrays[0].dtype}")
        if not isinstance(out, np.ndarray):
            return
        if not out.flags.writeable:
            raise ValueError(f"{self.name}: out is read-only, expected a writeable array")
        for array, value in zip(self.arrays, arrays, strict=True):
            in_place = self.arrays[array] == self.out
            same = in_place and isinstance(value, np.ndarray) and place_of(value) == place_of(out)
            if isinstance(value, np.ndarray) and not same and overlap(out, value):
                instead = f" or exactly {array}" if in_place else ""
                raise ValueError(f"{self.name}: out overlaps {array}, expected memory of its own{instead}")

    # Arguments as a kernel takes them

    def _host(self, name: str, value: Any) -> np.ndarray:
        """`value` as a NumPy array of native byte order, without a copy where that can be."""
        wrong = f"{self.name}: {name} has type {type(value).__name__}, expected a"
        try:
            array = as_numpy(value)
        except Exception as error:  # another library's export may fail in any way
            raise TypeError(f"{wrong}n array: {error}") from error
        if (
            array.dtype == object
            or isinstance(value, np.ma.MaskedArray)
            or (name == "out" and not _has_memory(value))
        ):
            raise TypeError(f"{wrong} NumPy array")
        return array if name == "out" else array.astype(array.dtype.newbyteorder("="), copy=False)

    def _alike(self, arrays: list[np.ndarray], shape: tuple[int, ...]) -> list[np.ndarray]:
        """The arrays C-contiguous, in one dtype, and with their leading axes broadcast."""
        batch = shape[: len(shape) - sum(axis != "..." for axis in self.out)]
        dtype = next((d for d in (FLOAT64, FLOAT32) if any(a.dtype == d for a in arrays)), arrays[0].dtype)
        if len({a.dtype for a in arrays}) > 1 and dtype not in (FLOAT64, FLOAT32):
            dtype = FLOAT32  # float16 with bfloat16: only float32 holds both
        _, *others = self.arrays.values()
        keep = dtype == FLOAT32 and all("..." not in axes for axes in others)  # kernels take float32 weights
        alike: list[np.ndarray] = []
        for axes, a in zip(self.arrays.values(), arrays, strict=True):
            lead = a.ndim - sum(axis != "..." for axis in axes)
            if "..." in axes and a.shape[:lead] != batch and (lead or not alike):
                a = np.broadcast_to(a, (*batch, *a.shape[lead:]))
            alike.append(np.require(a, a.dtype if keep and not alike else dtype, ["C", "ALIGNED"]))
        return alike

    # What tests and benchmarks need

    def sample(
        self, rng: np.random.Generator, dtype: Any = np.float32, batch: tuple = (), **sizes: int
    ) -> list[np.ndarray]:
        """Random arrays, one per array parameter, whose named axes have these sizes."""
        shapes = [
            [n for a in axes for n in (batch if a == "..." else (sizes[a],))] for axes in self.arrays.values()
        ]
        return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]

    @staticmethod
    def nbytes(arrays: Sequence[np.ndarray], out: np.ndarray) -> int:
        """Bytes that must move: every array read once, the result written once."""
        return sum(a.nbytes for a in arrays) + out.nbytes


def _has_memory(value: Any) -> bool:
    """Whether writing to its NumPy view changes `value`: not so for a list."""
    return hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__")
