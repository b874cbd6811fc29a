"""The ops of `airllm.tensor_ops` on OpenCL (any platform and device), through pyopencl.

Arrays are C-contiguous float32, float16 or bfloat16. NumPy arrays give a NumPy array. A
`pyopencl.array.Array` gives one on its queue, without a copy to the host and without waiting.
AIRLLM_OPENCL_DEVICE (or "opencl_device" in backend.json) selects the device: an index, "platform:device"
indices or a part of its name.

The import starts nothing: the first call that needs a device imports pyopencl and opens the device. A process
forked after that raises RuntimeError ("spawn" works).
"""

from airllm.backends.device.module import functions_of
from airllm.backends.gpu.kernel_text import stored_formats
from airllm.backends.gpu.launches import KERNELS
from tensor_ops_opencl.devices import driver
from tensor_ops_opencl.place import device_ops
from tensor_ops_opencl.selection import choice
from tensor_ops_opencl.survey import build_report, device, device_infos, get_opencl_info, variants

__all__ = [
    *KERNELS,
    "build_report",
    "calls",
    "copies",
    "counters",
    "device",
    "device_infos",
    "device_ops",
    "get_opencl_info",
    "only_when_asked",
    "select",
    "stored_formats",
    "try_again",
    "unusable",
    "use_device",
    "variants",
]

calls, copies, counters = driver.calls, driver.copies, driver.counters
select, use_device, try_again = choice.select, choice.use_device, choice.try_again
only_when_asked, unusable = choice.only_when_asked, choice.unusable
__getattr__, __dir__ = functions_of(globals(), KERNELS)
