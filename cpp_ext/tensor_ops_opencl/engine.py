"""The open resources of a device: context, queue, compiled kernels, buffer pool."""

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from airllm.backends import reasons
from airllm.backends.gpu.kernel_text import text
from airllm.backends.gpu.launches import Launch
from tensor_ops_opencl.devices import Device, driver

OPTIONS = ("-cl-std=CL1.2",)
_OLD_POCL = (
    "this PoCL, {version}, is older than the CPU; Debian: apt-get install pocl-opencl-icd; a GPU comes with "
    "its driver; pip uninstall pocl-binary-distribution removes PyPI's PoCL; on a CPU cpp is faster anyway"
)
_opening = threading.RLock()


class NotCompiled(RuntimeError):
    """A device does not compile the kernels."""


def why_not_built(device: Any, error: Exception) -> str:
    """One line that says why a device does not compile the kernels, with a remedy if there is one."""
    found = f"OpenCL kernels do not compile: {reasons.one_line(_log_of(str(error)))}"
    if "unknown target CPU" in found:
        found += f" ({_OLD_POCL.format(version=' '.join(device.platform.version.split()[2:4]))})"
    return found


def _log_of(message: str) -> str:
    """The compiler's log in a build error of pyopencl; the whole message if it has none."""
    log = message.partition("Build on <")[2].partition("\n")[2].partition("(options:")[0]
    return log if log.strip() else message


_NOT_SET = object()
# An absent array, as the bytes of OpenCL's own null: versions of pyopencl such as 2025.2.7 take no None.
_NULL = bytes(np.dtype(np.uintp).itemsize)


def _differs(argument: Any, known: Any) -> bool:
    """Whether a kernel must be told an argument. Of equal floats, one may be -0."""
    if argument is known:
        return False
    return known is _NOT_SET or not isinstance(argument, np.integer) or argument != known


class Program:
    """The kernel source compiled for one device in one context, each family of kernels when first needed,
    with an object for each kernel and thread.
    """

    def __init__(self, context: Any, device: Any, form: str):
        self.context, self.device, self.form = context, device, form
        self.compute_units = device.max_compute_units
        self._built: dict[str, Any] = {}
        self._building = threading.Lock()
        self._own = threading.local()

    def build(self, family: str) -> Any:
        """Compile a family; NotCompiled with the reason if the device cannot."""
        if family not in self._built:
            with self._building:
                if family not in self._built:
                    import pyopencl as cl

                    program = cl.Program(self.context, text(self.form, family))
                    try:
                        self._built[family] = program.build(options=list(OPTIONS), devices=[self.device])
                    except cl.Error as error:
                        raise NotCompiled(why_not_built(self.device, error)) from error
        return self._built[family]

    def kernel(self, family: str, name: str) -> tuple[Any, list]:
        """This thread's kernel object, and the arguments that it has: they are state, so threads must not
        share it.
        """
        kernels = self._own.__dict__
        if (key := f"{family}.{name}") not in kernels:
            kernel = self.new_kernel(family, name)
            kernels[key] = kernel, [_NOT_SET] * kernel.num_args
        return kernels[key]

    def new_kernel(self, family: str, name: str) -> Any:
        """A kernel object of the caller's own."""
        import pyopencl as cl

        return cl.Kernel(self.build(family), name)

    def launch(self, queue: Any, launch: Launch, memory: Mapping[str, Any], after: Sequence[Any] = ()) -> Any:
        """Enqueue a kernel with the buffers that its arguments name; return its event."""
        import pyopencl as cl

        kernel, known = self.kernel(launch.family, launch.kernel)
        for i, argument in enumerate(launch.arguments):
            if isinstance(argument, str):
                kernel.set_arg(i, memory[argument])
                known[i] = _NOT_SET
            elif _differs(argument, known[i]):  # most numbers are those of the last launch
                kernel.set_arg(i, _NULL if argument is None else argument)
                known[i] = argument
        items = (launch.groups * launch.group,), (launch.group,)
        event = cl.enqueue_nd_range_kernel(queue, kernel, *items, wait_for=list(after) or None)
        driver.launched.add()
        driver.counters.add(launches=1, submits=1)
        return event


def set_arguments(kernel: Any, arguments: Sequence[Any], memory: Mapping[str, Any]) -> None:
    """Set all arguments of a kernel: the buffers that they name, and numbers."""
    for i, argument in enumerate(arguments):
        kernel.set_arg(
            i, memory[argument] if isinstance(argument, str) else _NULL if argument is None else argument
        )


class Engine:
    """An open device for NumPy arrays."""

    def __init__(self, device: Device):
        import pyopencl as cl
        from pyopencl.tools import ImmediateAllocator, MemoryPool

        self.context = cl.Context([device.handle])
        self.queue = cl.CommandQueue(self.context, device.handle)
        self.program = Program(self.context, device.handle, device.form)
        self.pool = MemoryPool(ImmediateAllocator(self.queue))
        self.shares_memory = bool(device.handle.type & cl.device_type.CPU)


@functools.lru_cache(maxsize=16)  # bounded: users' contexts count too, and a program keeps its context alive
def _program(context: Any, device: Any, form: str) -> Program:
    return Program(context, device, form)


@functools.cache
def _engine(device: Device) -> Engine:
    return Engine(device)


def program(context: Any, device: Any, form: str) -> Program:
    """The program for a context's device, created once."""
    with _opening:
        driver.start()
        return _program(context, device, form)


def forget_engines() -> None:
    """Open devices anew from now on: one was lost."""
    with _opening:
        _engine.cache_clear()
        _program.cache_clear()


def engine(device: Device) -> Engine:
    """Open a device, once."""
    with _opening:
        driver.start()
        return _engine(device)
