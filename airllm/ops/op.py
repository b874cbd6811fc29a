"""The `op` decorator, which declares an op: the axes of its arrays and the NumPy code that defines it.

    @op(x="... d", weight="d", out="... d")
    def rms_norm(x, weight, eps: float = 1e-6):
        '''Scale each row of `x` to unit root-mean-square, then by `weight`.'''
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight

The declaration gives the signature, the argument checks and their messages, the dispatch, the fallback
kernel, the float64 reference and random inputs for tests and benchmarks, and the bytes an op must move.
`airllm.ops.operands` describes the text that declares an array.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.backends import registry
from airllm.formats import Quantized
from airllm.ops import signature_codegen
from airllm.ops.canonicalize import canonicalize, host_array, host_out
from airllm.ops.declaration import Declaration
from airllm.ops.dlpack import as_kind_of, is_dense
from airllm.ops.operands import (
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

# The body of a public function; signature_codegen.py shows one filled in. A call with the required arrays
# alone takes the shortest path.
_PUBLIC = """\
    try:
        _chosen = _registry.require_backend(backend) if backend else _scoped() or _registry.process_wide
        if {plain}:
            return {kernel}({required})
        return {kernel}({all})
    except (TypeError, ValueError, NotImplementedError):
        pass  # not one for the kernel as it stands: prepare it, or say what is wrong with it
    return _prepared({{{named}}})
"""


def op(
    *,
    out: str | tuple[str, ...],
    requires: Mapping[str, Callable] | None = None,
    computes: bool = True,
    **axes: str,
) -> Callable[[Callable], Callable]:
    """Declare an op. Keywords give the axes of its array parameters; `out` gives those of its results.

    An array whose default is None is optional. `requires` maps a description to a predicate on axis sizes.
    The decorated function gets arrays of one dtype, float32 or float64 (stored weights are dequantized), and
    returns that dtype. If `computes` is False, the op only moves values: its function gets arrays as they are
    stored and returns the values it moved.
    """

    def declare(definition: Callable) -> Callable:
        outs = (out,) if isinstance(out, str) else out
        rules = [Requirement(text, holds) for text, holds in (requires or {}).items()]
        declared = OPS[definition.__name__] = Op(definition, axes, outs, rules, computes)
        registry.declare(declared.name, declared.define)
        return declared.function()

    return declare


class Op(Declaration):
    """A declared op: see the module docstring."""

    def function(self) -> Callable:
        """The public function. It passes the arrays to the kernel in use, which rejects unsuitable ones."""
        names = list(self.signature.parameters)
        required = [name for name, p in self.signature.parameters.items() if p.default is p.empty]
        optional = [name for name in names if name not in (*required, "backend")]
        body = _PUBLIC.format(
            plain=" and ".join(f"{name} is {signature_codegen.default(name)}" for name in optional) or "True",
            kernel=f"_chosen.kernels[{self.name!r}]",
            required=", ".join(required),
            all=", ".join([*required, *(f"{name}={name}" for name in optional)]),
            named=", ".join(f"{name!r}: {name}" for name in names),
        )
        scope = {"_registry": registry, "_scoped": registry.scoped_choice, "_prepared": self.prepare}
        return signature_codegen.make_function(self, self.keywords, body, scope, self.definition.__module__)

    def prepare(self, arguments: dict[str, Any]) -> Any:
        """Run a call whose arguments the kernel rejected: strides, lists, float64, DLPack arrays.

        If a kernel does not support a case, such as a block format, it raises NotImplementedError, and the
        definition computes the result.
        """
        arguments = self.complete_arguments(arguments)
        named = arguments.pop("backend")
        backend, kernel = registry.current(named), registry.kernels(named)[self.name]
        out = arguments.pop("out", None)
        given = [arguments.pop(operand.name) for operand in self.operands]
        if self._on_device(backend, given, out):
            return self._call_on_device(kernel, given, arguments, out)
        arrays = [host_array(self, o, value) for o, value in zip(self.operands, given, strict=True)]
        targets = (
            None
            if out is None
            else [host_out(self, t, o) for t, o in zip(self.each(out), self.outs, strict=True)]
        )
        shapes = self.check_arrays(arrays, targets)
        if any(a.dtype == FLOAT64 for o, a in self.floats(arrays)):
            kernel = self.define  # float64 is never narrowed
        ready, dtype = canonicalize(self, arrays, shapes), self.result_dtype(arrays)
        direct = targets and dtype == self.result_dtype(ready) and all(map(is_dense, targets))

        def run(kernel: Callable) -> Any:
            if direct:
                self._call_kernel(
                    kernel, ready, arguments, self.one_or_all(self._restore_axes(targets or (), shapes))
                )
                return out
            result = self._call_kernel(kernel, ready, arguments, None)
            return self._deliver(self._drop_axes(result, shapes), dtype, out, targets, given[0])

        try:
            return run(kernel)
        except NotImplementedError:
            return run(self.define)

    def _on_device(self, backend: registry.Backend, given: Sequence[Any], out: Any) -> bool:
        """Whether an array is in device memory; TypeError if the backend does not support such arrays."""
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

    def _call_on_device(self, kernel: Callable, given: Sequence[Any], arguments: dict, out: Any) -> Any:
        """`prepare` for arrays in device memory, which their own library reshapes."""
        if not any(o.droppable for o in self.operands):
            return self._call_kernel(kernel, given, arguments, out)
        shapes = self.shapes(given)
        ready = [a.reshape(o.full_shape(a.shape)) for o, a in zip(self.operands, given, strict=True)]
        outs = None if out is None else self.one_or_all(self._restore_axes(self.each(out), shapes))
        result = self._call_kernel(kernel, ready, arguments, outs)
        return self._drop_axes(result, shapes) if out is None else out

    def _restore_axes(self, results: Sequence[Any], shapes: Shapes) -> Sequence[Any]:
        """Views of the results with dropped axes restored, as kernels write them."""
        if not shapes.dropped:
            return results
        return [r.reshape(shapes.full_shape_of(o)) for o, r in zip(self.outs, results, strict=True)]

    def _drop_axes(self, result: Any, shapes: Shapes) -> Any:
        if not shapes.dropped:
            return result
        pairs = zip(self.outs, self.each(result), strict=True)
        return self.one_or_all([r.reshape(shapes.of(o)) for o, r in pairs])

    def _call_kernel(self, kernel: Callable, arrays: Sequence[Any], arguments: dict, out: Any) -> Any:
        """Call a kernel. Arguments equal to their default are not passed, so the kernel's defaults apply."""
        arguments = {n: v for n, v in arguments.items() if v is not self.parameters[n].default}
        pairs = list(zip(self.operands, arrays, strict=True))
        required = [a for o, a in pairs if not o.optional]
        named = {o.name: a for o, a in pairs if o.optional and a is not None}
        return kernel(*required, **named, **arguments, **({} if out is None else {"out": out}))

    def _deliver(
        self, result: Any, dtype: np.dtype, out: Any, targets: Sequence[np.ndarray] | None, given: Any = None
    ) -> Any:
        """Convert results to `dtype`; copy them to `out`, or return them as the kind of array given."""
        if self.gives_quantized:
            return result
        with np.errstate(all="ignore"):  # overflow of float16 gives infinity, as in the kernels
            results = [r.astype(dtype, copy=False) for r in self.each(result)]
        if targets is None:
            return self.one_or_all([as_kind_of(given, r) for r in results])
        for target, r in zip(targets, results, strict=True):
            target[...] = r
        return out

    def bind(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        """All arguments by name; parameters other than arrays are checked and converted to their type."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            says = str(error).replace("missing a required argument: ", "missing required argument ")
            raise TypeError(f"{self.name}() {says}") from None
        bound.apply_defaults()
        return self.complete_arguments(bound.arguments)

    def complete_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """`bind` for arguments that are already by name; TypeError if a required one is missing."""
        signature_codegen.check_given(self.name, arguments)
        return arguments | self.check_parameters(arguments)

    def define(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run the definition as a kernel: float32 arithmetic (float64 for float64), first array's dtype."""
        arguments = self.bind(args, kwargs)
        arguments.pop("backend"), arguments.pop("out", None)
        arrays = [arguments.pop(operand.name) for operand in self.operands]
        targets = None if out is None else self.each(out)
        shapes = self.check_arrays(arrays, targets)
        wide = FLOAT64 if any(a.dtype == FLOAT64 for _, a in self.floats(arrays)) else FLOAT32
        result = self._compute(arrays, wide, arguments, shapes)
        return self._deliver(result, self.result_dtype(arrays), out, targets)

    def exact(self, *args: Any, **kwargs: Any) -> Any:
        """Run the definition in float64: the reference for every kernel."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        arguments.pop("backend"), arguments.pop("out", None)
        arrays = [arguments.pop(operand.name) for operand in self.operands]
        arrays = [a if a is None or isinstance(a, Quantized) else np.asarray(a) for a in arrays]
        result = self._compute(arrays, FLOAT64, arguments, self.shapes(arrays))
        return result if self.computes else result.astype(FLOAT64)

    def _compute(self, arrays: Sequence[Any], wide: np.dtype, arguments: dict, shapes: Shapes) -> Any:
        results = [] if self.gives_quantized else [shapes.of(out) for out in self.outs]
        if results and all(0 in shape for shape in results):  # NumPy cannot reduce empty arrays
            return self.one_or_all([np.empty(shape, wide) for shape in results])
        pairs = zip(self.operands, arrays, strict=True)
        given = {o.name: _widen(o, a, wide) if self.computes else a for o, a in pairs}
        with np.errstate(all="ignore"):  # exp(-x) may overflow although the result is right
            result = self.definition(**given, **arguments)
        return result if isinstance(result, tuple | Quantized) else np.asarray(result)


def _widen(operand: Operand, value: Any, wide: np.dtype) -> Any:
    """The array as the definition takes it: dequantized, and in the dtype `wide`."""
    if operand.kind == "stored" and isinstance(value, Quantized):
        value = value.dequantize()
    if isinstance(value, np.ndarray) and (
        operand.is_float or (operand.kind == "mask" and value.dtype != BOOL)
    ):
        return value.astype(wide, copy=False)
    return value
