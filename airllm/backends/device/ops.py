"""Op functions of a backend with its own device arrays: check the arguments, then call the kernels."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from airllm.backends.device.launch_plan import ALIKE, STRIDED
from airllm.backends.device.strides import TooManyAxes
from airllm.formats import Quantized
from airllm.ops import signature_codegen
from airllm.ops.canonicalize import with_last_axis
from airllm.ops.declaration import Declaration
from airllm.ops.dlpack import device_of


class Arrays(Protocol):
    """What a backend must implement for its own device arrays and for NumPy arrays.

    `kind` is the name of its own array type in messages.
    """

    kind: str

    def are(self, value: Any) -> bool:
        """Whether `value` is one of the backend's own arrays."""

    def formats(self) -> Collection[str]:
        """The block formats that its kernels support."""

    def check(self, op: Any, given: Mapping[str, Any], outs: Sequence[Any]) -> None:
        """TypeError or ValueError if these own arrays cannot be used in one call."""

    def new(self, like: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
        """Allocate an array on the device of `like`."""

    def dense(self, array: Any) -> Any:
        """A C-contiguous array with the same values. Raises TooManyAxes if it cannot make one."""

    def clear(self, out: Any) -> None:
        """Fill an own array with zeros."""

    def run(
        self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], results: Mapping[str, Any]
    ) -> None:
        """Compute non-empty results from own arrays. TooManyAxes if a kernel cannot take them as a whole."""

    def run_host(
        self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], results: Mapping[str, Any]
    ) -> None:
        """`run` for NumPy arrays."""


def kernel_function(op: Declaration, module: str, own: Arrays) -> Callable:
    """`name(arrays..., parameters..., *, out=None)` with the declaration's defaults and documentation."""
    given = f"({', '.join(op.arrays)},), ({''.join(f'{parameter}, ' for parameter in op.defaults)})"
    body = f"    return _call(_own, _op, {given}, out)"
    return signature_codegen.make_function(
        op, ["out"], body, {"_call": _call, "_own": own, "_op": op}, module
    )


def memory_of(array: Any) -> Any:
    """The array itself, or the blocks of a Quantized."""
    return array.data if isinstance(array, Quantized) else array


def _call(own: Arrays, op: Any, arrays: Sequence[Any], parameters: tuple, out: Any) -> Any:
    """Check all arguments, then compute."""
    given = {o.name: a for o, a in zip(op.operands, arrays, strict=True) if a is not None or not o.optional}
    signature_codegen.check_given(op.name, given)
    on_device = _on_device(own, op, given, out)
    if on_device:
        given = {name: _as_bool(a) for name, a in given.items()}
    arrays = [given.get(operand.name) for operand in op.operands]
    shapes = [op.check(arrays, out)] if len(op.outs) == 1 else _several_shapes(op, arrays, out)
    checked = op.check_parameters(dict(zip(op.defaults, parameters, strict=True)))
    given = {o.name: _prepare_operand(own, op, o, given, shapes[0]) for o in op.operands if o.name in given}
    outs = [] if out is None else [out] if len(shapes) == 1 else list(out)
    for operand, result in zip(op.outs, outs, strict=False):
        _check_dense(op, operand.name, result)
    if on_device:
        own.check(op, given, outs)
    results = outs or [
        _new(own, memory_of(next(iter(given.values()))), _dtype(op, given), shape) for shape in shapes
    ]
    _compute(own, op.name, given, checked, results, on_device)
    return out if out is not None else op.one_or_all(results)


def _several_shapes(op: Any, arrays: Sequence[Any], out: Any) -> list[tuple[int, ...]]:
    op.check(arrays, out)
    return op.out_shapes(arrays)


def _compute(
    own: Arrays, name: str, arrays: dict, parameters: dict, outs: Sequence[Any], on_device: bool
) -> None:
    """Compute the results. Empty results need no launch; a sum over an empty axis is zero."""
    if outs[0].size == 0:
        return
    names = ["out"] if len(outs) == 1 else [f"out{i}" for i in range(len(outs))]
    results = dict(zip(names, outs, strict=True))
    if name == "attention" and arrays["k"].shape[-1] == 0 < arrays["k"].shape[-2]:
        raise NotImplementedError("attention: k has d=0, expected 1 or more")  # an average of v, not a sum
    nothing = any(0 in array.shape for array in arrays.values())
    if nothing and name not in ("apply_rope", "linear"):  # these copy the unrotated rest, and add a bias
        for out in outs:
            own.clear(out) if on_device else out.fill(0)
        return
    run = own.run if on_device else own.run_host
    try:
        run(name, arrays, parameters, results)
    except TooManyAxes:
        for i in range(outs[0].shape[0]):
            parts = {n: _item(a, len(outs[0].shape), i) for n, a in arrays.items()}
            _compute(own, name, parts, parameters, [out[i] for out in outs], on_device)


def _item(array: Any, ndim: int, i: int) -> Any:
    """The part of an array for item `i` of the result's first axis; the array may be broadcast along it."""
    return array if array.ndim < ndim else array[i if array.shape[0] > 1 else 0]


def _new(own: Arrays, first: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    """Allocate a result of the first array's kind."""
    return np.empty(shape, dtype) if isinstance(first, np.ndarray) else own.new(first, dtype, shape)


def _dtype(op: Any, given: dict[str, Any]) -> np.dtype:
    """The result's dtype: that of the op's first own array, else of a stored one; float32 for a Quantized."""
    kinds = {o.kind: o.name for o in reversed(op.operands)}
    array = given[kinds.get("own") or kinds.get("stored") or kinds["quantized"]]
    return np.dtype(np.float32) if isinstance(array, Quantized) else array.dtype


def _on_device(own: Arrays, op: Any, given: dict[str, Any], out: Any) -> bool:
    """Whether the arrays are the backend's own; TypeError if own and NumPy arrays are mixed."""
    outs = out if isinstance(out, tuple | list) and len(op.outs) > 1 else [out][: out is not None]
    named = {name: memory_of(array) for name, array in given.items()}
    named |= {f"out[{i}]" if len(op.outs) > 1 else "out": array for i, array in enumerate(outs)}
    on_device = own.are(next(iter(named.values())))
    expected = f"{own.kind}, as the first array is" if on_device else "NumPy array"
    for name, array in named.items():
        if own.are(array) if on_device else type(array) is np.ndarray:
            continue
        if not own.are(array) and (device := device_of(array)):
            raise TypeError(f"{op.name}: {name} has device {device}, expected host memory")
        what = op.arrays.get(name) and next(o.kind for o in op.operands if o.name == name)
        kinds = {"stored": f"{expected} or a Quantized", "quantized": "Quantized"}
        wanted = expected if on_device else kinds.get(what, expected)
        raise TypeError(f"{op.name}: {name} has type {type(array).__name__}, expected a {wanted}")
    return on_device


def _as_bool(array: Any) -> Any:
    """View a uint8 mask as bool: device arrays may have no bool dtype."""
    is_bytes = not isinstance(array, Quantized) and array.dtype == np.uint8
    return array.view(np.dtype(np.bool_)) if is_bytes else array


def _prepare_operand(
    own: Arrays, op: Any, operand: Any, given: dict[str, Any], shape: tuple[int, ...]
) -> Any:
    """The array as the kernels take it. ValueError if they cannot; NotImplementedError for an unsupported
    block format.
    """
    array, strided = given[operand.name], operand.name in STRIDED.get(op.name, ())
    if isinstance(array, Quantized) and array.format not in (formats := own.formats()):
        found = f"{op.name}: {operand.name} has format {array.format}"
        raise NotImplementedError(f"{found}, expected one of {', '.join(formats)}")
    if operand.kind == "mask":
        array = _mask(op, operand, array, given["k"].shape[-2] if "k" in given else shape[-1])
    if operand.kind == "own":
        _check_leading_axes(op, operand, array, shape)
    if isinstance(array, np.ndarray) and strided:
        array = _dense_in_rows(array)
    elif isinstance(array, np.ndarray) and operand.kind == "any float":
        array = np.require(array, None, ["C", "ALIGNED"])  # a cache passes slices
    if strided:
        _check_strides(op, operand.name, array)
    elif isinstance(memory_of(array), np.ndarray) or isinstance(array, Quantized):
        _check_dense(op, operand.name, memory_of(array))
    else:
        array = _dense_on_device(own, op, operand.name, array)
    if op.name in ALIKE and operand.name == ALIKE[op.name][1]:
        _check_alike(op, given)
    return array


def _dense_in_rows(array: np.ndarray) -> np.ndarray:
    """The array, or a copy unless its last axis is contiguous and its strides are whole and not negative."""
    size = array.dtype.itemsize
    steps = [s for n, s in zip(array.shape, array.strides, strict=True) if n > 1]
    last = array.ndim == 0 or array.shape[-1] < 2 or array.strides[-1] == size
    whole = last and array.flags.aligned and all(s >= 0 and s % size == 0 for s in steps)
    return array if whole and array.size else np.ascontiguousarray(array)


def _check_alike(op: Any, given: dict[str, Any]) -> None:
    """The kernels need k and v of one dtype, and cos and sin of one shape."""
    (first, second), (a, b) = ALIKE[op.name], (given[name] for name in ALIKE[op.name])
    if op.name == "attention" and a.dtype != b.dtype:
        raise TypeError(f"{op.name}: {second} has dtype {b.dtype}, expected {a.dtype}, that of {first}")
    if op.name == "apply_rope" and a.shape != b.shape:
        raise ValueError(f"{op.name}: {second} has shape {b.shape}, expected {a.shape}, that of {first}")


def _mask(op: Any, operand: Any, array: Any, length: int) -> Any:
    """Expand a mask's last axis: kernels broadcast masks along all other axes."""
    if array.ndim and array.shape[-1] == length:
        return array
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(with_last_axis(array, length))
    expected = f"{operand} with {operand.axes[-1]}={length}"
    raise ValueError(f"{op.name}: mask has shape {tuple(array.shape)}, expected {expected}")


def _check_leading_axes(op: Any, operand: Any, array: Any, shape: tuple[int, ...]) -> None:
    """Kernels do not broadcast the op's own arrays, but share one without leading axes after the first."""
    batch = shape[: len(shape) - len(op.outs[0].inner)]
    lead = tuple(array.shape[: len(array.shape) - len(operand.inner)])
    if lead != batch and (lead or operand is op.operands[0]) and operand.leads:
        found = f"{op.name}: {operand.name} has shape {tuple(array.shape)}"
        raise ValueError(f"{found}, expected {operand} with ...={batch}")


def _check_dense(op: Any, name: str, array: Any) -> None:
    aligned = array.flags.aligned if isinstance(array, np.ndarray) else True
    if not array.flags.c_contiguous or not aligned:
        _refuse_strides(op, name, array, "C-contiguous and aligned")


def _dense_on_device(own: Arrays, op: Any, name: str, array: Any) -> Any:
    """The array, or a C-contiguous copy of it."""
    try:
        if min(array.strides, default=0) < 0:
            raise TooManyAxes("negative strides")
        return own.dense(array)
    except TooManyAxes:
        _refuse_strides(op, name, array, "C-contiguous and aligned")


def _check_strides(op: Any, name: str, array: Any) -> None:
    """Require a contiguous last axis and no negative strides."""
    size, steps = array.dtype.itemsize, zip(array.shape, array.strides, strict=True)
    strides = [stride for n, stride in steps if n > 1]
    last = array.strides[-1] == size if array.shape and array.shape[-1] > 1 else True
    aligned = array.flags.aligned if isinstance(array, np.ndarray) else True
    wrong = not last or not aligned or any(stride < 0 or stride % size for stride in strides)
    if wrong and 0 not in array.shape:
        _refuse_strides(op, name, array, "a contiguous last axis and no negative strides")


def _refuse_strides(op: Any, name: str, array: Any, expected: str) -> None:
    on_host = isinstance(array, np.ndarray)
    remedy = f" (pass numpy.ascontiguousarray({name}))" if on_host else ""
    found = f"{op.name}: {name} has strides {tuple(array.strides)}"
    raise ValueError(f"{found}, expected {expected}{remedy}")
