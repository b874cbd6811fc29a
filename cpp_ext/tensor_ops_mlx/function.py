"""The public function of an op: the declaration's parameters and checks, then conversion to MLX."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from airllm.formats import Quantized
from airllm.ops import signature_codegen
from airllm.ops.dlpack import is_dense
from tensor_ops_mlx import operations
from tensor_ops_mlx.runtime import driver, import_core, on_gpu

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_AS_THEY_ARE = ("matmul", "matmul_vec", "linear", "attention_scores", "weighted_sum_rows", "embedding")
_STRIDED = ("attention", "attention_scores", "weighted_sum_rows")  # a cache passes slices
_WITHOUT_NUMBERS = ("apply_rope", "linear")  # these copy the unrotated rest, and add a bias


def op_function(op: Any) -> Callable:
    """`name(arrays..., parameters..., *, out=None)` with the declaration's defaults and documentation."""
    given = ", ".join(f"{name!r}: {name}" for name in [*op.arrays, *op.defaults, "out"])
    body = f"    return _call(_op, _op.complete_arguments({{{given}}}))"
    return signature_codegen.make_function(op, ["out"], body, {"_call": _call, "_op": op}, "tensor_ops_mlx")


def _call(op: Any, arguments: dict[str, Any]) -> Any:
    """Check all arguments, then compute."""
    import_core()
    out = arguments.pop("out")
    outs = [] if out is None else list(op.each(out))
    arrays = [arguments.pop(operand.name) for operand in op.operands]
    given = {o.name: a for o, a in zip(op.operands, arrays, strict=True) if a is not None or not o.optional}
    _check_kinds(op, given, outs)
    seen = [_describe(given.get(o.name)) for o in op.operands]
    op.check(seen, op.one_or_all([_describe(o) for o in outs]) if outs else None)
    _check_dense(op, given, outs)
    _check_computed(op, given)
    results = _compute(op, given, arguments, op.out_shapes(seen), op.result_dtype(seen))
    return _deliver(op, results, out, outs, isinstance(next(iter(given.values())), mx.array))


# ---- checks ----


@dataclass(frozen=True)
class _ArrayInfo:
    """The shape and dtype of an MLX array, for the checks of a declaration."""

    shape: tuple[int, ...]
    dtype: np.dtype


def _describe(array: Any) -> Any:
    if not isinstance(array, mx.array):
        return array
    name = str(array.dtype).rpartition(".")[2]
    return _ArrayInfo(array.shape, _BFLOAT16 if name == "bfloat16" else np.dtype(name))


def _check_kinds(op: Any, given: dict[str, Any], outs: Sequence[Any]) -> None:
    """TypeError if MLX arrays and others are mixed."""
    named = given | {o.name: a for o, a in zip(op.outs, outs, strict=False)}
    ours = isinstance(next(iter(given.values())), mx.array)
    for name, array in named.items():
        if isinstance(array, mx.array) != ours and not isinstance(array, Quantized):
            expected = "mlx.core.array, as the first array is" if ours else "NumPy array"
            raise TypeError(f"{op.name}: {name} has type {type(array).__name__}, expected a {expected}")


def _check_dense(op: Any, given: Mapping[str, Any], outs: Sequence[Any]) -> None:
    own = {o.name: given.get(o.name) for o in op.operands if o.kind == "own" and op.name not in _STRIDED}
    for name, array in (own | {o.name: a for o, a in zip(op.outs, outs, strict=False)}).items():
        if isinstance(array, np.ndarray) and not is_dense(array):
            expected = f"C-contiguous and aligned (pass numpy.ascontiguousarray({name}))"
            raise ValueError(f"{op.name}: {name} has strides {array.strides}, expected {expected}")


def _check_computed(op: Any, given: Mapping[str, Any]) -> None:
    if op.name == "attention" and given["k"].dtype != given["v"].dtype:
        found, expected = (_describe(given[name]).dtype for name in ("v", "k"))
        raise TypeError(f"attention: v has dtype {found}, expected {expected}, that of k")
    for name, array in given.items():
        if isinstance(array, Quantized):  # MLX's formats multiply by sums of x, which gives NaN for infinity
            raise NotImplementedError(f"{op.name}: {name} has format {array.format}, expected floats")


# ---- conversion and computation ----


def _compute(
    op: Any, given: Mapping[str, Any], parameters: Mapping[str, Any], shapes: Sequence[tuple], dtype: np.dtype
) -> list[Any]:
    """The results as MLX arrays, not yet evaluated."""
    if op.name == "attention" and given["k"].shape[-1] == 0 and 0 not in shapes[0]:
        raise NotImplementedError("attention: k has d=0, expected 1 or more")  # an average of v, not a sum
    kind = getattr(mx, dtype.name)
    nothing = any(0 in array.shape for array in given.values()) and op.name not in _WITHOUT_NUMBERS
    if nothing or 0 in shapes[0]:  # a sum over an empty axis is zero
        return [mx.zeros(shape, kind) for shape in shapes]
    kernel = _kernel(op.name, tuple(parameters.items()), on_gpu())
    results = kernel(**{o.name: _to_mlx(op, o, given[o.name]) for o in op.operands if o.name in given})
    driver.launched.add()
    return [result.astype(kind) for result in op.each(results)]


@functools.lru_cache(maxsize=1000)
def _kernel(name: str, parameters: tuple, compiled: bool) -> Callable:
    """The op with its parameters; for a GPU, compiled, which fuses it.

    For a CPU, MLX would run the C++ compiler for half a second, and the result is slower.
    """
    kernel = functools.partial(getattr(operations, name), **dict(parameters))
    return mx.compile(kernel) if compiled else kernel


def _to_mlx(op: Any, operand: Any, array: Any) -> Any:
    """An operand as an MLX array, in float32 if the op computes in float32."""
    if isinstance(array, np.ndarray):
        driver.copied.add()
        array = mx.array(array if min(array.strides, default=0) >= 0 else array.copy())
    is_number = operand.is_float or (operand.kind == "mask" and array.dtype != mx.bool_)
    return array.astype(mx.float32) if is_number and op.name not in _AS_THEY_ARE else array


def _deliver(op: Any, results: list[Any], out: Any, outs: Sequence[Any], on_device: bool) -> Any:
    """The results as MLX or NumPy arrays, or in `out` if it is given."""
    if not on_device:
        results = [_numpy(result) for result in results]
    for target, result in zip(outs, results, strict=False):
        target[...] = result
    return op.one_or_all(results) if out is None else out


def _numpy(array: mx.array) -> np.ndarray:
    """A NumPy view of MLX's memory; bfloat16, which NumPy's protocols lack, is passed as 16-bit integers."""
    if array.dtype == mx.bfloat16:
        return np.asarray(mx.contiguous(array).view(mx.uint16)).view(_BFLOAT16)
    return np.asarray(mx.contiguous(array))
