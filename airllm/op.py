"""An op is declared once: the axes of its arrays, its meaning, and the NumPy code that defines it.

    @op(x="... d", weight="d", out="... d")
    def rms_norm(x, weight, eps: float = 1e-6):
        '''Scale each row of `x` to unit root-mean-square, then by `weight`.'''
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight

From that follow the signature, the checks and their messages, the dispatch, the kernel of last resort,
the float64 truth and the random inputs of tests and benchmarks, and the bytes an op must move.
`airllm.operands` says what the text of an array may be.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm import parameters
from airllm.arrays import as_kind_of, as_numpy, is_dense, overlap, place_of
from airllm.backends import registry
from airllm.formats import Quantized
from airllm.operands import (
    BOOL,
    DTYPES,
    FLOAT32,
    FLOAT64,
    Operand,
    Requirement,
    Shapes,
    device_of_operand,
)

__all__ = ["DTYPES", "OPS", "Op", "op"]

OPS: dict[str, "Op"] = {}


def op(
    *, out: str | tuple[str, ...], requires: Mapping[str, Callable] | None = None, **axes: str
) -> Callable[[Callable], Callable]:
    """Declare an op. The keywords are the axes of its array parameters, and of `out`, its result or results.

    An array whose default is None may be left out. `requires` says in words, and as functions of axes, what
    their sizes must be to each other. The decorated function gets arrays of one dtype, float32 or float64
    (stored weights unpacked to it), and returns that dtype.
    """

    def declare(definition: Callable) -> Callable:
        outs = (out,) if isinstance(out, str) else out
        rules = [Requirement(text, holds) for text, holds in (requires or {}).items()]
        declared = OPS[definition.__name__] = Op(definition, axes, outs, rules)
        registry.declare(declared.name, declared.define)
        return declared.function()

    return declare


class Op:
    """A declared op: see the module's documentation."""

    def __init__(
        self,
        definition: Callable,
        axes: Mapping[str, str],
        outs: Sequence[str],
        requirements: Sequence[Requirement] = (),
    ):
        self.name, self.definition, self.requirements = definition.__name__, definition, requirements
        given = inspect.signature(definition).parameters
        if unknown := set(axes) - set(given):
            raise TypeError(f"{self.name}: its arrays {sorted(unknown)} must be parameters of it")
        self.operands = tuple(
            Operand.declared(name, axes[name], parameter.default is None)
            for name, parameter in given.items()
            if name in axes
        )
        names = ["out"] if len(outs) == 1 else [f"out[{i}]" for i in range(len(outs))]
        self.outs = tuple(Operand.declared(name, text) for name, text in zip(names, outs, strict=True))
        self.parameters = {name: p for name, p in given.items() if name not in axes}
        self.signature = inspect.Signature([*given.values(), *self._keywords()])

    def _keywords(self) -> list[inspect.Parameter]:
        names = ["backend"] if self.gives_quantized else ["out", "backend"]
        return [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]

    def __repr__(self) -> str:
        return f"<op {self.name}{self.signature}>"

    @property
    def arrays(self) -> dict[str, tuple[str, ...]]:
        """Array parameters and their axes."""
        return {operand.name: operand.axes for operand in self.operands}

    @property
    def out(self) -> tuple[str, ...]:
        """Axes of the result, the first one where there are several."""
        return self.outs[0].axes

    @property
    def defaults(self) -> dict[str, Any]:
        """The parameters that are no arrays, with their defaults."""
        return {name: p.default for name, p in self.parameters.items()}

    @property
    def gives_quantized(self) -> bool:
        """Whether the result is no array but a Quantized, which has no `out=`."""
        return self.outs[0].kind == "quantized"

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
            except (TypeError, ValueError, NotImplementedError):
                pass  # not one for the kernel as it stands: prepare it, or say what is wrong with it
            return self.prepared(args, {**kwargs, "backend": backend})

        call.__signature__ = self.signature  # type: ignore[attr-defined]
        return call

    def prepared(self, args: tuple, kwargs: dict) -> Any:
        """The call for arguments that no kernel takes as they are: strides, lists, float64, DLPack.

        A kernel that lacks a case, such as a format of stored weights, raises NotImplementedError: the
        definition computes it.
        """
        arguments = self._bound(args, kwargs)
        backend = registry.current(arguments.pop("backend"))
        out, kernel = arguments.pop("out", None), backend.kernels[self.name]
        given = [arguments.pop(operand.name) for operand in self.operands]
        if self._on_device(backend, given, out):
            return self._called(kernel, given, arguments, out)
        arrays = [self._host(o, value) for o, value in zip(self.operands, given, strict=True)]
        targets = (
            None
            if out is None
            else [self._host_out(t, o) for t, o in zip(self.each(out), self.outs, strict=True)]
        )
        shapes = self._checked(arrays, targets, float64=True)
        if any(a.dtype == FLOAT64 for o, a in self._floats(arrays)):
            kernel = self.define  # float64 is never narrowed
        alike = self._alike(arrays, shapes)
        try:
            return self._into(kernel, alike, arguments, arrays, given, out, targets)
        except NotImplementedError:
            return self._into(self.define, alike, arguments, arrays, given, out, targets)

    def _on_device(self, backend: registry.Backend, given: Sequence[Any], out: Any) -> bool:
        """Whether arrays lie in a device's memory; TypeError if the backend cannot take them from there."""
        outs = [] if out is None else zip(self.each(out), self.outs, strict=True)
        placed = [
            *((o.name, a) for o, a in zip(self.operands, given, strict=True)),
            *((o.name, a) for a, o in outs),
        ]
        for name, value in placed:
            if device := device_of_operand(value):
                if backend.takes_device_arrays and backend.kernels[self.name] != self.define:
                    return True
                raise TypeError(f"{self.name}: {name} has device {device}, expected host memory")
        return False

    def _called(self, kernel: Callable, arrays: Sequence[Any], arguments: dict, out: Any) -> Any:
        """Calls a kernel as the public function is called, with its own defaults for what has them."""
        arguments = {n: v for n, v in arguments.items() if v is not self.parameters[n].default}
        pairs = list(zip(self.operands, arrays, strict=True))
        required = [a for o, a in pairs if not o.optional]
        named = {o.name: a for o, a in pairs if o.optional and a is not None}
        return kernel(*required, **named, **arguments, **({} if out is None else {"out": out}))

    def _into(
        self,
        kernel: Callable,
        alike: Sequence[Any],
        arguments: dict,
        arrays: Sequence[Any],
        given: Sequence[Any],
        out: Any,
        targets: Sequence[np.ndarray] | None,
    ) -> Any:
        """The kernel's results in `out`, or as arrays of the kind that was given."""
        own, wanted = self.result_dtype(alike), self.result_dtype(arrays)
        if targets is not None and own == wanted and all(map(is_dense, targets)):
            self._called(kernel, alike, arguments, targets[0] if len(targets) == 1 else tuple(targets))
            return out
        result = self._called(kernel, alike, arguments, None)
        if self.gives_quantized:
            return result
        with np.errstate(all="ignore"):  # too large for float16 is infinite, as in the kernels
            results = [r.astype(wanted, copy=False) for r in self.each(result)]
        if targets is None:
            return self._one_or_all([as_kind_of(given[0], r) for r in results])
        for target, r in zip(targets, results, strict=True):
            target[...] = r
        return out

    def _bound(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        """All arguments by name, those that are no arrays checked and as their type."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            says = str(error).replace("missing a required argument: ", "missing required argument ")
            raise TypeError(f"{self.name}() {says}") from None
        bound.apply_defaults()
        return bound.arguments | self.check_parameters(bound.arguments)

    def define(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """The definition as a kernel: float32 arithmetic (float64 for float64), the first array's dtype."""
        arguments = self._bound(args, kwargs)
        arguments.pop("backend"), arguments.pop("out", None)
        arrays = [arguments.pop(operand.name) for operand in self.operands]
        targets = None if out is None else self.each(out)
        shapes = self._checked(arrays, targets, float64=True)
        wide = FLOAT64 if any(a.dtype == FLOAT64 for _, a in self._floats(arrays)) else FLOAT32
        result = self._computed(arrays, wide, arguments, shapes)
        if self.gives_quantized:
            return result
        with np.errstate(all="ignore"):  # too large for float16 is infinite, as in the kernels
            results = [r.astype(self.result_dtype(arrays), copy=False) for r in self.each(result)]
        if targets is None:
            return self._one_or_all(results)
        for target, r in zip(targets, results, strict=True):
            target[...] = r
        return out

    def exact(self, *args: Any, **kwargs: Any) -> Any:
        """The definition in float64: what every kernel must agree with."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        arguments.pop("backend"), arguments.pop("out", None)
        arrays = [arguments.pop(operand.name) for operand in self.operands]
        arrays = [a if a is None or isinstance(a, Quantized) else np.asarray(a) for a in arrays]
        return self._computed(arrays, FLOAT64, arguments, self._shapes(arrays))

    def _computed(self, arrays: Sequence[Any], wide: np.dtype, arguments: dict, shapes: Shapes) -> Any:
        results = [] if self.gives_quantized else [shapes.of(out) for out in self.outs]
        if results and all(0 in shape for shape in results):  # a reduction over nothing has no NumPy answer
            return self._one_or_all([np.empty(shape, wide) for shape in results])
        widened = {o.name: _widened(o, a, wide) for o, a in zip(self.operands, arrays, strict=True)}
        with np.errstate(all="ignore"):  # exp(-x) overflows on its way to the right answer
            result = self.definition(**widened, **arguments)
        return result if isinstance(result, tuple | Quantized) else np.asarray(result)

    def each(self, results: Any) -> Sequence[Any]:
        """One result or several as a sequence; TypeError if they are not as many as the op has."""
        if len(self.outs) == 1:
            return (results,)
        if not isinstance(results, tuple | list) or len(results) != len(self.outs):
            is_several = isinstance(results, tuple | list)
            found = f"{len(results)} arrays" if is_several else f"type {type(results).__name__}"
            raise TypeError(f"{self.name}: out has {found}, expected a tuple of {len(self.outs)} arrays")
        return results

    @staticmethod
    def _one_or_all(results: Sequence[Any]) -> Any:
        return results[0] if len(results) == 1 else tuple(results)

    # Checks

    def check(self, arrays: Sequence[Any], out: Any = None) -> tuple[int, ...]:
        """The (first) result's shape; TypeError or ValueError, naming the argument, if one is wrong.

        `arrays` has one entry per array parameter, None for one left out (the last ones may be missing). They
        need `shape` and `dtype` only, so that a backend can check arrays of its own kind.
        """
        outs = None if out is None else self.each(out)
        return self._checked(self._padded(arrays), outs, float64=False).of(self.outs[0])

    def out_shapes(self, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
        """Shapes of all results."""
        shapes = self._shapes(self._padded(arrays))
        return [shapes.of(out) for out in self.outs]

    def out_shape(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Shape of the (first) result; ValueError, naming the array that breaks the declaration."""
        return self.out_shapes(arrays)[0]

    def check_parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that are no arrays, as their types; TypeError or ValueError if one is none."""
        return {
            name: parameters.checked(self.name, parameter, given[name])
            for name, parameter in self.parameters.items()
            if name in given
        }

    def _padded(self, arrays: Sequence[Any]) -> list[Any]:
        return [*arrays, *[None] * (len(self.operands) - len(arrays))]

    def _shapes(self, arrays: Sequence[Any]) -> Shapes:
        shapes = Shapes(self.name, self.requirements)
        for operand, value in zip(self.operands, arrays, strict=True):
            if value is not None:
                shapes.add(operand, value)
        return shapes

    def _checked(self, arrays: Sequence[Any], outs: Sequence[Any] | None, float64: bool) -> Shapes:
        for operand, value in zip(self.operands, arrays, strict=True):
            if value is None and operand.optional:
                continue
            operand.check_type(self.name, value, float64)
            if not float64 and operand.kind == "own":
                self._check_agrees(operand, value.dtype, arrays)
        shapes = self._shapes(arrays)
        for operand, value in zip(self.operands, arrays, strict=True):
            operand.check_range(self.name, value, shapes.sizes)
        for target, out in zip(outs or (), self.outs, strict=False):
            self._check_out(out, target, arrays, shapes.of(out))
        if outs and len(outs) == 2 and all(isinstance(o, np.ndarray) for o in outs) and overlap(*outs):
            raise ValueError(f"{self.name}: out[1] overlaps out[0], expected memory of its own")
        return shapes

    def _check_agrees(self, operand: Operand, dtype: np.dtype, arrays: Sequence[Any]) -> None:
        """The op's own floats share one dtype; a weight, which has no leading axes, may also be float32."""
        first = next(a.dtype for o, a in zip(self.operands, arrays, strict=True) if o.kind == "own")
        allowed = {first} if operand.leads else {first, FLOAT32}
        if dtype not in allowed:
            expected = " or ".join(str(a) for a in sorted(allowed, key=str))
            raise TypeError(f"{self.name}: {operand.name} has dtype {dtype}, expected {expected}")

    def _check_out(self, out: Operand, target: Any, arrays: Sequence[Any], shape: tuple[int, ...]) -> None:
        if not hasattr(target, "dtype") or not hasattr(target, "shape"):
            raise TypeError(
                f"{self.name}: {out.name} has type {type(target).__name__}, expected a NumPy array"
            )
        if tuple(target.shape) != shape:
            raise ValueError(f"{self.name}: {out.name} has shape {tuple(target.shape)}, expected {shape}")
        dtype = self.result_dtype(arrays)
        if target.dtype != dtype:
            raise TypeError(f"{self.name}: {out.name} has dtype {target.dtype}, expected {dtype}")
        if not isinstance(target, np.ndarray):
            return
        if not target.flags.writeable:
            raise ValueError(f"{self.name}: {out.name} is read-only, expected a writeable array")
        for operand, value in zip(self.operands, arrays, strict=True):
            self._check_apart(out, target, operand, value.data if isinstance(value, Quantized) else value)

    def _check_apart(self, out: Operand, target: np.ndarray, operand: Operand, value: Any) -> None:
        in_place = operand.kind == "own" and operand.axes == out.axes
        if not isinstance(value, np.ndarray) or (in_place and place_of(value) == place_of(target)):
            return
        if overlap(target, value):
            instead = f" or exactly {operand.name}" if in_place else ""
            where = f"{out.name} overlaps {operand.name}, expected memory of its own{instead}"
            raise ValueError(f"{self.name}: {where}")

    def _floats(self, arrays: Sequence[Any]) -> list[tuple[Operand, np.ndarray]]:
        """The operands that are computed with, and their arrays: not masks, indices or quantized ones."""
        pairs = zip(self.operands, arrays, strict=True)
        return [(o, a) for o, a in pairs if o.is_float and a is not None and not isinstance(a, Quantized)]

    def result_dtype(self, arrays: Sequence[Any]) -> np.dtype:
        """That of the op's own first array, else of a stored one; float32 where there is neither."""
        floats = sorted(self._floats(self._padded(arrays)), key=lambda pair: pair[0].kind != "own")
        return floats[0][1].dtype if floats else FLOAT32

    # Arguments as a kernel takes them

    def _host(self, operand: Operand, value: Any) -> Any:
        """`value` as a NumPy array of native byte order, without a copy where that can be."""
        if (value is None and operand.optional) or isinstance(value, Quantized):
            return value
        if operand.kind == "quantized":
            operand.check_type(self.name, value, True)
        array = self._as_array(operand, value)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _host_out(self, value: Any, out: Operand) -> np.ndarray:
        if not hasattr(value, "__array_interface__") and not hasattr(value, "__dlpack__"):  # a list, say
            raise TypeError(
                f"{self.name}: {out.name} has type {type(value).__name__}, expected a NumPy array"
            )
        return self._as_array(out, value)

    def _as_array(self, operand: Operand, value: Any) -> np.ndarray:
        wrong = f"{self.name}: {operand.name} has type {type(value).__name__}, expected a"
        try:
            array = as_numpy(value)
        except Exception as error:  # another library's export may fail in any way
            raise TypeError(f"{wrong}n array: {error}") from error
        if array.dtype == object or isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{wrong} NumPy array" + " or a Quantized" * (operand.kind == "stored"))
        return array

    def _alike(self, arrays: Sequence[Any], shapes: Shapes) -> list[Any]:
        """The arrays C-contiguous, in dtypes that kernels take, the op's own with equal leading axes."""
        own = [a.dtype for o, a in self._floats(arrays) if o.kind == "own"]
        others = [a.dtype for o, a in self._floats(arrays) if o.kind == "any float"]
        wide = any(a.dtype == FLOAT64 for _, a in self._floats(arrays))
        weights_only = all(not o.leads for o in self._owned()[1:])
        alike: list[Any] = []
        for operand, a in zip(self.operands, arrays, strict=True):
            if a is None or isinstance(a, Quantized):
                alike.append(a)
                continue
            if operand.kind == "own":
                first = operand is self._owned()[0]
                keep = first and weights_only and not wide  # kernels take float32 weights
                dtype = a.dtype if keep else FLOAT64 if wide else _common(own)
                a = _with_batch(operand, a, shapes, first)
            else:
                dtype = _dtype_of_other(operand, a.dtype, wide, others)
            alike.append(np.require(a, dtype, ["C", "ALIGNED"]))
        return alike

    def _owned(self) -> list[Operand]:
        return [operand for operand in self.operands if operand.kind == "own"]

    # What tests and benchmarks need

    def sample(
        self, rng: np.random.Generator, dtype: Any = np.float32, batch: tuple = (), **sizes: int
    ) -> list[Any]:
        """Random arrays, one per array that must be given, whose named axes have these sizes."""
        return [o.random(rng, dtype, batch, sizes) for o in self.operands if not o.optional]

    def sample_optional(
        self, rng: np.random.Generator, dtype: Any = np.float32, batch: tuple = (), **sizes: int
    ) -> dict[str, Any]:
        """Random arrays for those that may be left out."""
        return {o.name: o.random(rng, dtype, batch, sizes) for o in self.operands if o.optional}

    @staticmethod
    def nbytes(arrays: Sequence[Any], *outs: np.ndarray) -> int:
        """Bytes that must move: every array read once, the results written once."""
        stored = [a.data if isinstance(a, Quantized) else a for a in arrays if a is not None]
        return sum(a.nbytes for a in (*stored, *outs))


def _widened(operand: Operand, value: Any, wide: np.dtype) -> Any:
    """An array as the definition gets it."""
    if operand.kind == "stored" and isinstance(value, Quantized):
        value = value.dequantize()
    if isinstance(value, np.ndarray) and (
        operand.is_float or (operand.kind == "mask" and value.dtype != BOOL)
    ):
        return value.astype(wide, copy=False)
    return value


def _with_batch(operand: Operand, a: np.ndarray, shapes: Shapes, first: bool) -> np.ndarray:
    """With all leading axes; an array without any, after the first, is one that the kernel shares."""
    lead = a.ndim - len(operand.inner)
    if not operand.leads or a.shape[:lead] == shapes.batch or not (lead or first):
        return a
    return np.broadcast_to(a, (*shapes.batch, *a.shape[lead:]))


def _common(dtypes: Sequence[np.dtype]) -> np.dtype:
    """The dtype that holds them all: float16 with bfloat16 needs float32."""
    return dtypes[0] if len(set(dtypes)) == 1 else FLOAT32


def _dtype_of_other(operand: Operand, dtype: np.dtype, wide: bool, others: Sequence[np.dtype]) -> np.dtype:
    """The dtype in which a kernel takes an array that is not one of the op's own floats."""
    if operand.kind == "any float":
        return FLOAT64 if wide else _common(others)
    if operand.kind == "stored":
        return FLOAT64 if wide else dtype
    if operand.kind == "mask" and dtype == FLOAT64 and not wide:
        return FLOAT32
    if operand.kind == "index" and dtype not in (np.int32, np.int64):
        return np.dtype(np.int64)
    return dtype
