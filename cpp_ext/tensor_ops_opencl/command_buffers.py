"""OpenCL's command buffers: launches that a driver records once, and starts together. pyopencl has no calls
for them, so they are called as the driver gives them: by the extension cl_khr_command_buffer.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Sequence
from typing import Any

EXTENSION = "cl_khr_command_buffer"
_POINTER, _SIZES = ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
_SIGNATURES: dict[str, tuple[Any, ...]] = {  # result, and parameters
    "clCreateCommandBufferKHR": (
        _POINTER, ctypes.c_uint, _POINTER, _POINTER, ctypes.POINTER(ctypes.c_int),
    ),
    "clCommandNDRangeKernelKHR": (
        ctypes.c_int, _POINTER, _POINTER, _POINTER, _POINTER, ctypes.c_uint, _SIZES, _SIZES, _SIZES,
        ctypes.c_uint, _POINTER, _POINTER, _POINTER,
    ),
    "clFinalizeCommandBufferKHR": (ctypes.c_int, _POINTER),
    "clEnqueueCommandBufferKHR": (
        ctypes.c_int, ctypes.c_uint, _POINTER, _POINTER, ctypes.c_uint, _POINTER, _POINTER,
    ),
    "clReleaseCommandBufferKHR": (ctypes.c_int, _POINTER),
}  # fmt: skip


class CommandBufferError(RuntimeError):
    """A driver did not take a command buffer."""


@functools.cache
def functions(platform: int) -> dict[str, Any] | None:
    """The calls of a platform's driver, by name; None if it does not give them."""
    if not (loader := ctypes.util.find_library("OpenCL")):
        return None
    find = ctypes.CDLL(loader).clGetExtensionFunctionAddressForPlatform
    find.restype, find.argtypes = _POINTER, (_POINTER, ctypes.c_char_p)
    found = {name: find(platform, name.encode()) for name in _SIGNATURES}
    if not all(found.values()):
        return None
    return {name: ctypes.CFUNCTYPE(*_SIGNATURES[name])(at) for name, at in found.items()}


def functions_of(device: Any) -> dict[str, Any] | None:
    """Those of a device's driver; None if the device has no command buffers."""
    return functions(device.platform.int_ptr) if EXTENSION in device.extensions.split() else None


class CommandBuffer:
    """Kernels with their arguments of now and their grids, (kernel, items, items of a group), which run in
    order on a queue. Raises CommandBufferError.
    """

    def __init__(self, calls: dict[str, Any], queue: Any, launches: Sequence[tuple[Any, int, int]]):
        self._calls, self._queue = calls, queue
        self._kernels = [kernel for kernel, _, _ in launches]
        code, queues = ctypes.c_int(), (_POINTER * 1)(queue.int_ptr)
        self._handle = calls["clCreateCommandBufferKHR"](1, queues, None, ctypes.byref(code))
        _check(code.value, "clCreateCommandBufferKHR")
        for kernel, items, group in launches:
            sizes = [(ctypes.c_size_t * 1)(n) for n in (items, group)]
            given = (self._handle, None, None, kernel.int_ptr, 1, None, *sizes, 0, None, None, None)
            self._call("clCommandNDRangeKernelKHR", *given)
        self._call("clFinalizeCommandBufferKHR", self._handle)

    def enqueue(self) -> None:
        """Start them, after what is on the queue. They must not run already."""
        self._call("clEnqueueCommandBufferKHR", 0, None, self._handle, 0, None, None)

    def _call(self, name: str, *given: Any) -> None:
        _check(self._calls[name](*given), name)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._calls["clReleaseCommandBufferKHR"](self._handle)


def _check(code: int, call: str) -> None:
    if code:
        raise CommandBufferError(f"{call} failed with the error {code}")
