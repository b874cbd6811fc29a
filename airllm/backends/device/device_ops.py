"""The ops of a backend on arrays that stay on its device.

`DeviceOps` has the methods of a `KernelBackend`, on `Tensor`s: results stay where they are computed, nothing
waits, and a call that was planned once is planned from then on. `place.py` has what a backend implements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from airllm.backends import reasons
from airllm.backends.device.arena import Arena
from airllm.backends.device.experts import DeviceExperts
from airllm.backends.device.faults import MEMORY, DeviceFault
from airllm.backends.device.launch_plan import STRIDED, Plan
from airllm.backends.device.op_methods import ELEMENTWISE, OpMethods
from airllm.backends.device.place import Part, Place
from airllm.backends.device.recording import Pass, Result
from airllm.backends.device.recurrent import DeviceRecurrence
from airllm.backends.device.tensor import Memory, Tensor, dense_strides
from airllm.formats import FORMATS, Quantized

_FLOATS = ("float32", "float16", "bfloat16")
FLOAT32 = np.dtype(np.float32)
_BYTES, _Q8_0 = np.dtype(np.uint8), FORMATS["q8_0"]  # of caches in blocks
_MOST_PLANS = 4096


class _Call(NamedTuple):
    """What is known of a call before it runs: its plan, and the shapes and dtypes of its results."""

    plan: Plan | None
    outs: tuple[tuple[str, tuple[int, ...], np.dtype], ...]
    strided: tuple[str, ...]


class DeviceOps(OpMethods):
    """Every op of `airllm.tensor_ops` that the backend has a kernel of, as a method on `Tensor`s, by the
    names and rules of `KernelBackend`.
    """

    def __init__(self, backend: str, place: Place):
        from airllm.tensor_ops import OPS  # importing it earlier is circular: it may open this backend

        self._ops, self._backend, self.place = OPS, backend, place
        self.arena = Arena(place.counters, place.label)
        self._plans: dict[tuple, _Call] = {}
        self._pass: Pass | None = None  # which notes what is done
        self._extensions: dict[str, Any] = {
            "assign": self.assign,
            "cached_attention": self._cached_attention,
            "device_experts": DeviceExperts(self),
            "device_recurrence": DeviceRecurrence(self),
            "linear_heads": self.linear_heads,
        }

    # ---- memory ----

    def empty(self, shape: tuple[int, ...], dtype: Any = FLOAT32) -> Tensor:
        """A new array with any values."""
        dtype = np.dtype(dtype)
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        return Tensor(self, self.memory(nbytes), dtype, tuple(shape))

    def memory(self, nbytes: int) -> Memory:
        """New memory. Raises DeviceFault if the device, or its limit, has no room."""
        self.arena.require(nbytes)
        made = Memory(self.place.allocate(max(nbytes, 1)), nbytes, self.arena)
        if self._pass:
            self._pass.makes(made)
        return made

    @property
    def free_memory(self) -> int | None:
        """Bytes that are free on the device; None if it does not say. What may be freed counts as free."""
        ask = getattr(self.place, "free_memory", None)
        return ask() if ask else None

    def fault(self, error: Exception) -> DeviceFault | None:
        """The fault that an error of the driver tells of; None for other errors."""
        if isinstance(error, DeviceFault):
            return error
        ask = getattr(self.place, "fault", None)
        kind = MEMORY if isinstance(error, MemoryError) else ask(error) if ask else ""
        return DeviceFault(kind, self.place.label, reasons.one_line(str(error))) if kind else None

    def to_device(self, array: Any) -> Any:
        """A copy of a NumPy array, or of a Quantized's blocks, on the device."""
        if isinstance(array, Quantized):
            if array.format not in self.place.formats():
                known = ", ".join(self.place.formats())
                raise NotImplementedError(
                    f"{self._backend} has no kernels of {array.format}, expected one of {known}"
                )
            return Quantized(self.to_device(array.data), array.format)
        array = np.require(array, requirements=["C", "ALIGNED"])
        moved = self.empty(array.shape, array.dtype)
        if array.size:
            self.place.upload(moved.memory.buffer, array)
            if self._pass:
                self._pass.uploaded(moved.memory.buffer, array)
        return moved

    def to_host(self, tensor: Tensor) -> np.ndarray:
        """Wait for a tensor and copy it to host memory."""
        out = np.empty(tensor.shape, tensor.dtype)
        dense = tensor if tensor.is_dense else self.dense(tensor)
        if out.size:
            self.place.download(dense.memory.buffer, dense.offset, out)
            if self._pass:
                self._pass.downloaded(Result(dense.memory.buffer, dense.offset, out.shape, out.dtype))
        return out

    def wait(self) -> None:
        """Wait for all that was started, uploads too."""
        self.empty((1,)).numpy()

    def dense(self, tensor: Tensor) -> Tensor:
        """A C-contiguous copy at the beginning of memory of its own."""
        copy = self.empty(tensor.shape, tensor.dtype)
        self.assign(copy, tensor)
        return copy

    def copy(self, tensor: Tensor) -> Tensor:
        """A C-contiguous copy, which may be made later."""
        return self.dense(tensor)

    def assign(self, to: Tensor, given: Any) -> None:
        """`to[...] = given`: floats, converted to the dtype of `to`, or bytes of blocks. TypeError for other
        dtypes.
        """
        bytes_alike = to.dtype == _BYTES == given.dtype
        for each in (to, given) if isinstance(given, Tensor) else (to,):
            if each.dtype.name not in _FLOATS and not bytes_alike:
                found = f"assign: an array has dtype {each.dtype}"
                raise TypeError(f"{found}, expected one of {', '.join(_FLOATS)}")
        given = given if isinstance(given, Tensor) else self.to_device(np.asarray(given, to.dtype))
        if given.shape != to.shape:
            given = _broadcast(given, to.shape)
        if given.memory is to.memory and given.offset != to.offset:
            given = self.dense(given)  # the two may overlap
        self._before_write(to)
        if to.size:
            self._start("assign", {"x": given}, {}, {"out": to})

    def assign_blocks(self, to: Tensor, given: Tensor) -> None:
        """Write rows of floats (..., d) to rows of q8_0 (..., bytes)."""
        self._before_write(to)
        if to.size:
            self._start("assign_q8_0", {"x": given}, {}, {"out": to})

    def read_blocks(self, kept: Tensor) -> Tensor:
        """The floats of rows of q8_0."""
        blocks: Any = kept
        return self.dequantize(Quantized(blocks, "q8_0"))

    # ---- ops ----

    def combine(self, name: str, x: Any, y: Any = None, out: Tensor | None = None) -> Tensor:
        """`np.add(x, y, out=out)` and its like, of float32; y may be a number or be broadcast. `np.tanh(x)`
        has none.
        """
        if not isinstance(x, Tensor):
            if name in ("subtract", "divide"):
                raise TypeError(f"{name}: the first operand has type {type(x).__name__}, expected a Tensor")
            x, y = y, x
        number: float | None = 0.0
        if y is not None and not isinstance(y, Tensor):
            y = np.asarray(y, np.float32)
            alone = y.size == 1 and y.ndim <= x.ndim
            number, y = (float(y.reshape(())), None) if alone else (None, self.to_device(y))
        result = out if out is not None and self._combines_into(out, x, y) else self.empty(x.shape)
        other = None if y is None else _broadcast(y, x.shape)
        for each in (x, other, result):
            if each is not None and each.dtype != FLOAT32:
                raise TypeError(f"{name}: an array has dtype {each.dtype}, expected {FLOAT32}")
        parameters = {"op": ELEMENTWISE.index(name), "value": number or 0.0}
        if result is out:
            self._before_write(result)
        if x.size:
            self._start("combine", {"x": x, "y": other}, parameters, {"out": result})
        if out is None or result is out:
            return result
        if out.is_alone:
            out.become(result)
        else:
            self.assign(out, result)
        return out

    def _combines_into(self, out: Tensor, *operands: Any) -> bool:
        """Whether a result can be written to `out` itself."""
        memories = (each.memory for each in operands if isinstance(each, Tensor))
        return out.is_dense and (self.place.writes_inputs or out.memory not in memories)

    def call(self, op: Any, *given: Any, out: Any = None, **named: Any) -> Any:
        """Run an op on tensors, with its own parameters; `out` is a tensor, or one for each result."""
        names = (*(o.name for o in op.operands), *op.defaults)
        arguments = dict(zip(names, given, strict=False)) | named
        arrays = {o.name: self._operand(o, arguments.get(o.name)) for o in op.operands}
        parameters = {n: arguments.get(n, default) for n, default in op.defaults.items()}
        key = (op.name, *map(_key, arrays.values()), *parameters.values())
        if (known := self._plans.get(key)) is None:
            known = self._plan_of(op, arrays, parameters, key)
        outs = [] if out is None else list(op.each(out))
        results = dict(zip((n for n, _, _ in known.outs), outs, strict=True)) if outs else {}
        direct = {n: t for n, t in results.items() if self._fits(t)}
        for target in direct.values():
            self._before_write(target)
        written = {n: direct.get(n) or self.empty(shape, dtype) for n, shape, dtype in known.outs}
        if known.plan is not None:
            ready = {n: self._ready(a, n in known.strided) for n, a in arrays.items() if a is not None}
            self._launch(known.plan, _parts({**ready, **written}))
        for n, target in results.items():
            if n not in direct:
                self.assign(target, written[n].reshape(target.shape))
        return out if out is not None else op.one_or_all(list(written.values()))

    def _before_write(self, to: Tensor) -> None:
        """Called before the values of a tensor that exists change."""

    def _operand(self, operand: Any, value: Any) -> Any:
        """An operand on the device. Indices may come from the host."""
        if operand.kind == "index" and value is not None and not isinstance(value, Tensor):
            return self.to_device(np.asarray(value, np.int64))
        return value

    def _plan_of(self, op: Any, arrays: dict[str, Any], parameters: dict[str, Any], key: tuple) -> _Call:
        """Check a call and plan it. TypeError and ValueError as the op's own."""
        checked = op.check_parameters(parameters)
        ordered = [arrays[o.name] for o in op.operands]
        shapes, dtype = op.out_shapes(ordered), op.result_dtype(ordered)
        names = ["out"] if len(shapes) == 1 else [f"out{i}" for i in range(len(shapes))]
        outs = tuple((name, shape, dtype) for name, shape in zip(names, shapes, strict=True))
        strided = STRIDED.get(op.name, ())
        given = {n: self._planned(a, n in strided) for n, a in arrays.items() if a is not None}
        plan = None
        if all(0 not in shape for shape in shapes):
            results = {name: _Planned(shape, dtype) for name, shape, _ in outs}
            plan = self.place.plan(op.name, given, checked, results)
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[key] = found = _Call(plan, outs, strided)
        return found

    def _planned(self, array: Any, strided: bool) -> Any:
        """The array as it will be when it is ready."""
        if isinstance(array, Quantized) or self._is_ready(array, strided):
            return array
        return _Planned(array.shape, array.dtype)

    def _is_ready(self, tensor: Tensor, strided: bool) -> bool:
        """Whether kernels can take a tensor as it is."""
        if tensor.offset % self.place.alignment:
            return False
        return tensor.is_dense or (
            strided and (tensor.shape[-1] < 2 or tensor.strides[-1] == tensor.itemsize)
        )

    def _fits(self, out: Tensor) -> bool:
        """Whether a kernel can write to `out` itself."""
        return out.is_dense and out.offset % self.place.alignment == 0

    def _ready(self, array: Any, strided: bool) -> Tensor:
        tensor: Any = array.data if isinstance(array, Quantized) else array
        return tensor if self._is_ready(tensor, strided) else self.dense(tensor)

    def _start(
        self,
        name: str,
        arrays: dict[str, Any],
        parameters: dict[str, Any],
        outs: dict[str, Tensor],
        of_ops: bool = False,
    ) -> None:
        """Run a call that is no op: "assign" or "combine", which take any strides, or others `of_ops`, whose
        arrays begin where they are.
        """
        given = {n: a for n, a in arrays.items() if a is not None}
        key = (name, *given, *map(_key, given.values()), *map(_key, outs.values()), *parameters.values())
        if (known := self._plans.get(key)) is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = known = _Call(self.place.plan(name, arrays, parameters, outs), (), ())
        assert known.plan is not None
        every: dict[str, Any] = given | outs
        every = {n: a.data if isinstance(a, Quantized) else a for n, a in every.items()}
        if of_ops:
            self._launch(known.plan, _parts(every))
        else:
            self._launch(known.plan, {n: (a.memory.buffer, 0, a.memory.nbytes) for n, a in every.items()})

    def _launch(self, plan: Plan, memory: dict[str, Part]) -> None:
        scratch = {name: self.memory(size) for name, size in plan.scratch.items()}
        memory |= {name: (each.buffer, 0, each.nbytes) for name, each in scratch.items()}
        self.place.run(plan, memory)
        if self._pass:
            self._pass.launched(plan.launches, memory)

    @contextmanager
    def noting(self, done: Pass) -> Iterator[None]:
        """Note what is uploaded, launched and downloaded."""
        self._pass = done
        try:
            yield
        finally:
            self._pass = None

    def ready(self, tensor: Tensor) -> Tensor:
        """The tensor, or a dense copy that kernels can take."""
        return self._ready(tensor, False)

    def start(
        self, name: str, arrays: dict[str, Any], parameters: dict[str, Any], outs: dict[str, Tensor]
    ) -> None:
        """Run a call of the backend that is no op, with dense arrays."""
        self._start(name, arrays, parameters, outs, of_ops=True)

    # ---- for the decoder ----

    def linear_heads(self, x: Tensor, weight: Any) -> Tensor:
        """The products (rows, heads, n) of heads (rows, heads, k) with a matrix (n, k) for each."""
        heads = DeviceExperts(self).linear(x.reshape(-1, x.shape[-1]), None, weight)
        return heads.reshape(*x.shape[:2], -1)

    def _cached_attention(
        self,
        q: Tensor,
        cache: Tensor,
        length: int,
        out: Tensor,
        origin: int = 0,
        value_dim: int = 0,
        **options: Any,
    ) -> None:
        """Attend from the last tokens to the first `length` of a layer's keys and values. With a `value_dim`,
        `cache` has keys alone, and values are the first so many values of them. `in_parts`: queries are sums
        along an axis that q has before the others.
        """
        if cache.dtype == _BYTES or options.get("in_parts"):
            self._attend_directly(q, *self._seen(cache, length, value_dim), out, **options)
        else:
            keys, values = self._seen(cache, length, value_dim)
            self.attention(q, keys, values, causal=True, out=out, **options)

    @staticmethod
    def _seen(cache: Tensor, length: int, value_dim: int) -> tuple[Tensor, Tensor]:
        """The keys and values of `_cached_attention`."""
        seen = cache[:, :, :length]
        inner = value_dim // _Q8_0.values * _Q8_0.bytes if seen.dtype == _BYTES else value_dim
        return (seen[0], seen[0][..., :inner]) if value_dim else (seen[0], seen[1])

    def _attend_directly(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor, **options: Any) -> None:
        """Causal attention to rows of q8_0, or of queries in parts, which the op itself does not have."""
        given, parameters = self.attention_call(q, keys, values, **options)
        result = out if self._fits(out) else self.empty(out.shape)
        self._before_write(result)
        self.start("attention", given, parameters, {"out": result})
        if result is not out:
            self.assign(out, result)

    def attention_call(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Any = None, **options: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays and the parameters of causal attention, of which keys and values may be rows of q8_0."""
        given: dict[str, Any] = {"q": self._ready(q, True)}
        for name, each in (("k", keys), ("v", values)):
            rows: Any = self._ready(each, True)
            given[name] = Quantized(rows, "q8_0") if each.dtype == _BYTES else rows
        if sinks is not None:
            given["sinks"] = self._ready(sinks, False)
        return given, {"causal": True, "scale": None, "softcap": None, "window": None} | options


class _Planned(NamedTuple):
    """A dense array that a plan is made for."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        return dense_strides(self.shape, self.dtype.itemsize)


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, Part]:
    """The memory of tensors that begin where kernels can take them."""
    return {name: (each.memory.buffer, each.offset, each.span) for name, each in tensors.items()}


def _key(array: Any) -> Any:
    """What a plan depends on."""
    if array is None:
        return None
    if isinstance(array, Quantized):
        blocks: Any = array.data
        return array.format, blocks.shape, blocks.strides, blocks.offset
    return array.shape, array.dtype, array.strides, array.offset


def _broadcast(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view with more elements along axes of one. ValueError if that does not give the shape."""
    missing = len(shape) - tensor.ndim
    own = ((1,) * missing + tensor.shape, (0,) * missing + tensor.strides)
    if missing < 0 or any(n not in (1, wanted) for n, wanted in zip(own[0], shape, strict=True)):
        raise ValueError(f"an array has shape {tensor.shape}, expected one that gives {shape}")
    strides = tuple(0 if n == 1 else step for n, step in zip(*own, strict=True))
    return Tensor(tensor.ops, tensor.memory, tensor.dtype, shape, strides, tensor.offset)
