"""The functions of the ops, for device and NumPy arrays."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from airllm.backends.device.ops import kernel_function, memory_of
from tensor_ops_webgpu.arrays import Array, Store
from tensor_ops_webgpu.compute import compute, compute_on_host
from tensor_ops_webgpu.engine import engine
from tensor_ops_webgpu.kernel_text import stored_formats
from tensor_ops_webgpu.launches import Call
from tensor_ops_webgpu.selection import choice


class _Arrays:
    """Implements `airllm.backends.device.ops.Arrays`."""

    kind = "WebGPU Array"
    formats = staticmethod(stored_formats)

    def are(self, value: Any) -> bool:
        return isinstance(value, Array)

    def check(self, op: Any, given: Mapping[str, Any], outs: Sequence[Array]) -> None:
        """Require arrays of one device. A result may be any input, since it is computed in new memory."""
        named = {name: memory_of(array) for name, array in given.items()}
        named |= {operand.name: out for operand, out in zip(op.outs, outs, strict=False)}
        first_name, first = next(iter(named.items()))
        for name, array in named.items():
            if array.engine is not first.engine:
                where = f"{array.engine.label}, expected that of {first_name}, {first.engine.label}"
                raise TypeError(f"{op.name}: {name} has the device {where}")

    def new(self, like: Array, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
        size = prod(shape) * dtype.itemsize
        return Array(Store(like.engine.block(size, "a result")), dtype, shape)

    def dense(self, array: Array) -> Array:
        return array

    def clear(self, out: Array) -> None:
        out.store.block = out.engine.upload(np.zeros(out.shape, out.dtype), "out")

    def run(
        self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], results: Mapping[str, Array]
    ) -> None:
        opened = next(iter(results.values())).engine
        blocks = {name: memory_of(a).store.block for name, a in arrays.items()}
        memory = compute(opened, Call(op, arrays, parameters, results, opened.lanes), blocks)
        for name, out in results.items():
            out.store.block = memory[name]

    def run_host(
        self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], results: Mapping[str, Any]
    ) -> None:
        compute_on_host(engine(choice.in_use()), op, arrays, parameters, results)


def op_function(name: str) -> Callable:
    """The public function of an op."""
    from airllm.tensor_ops import OPS  # importing it earlier is circular: it may open this backend

    return kernel_function(OPS[name], "tensor_ops_webgpu", _Arrays())
