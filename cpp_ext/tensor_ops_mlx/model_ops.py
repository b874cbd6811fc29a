"""The ops of a model whose weights, activations, keys and values stay on MLX's device.

MLX computes nothing before a result is read: so the host waits once per token, for the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from airllm.backends import reasons
from airllm.backends.device.arena import Arena
from airllm.backends.device.faults import MEMORY, DeviceFault
from airllm.backends.device.op_methods import OpMethods
from airllm.formats import FORMATS, Quantized
from tensor_ops_mlx import operations
from tensor_ops_mlx.device_array import Array, Kept, mlx_dtype
from tensor_ops_mlx.experts import Experts
from tensor_ops_mlx.recurrent import Recurrence
from tensor_ops_mlx.runtime import device, driver, import_core, on_gpu
from tensor_ops_mlx.weights import Groups, hold

_Q8_0 = FORMATS["q8_0"]
_FLOATS = ("float32", "float16", "bfloat16")
_FEW_ROWS = 4  # on a CPU, MLX multiplies more rows faster by the columns of a matrix
_COMPILED = ("silu", "gelu", "swiglu", "geglu", "apply_rope")  # of one shape for all tokens


class _Rows(NamedTuple):
    """Some rows of a weight that lies with others in one array."""

    whole: Any
    start: int
    stop: int


class Place(NamedTuple):
    """What is known of the device. MLX allocates, and plans launches, by itself."""

    label: str

    def formats(self) -> Sequence[str]:
        """The block formats that it reads: all, some of them as float16."""
        return tuple(FORMATS)

    def has(self, op: str) -> bool:
        """Whether there is a kernel of this op."""
        return hasattr(operations, op)


class DeviceOps(OpMethods):
    """Every op of `airllm.tensor_ops` that MLX has, as a method on `Array`s, by the names and rules of
    `KernelBackend`. Weights may be `Groups`.
    """

    def __init__(self) -> None:
        from airllm.tensor_ops import OPS  # importing it earlier is circular: it may open this backend

        import_core()
        self._ops, self._backend, self.place = OPS, "mlx", Place(device())
        self.arena = Arena(driver.counters, self.place.label)
        self._extensions: dict[str, Any] = {
            "assign": self.assign,
            "append": self.append,
            "forget": self.forget,
            "cached_attention": self._cached_attention,
            "device_experts": Experts(self),
            "device_recurrence": Recurrence(self),
            "linear_heads": self.linear_heads,
            "start": self.start,
        }
        self.forget()

    def forget(self) -> None:
        """Keep nothing of what was computed."""
        self._last: tuple[Any, ...] = (None, 0, None)  # what was multiplied last: x, its version, the weight
        self._product: Any = None

    # ---- memory ----

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """A new array of zeros."""
        return self._keep(mx.zeros(tuple(shape), mlx_dtype(dtype)))

    free_memory = None  # MLX does not say

    def fault(self, error: Exception) -> DeviceFault | None:
        """The fault that an error of MLX tells of; None for other errors."""
        if isinstance(error, DeviceFault):
            return error
        full = isinstance(error, MemoryError) or "allocate" in str(error)
        return DeviceFault(MEMORY, self.place.label, reasons.one_line(str(error))) if full else None

    def wait(self) -> None:
        """Wait for all that was started."""
        mx.synchronize()

    def _keep(self, value: mx.array) -> Array:
        array = Array(self, value)
        array.kept = self._kept(value.nbytes)
        return array

    def _kept(self, nbytes: int) -> Kept:
        """Counts an array that stays. Raises DeviceFault if the limit has no room for it."""
        self.arena.require(nbytes)
        return Kept(nbytes, self.arena)

    def to_device(self, array: Any) -> Any:
        """A copy of a NumPy array, or of a Quantized, on the device, as `Groups` or floats."""
        if isinstance(array, Quantized):
            held = hold(array)
            self._count(array.nbytes)
            if isinstance(held, Groups):
                return replace(held, kept=self._kept(held.nbytes))
            return self._keep(held)
        self._count(array.nbytes)
        return self._keep(mx.array(np.ascontiguousarray(array)))

    def _count(self, uploaded: int) -> None:
        driver.copied.add()
        driver.counters.add(uploaded=uploaded)

    def to_host(self, array: Array) -> np.ndarray:
        """Wait for an array and copy it to host memory."""
        value = array.value
        is_bfloat16 = value.dtype == mx.bfloat16  # which NumPy's protocols lack
        found = np.array(value.view(mx.uint16) if is_bfloat16 else value)
        driver.counters.add(downloaded=found.nbytes, waits=1)
        driver.copied.add()
        return found.view(array.dtype)

    def assign(self, to: Array, given: Any) -> None:
        """`to[...] = given`: floats, converted to the dtype of `to`, or bytes of blocks. TypeError for other
        dtypes.
        """
        bytes_alike = to.dtype == np.uint8 == given.dtype
        for each in (to, given) if isinstance(given, Array) else (to,):
            if each.dtype.name not in _FLOATS and not bytes_alike:
                found = f"assign: an array has dtype {each.dtype}"
                raise TypeError(f"{found}, expected one of {', '.join(_FLOATS)}")
        value = self._value(given).astype(mlx_dtype(to.dtype))
        to.write(mx.broadcast_to(value, to.shape))

    def assign_blocks(self, to: Array, given: Array) -> None:
        """Write rows of floats (..., d) to rows of q8_0 (..., bytes)."""
        to.write(_to_blocks(given.value))

    def read_blocks(self, kept: Array) -> Array:
        """The floats of rows of q8_0."""
        return Array(self, _of_blocks(kept.value))

    def _value(self, given: Any) -> Any:
        """A value of MLX: of an array there, of one of the host, or of a number."""
        if isinstance(given, Array):
            return given.value
        if isinstance(given, Groups) or given is None:
            return given
        given = np.asarray(given)
        if given.ndim:
            self._count(given.nbytes)
        return mx.array(given)

    # ---- ops ----

    def combine(self, name: str, x: Any, y: Any = None, out: Array | None = None) -> Array:
        """`np.add(x, y, out=out)` and its like, in float32."""
        operands = [self._value(each).astype(mx.float32) for each in (x, y) if each is not None]
        result = getattr(mx, name)(*operands)
        if out is None:
            return Array(self, result)
        out.write(result)
        return out

    def call(self, op: Any, *given: Any, out: Any = None, **named: Any) -> Any:
        """Run an op on arrays, with its own parameters; `out` is an array, or one for each result."""
        names = (*(o.name for o in op.operands), *op.defaults)
        arguments = dict(zip(names, given, strict=False)) | named
        arrays = {o.name: self._operand(o, arguments.get(o.name)) for o in op.operands}
        parameters = {n: arguments.get(n, default) for n, default in op.defaults.items()}
        driver.launched.add()
        kernel = _kernel(op.name, tuple(parameters.items()), op.name in _COMPILED and on_gpu())
        results = op.each(kernel(**{n: a for n, a in arrays.items() if a is not None}))
        if out is None:
            return op.one_or_all([Array(self, result) for result in results])
        for target, result in zip(op.each(out), results, strict=True):
            target.write(result.reshape(target.shape).astype(mlx_dtype(target.dtype)))
        return out

    def _operand(self, operand: Any, given: Any) -> Any:
        value = self._value(given)
        return value.astype(mx.float32) if value is not None and operand.is_float else value

    def rms_norm(self, x: Array, weight: Array, eps: float = 1e-6) -> Array:
        """MLX's own norm."""
        return Array(self, mx.fast.rms_norm(x.value, weight.value, eps))

    def add_rms_norm(
        self, x: Array, residual: Array, weight: Array, eps: float = 1e-6
    ) -> tuple[Array, Array]:
        """The sum, and its norm."""
        total = self.combine("add", x, residual)
        return total, self.rms_norm(total, weight, eps)

    def linear(self, x: Array, weight: Any, bias: Any = None, out: Array | None = None) -> Array:
        """The product. Of matrices that lie in one array, all are computed at once."""
        if isinstance(weight, _Rows):
            product = self._product_of(x, weight.whole)[..., weight.start : weight.stop]
        else:
            product = self._multiply(x.value, weight)
        if bias is not None:
            product = product + bias.value
        if out is None:
            return Array(self, product)
        out.write(product)
        return out

    def _product_of(self, x: Array, whole: Any) -> mx.array:
        """x times all matrices of a stack."""
        last, version, weight = self._last
        if last is not x or version != x.version or weight is not whole or not x.is_root:
            self._last, self._product = (x, x.version, whole), self._multiply(x.value, whole)
        return self._product

    def _multiply(self, x: mx.array, weight: Any) -> mx.array:
        """x @ weight^T, float32."""
        driver.launched.add()
        few = x.size <= _FEW_ROWS * x.shape[-1] or on_gpu()
        if isinstance(weight, Groups):
            if few:
                return mx.quantized_matmul(x, *weight.arrays, **weight.options)
            return x @ mx.contiguous(weight.values().T)
        values = weight.value.astype(mx.float32)
        return x @ (values.T if few else mx.contiguous(values.T))

    def embedding(self, ids: Any, table: Any) -> Array:
        """Rows of a table, float32."""
        rows = table[self._value(ids)] if isinstance(table, Groups) else table.value[self._value(ids)]
        return Array(self, rows.values() if isinstance(rows, Groups) else rows.astype(mx.float32))

    # ---- for the decoder ----

    def linear_heads(self, x: Array, weight: Any) -> Array:
        """The products (rows, heads, n) of heads (rows, heads, k) with a matrix (n, k) for each."""
        heads = Experts(self).linear(x.reshape(-1, x.shape[-1]), None, weight)
        return heads.reshape(*x.shape[:2], -1)

    def append(self, kept: Array, start: int, keys: Array, values: Array | None = None) -> None:
        """Write the keys and values (tokens, heads, d) of new tokens to a layer of a cache; without values,
        keys have them too.
        """
        self.forget()
        given = [each.value for each in (keys, values) if each is not None]
        new = mx.stack(given).swapaxes(1, 2)
        new = _to_blocks(new) if kept.dtype == np.uint8 else new.astype(mlx_dtype(kept.dtype))
        kept[:, :, start : start + new.shape[2]].write(new)

    def _cached_attention(
        self,
        q: Array,
        cache: Array,
        length: int,
        out: Array,
        origin: int = 0,
        value_dim: int = 0,
        **options: Any,
    ) -> None:
        """Attend from the last tokens to the first `length` of a layer's keys and values. With a `value_dim`,
        `cache` has keys alone, and values are the first so many values of them.
        """
        seen = cache[:, :, :length]
        if seen.dtype == np.uint8:
            seen = self.read_blocks(seen)
        keys, values = (seen[0], seen[0][..., :value_dim]) if value_dim else seen
        self.attention(q, keys, values, causal=True, out=out, **options)

    def start(self, array: Array) -> None:
        """Start computing an array. Does not wait."""
        mx.async_eval(array.value)

    def stack(self, parts: Sequence[Any]) -> list[Any]:
        """Matrices of one format and row length in one array, or vectors."""
        if parts[0].ndim == 1:
            return [self.to_device(each) for each in parts]
        data = [each.data if isinstance(each, Quantized) else np.asarray(each) for each in parts]
        joined: Any = np.concatenate(data)
        whole = self.to_device(Quantized(joined, parts[0].format) if _is_stored(parts[0]) else joined)
        stops = np.cumsum([len(each) for each in data]).tolist()
        return [_Rows(whole, a, b) for a, b in zip([0, *stops], stops, strict=False)]


def _to_blocks(x: mx.array) -> mx.array:
    """Rows of floats (..., d) as rows of q8_0: see `airllm/formats/blocks_32.py`."""
    blocks = x.reshape(*x.shape[:-1], -1, _Q8_0.values)
    scale = mx.abs(blocks).max(axis=-1, keepdims=True) / 127
    scaled = blocks * mx.where(scale == 0, 0, 1 / scale)
    size = mx.abs(scaled)
    whole = mx.floor(size)
    codes = (mx.sign(scaled) * (whole + mx.floor(2 * (size - whole)))).astype(mx.int8)
    found = mx.concatenate([scale.astype(mx.float16).view(mx.uint8), codes.view(mx.uint8)], axis=-1)
    return found.reshape(*x.shape[:-1], -1)


def _of_blocks(stored: mx.array) -> mx.array:
    """The float32 of rows of q8_0."""
    blocks = mx.contiguous(stored).reshape(*stored.shape[:-1], -1, _Q8_0.bytes)
    scale, codes = (mx.contiguous(each) for each in (blocks[..., :2], blocks[..., 2:]))
    values = scale.view(mx.float16).astype(mx.float32) * codes.view(mx.int8).astype(mx.float32)
    return values.reshape(*stored.shape[:-1], -1)


def _is_stored(weight: Any) -> bool:
    return isinstance(weight, Quantized)


@lru_cache(maxsize=1000)
def _kernel(name: str, parameters: tuple, compiled: bool) -> Callable:
    """The op with its parameters; compiled, which fuses it, for a GPU."""
    kernel = partial(getattr(operations, name), **dict(parameters))
    return mx.compile(kernel) if compiled else kernel
