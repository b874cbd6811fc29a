"""What is kept open on a device (context, queue, compiled kernels, freed buffers)."""

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tensor_ops_opencl.devices import Device, driver
from tensor_ops_opencl.kernel_text import text
from tensor_ops_opencl.launches import Launch

OPTIONS = ("-cl-std=CL1.2",)
_opening = threading.RLock()


class Program:
    """The kernel text compiled for one device in one context, each family of kernels when first needed; a
    kernel object per name and thread.
    """

    def __init__(self, context: Any, device: Any, form: str):
        self.context, self.device, self.form = context, device, form
        self.compute_units = device.max_compute_units
        self._built: dict[str, Any] = {}
        self._building = threading.Lock()
        self._own = threading.local()

    def built(self, family: str) -> Any:
        """The compiled family."""
        if family not in self._built:
            with self._building:
                if family not in self._built:
                    import pyopencl as cl

                    program = cl.Program(self.context, text(self.form, family))
                    self._built[family] = program.build(options=list(OPTIONS), devices=[self.device])
        return self._built[family]

    def kernel(self, family: str, name: str) -> Any:
        """This thread's kernel object: its arguments are state that threads must not share."""
        kernels = self._own.__dict__
        if name not in kernels:
            import pyopencl as cl

            kernels[name] = cl.Kernel(self.built(family), name)
        return kernels[name]

    def launch(self, queue: Any, launch: Launch, memory: Mapping[str, Any], after: Sequence[Any] = ()) -> Any:
        """Enqueues a kernel, with the buffers that its arguments name. Returns its event."""
        items = (launch.groups * launch.group,), (launch.group,)
        arguments = (memory[a] if isinstance(a, str) else a for a in launch.arguments)
        kernel = self.kernel(launch.family, launch.kernel)
        event = kernel(queue, *items, *arguments, wait_for=list(after) or None)
        driver.launched.add()
        return event


class Engine:
    """A device opened for NumPy arrays."""

    def __init__(self, device: Device):
        import pyopencl as cl
        from pyopencl.tools import ImmediateAllocator, MemoryPool

        self.context = cl.Context([device.handle])
        self.queue = cl.CommandQueue(self.context, device.handle)
        self.program = program(self.context, device.handle, device.form)
        self.pool = MemoryPool(ImmediateAllocator(self.queue))
        self.shares_memory = bool(device.handle.type & cl.device_type.CPU)


@functools.lru_cache(maxsize=16)  # contexts come from users, too, and a program keeps its own alive
def _program(context: Any, device: Any, form: str) -> Program:
    return Program(context, device, form)


@functools.cache
def _engine(device: Device) -> Engine:
    return Engine(device)


def program(context: Any, device: Any, form: str) -> Program:
    """The program of a context's device, compiled once."""
    with _opening:
        driver.start()
        return _program(context, device, form)


def engine(device: Device) -> Engine:
    """The open device, opened once."""
    with _opening:
        driver.start()
        return _engine(device)
