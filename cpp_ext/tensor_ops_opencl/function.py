"""The functions of the ops, for pyopencl and NumPy arrays."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from airllm.backends.device.ops import kernel_function
from airllm.backends.gpu import kernel_text
from tensor_ops_opencl import device_arrays, host_arrays
from tensor_ops_opencl.engine import engine
from tensor_ops_opencl.selection import choice


class _Arrays:
    """Implements `airllm.backends.device.ops.Arrays`."""

    kind = "pyopencl Array"
    formats = staticmethod(kernel_text.stored_formats)
    check = staticmethod(device_arrays.check_memory)
    clear = staticmethod(device_arrays.zeros)
    dense = staticmethod(device_arrays.dense)
    run = staticmethod(device_arrays.run)

    def are(self, value: Any) -> bool:
        module = sys.modules.get("pyopencl.array")
        return module is not None and isinstance(value, module.Array)

    def new(self, like: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
        import pyopencl.array

        return pyopencl.array.Array(like.queue, shape, dtype, allocator=like.allocator)

    def run_host(
        self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], results: Mapping[str, Any]
    ) -> None:
        host_arrays.run(engine(choice.in_use()), op, arrays, parameters, results)


def op_function(name: str) -> Callable:
    """The public function of an op."""
    from airllm.tensor_ops import OPS  # importing it earlier is circular: it may open this backend

    return kernel_function(OPS[name], "tensor_ops_opencl", _Arrays())
