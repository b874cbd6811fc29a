"""The ops of `airllm.tensor_ops` on WebGPU (Vulkan, Metal or Direct3D 12), through wgpu.

Arrays are C-contiguous float32, float16 or bfloat16. NumPy arrays give a NumPy array. An `Array` from
`to_device` gives one on its device, without a copy to the host and without waiting. AIRLLM_WEBGPU_DEVICE
selects the device: an index or a part of its name.

The import starts nothing: the first call that needs a device imports wgpu and opens the device. A process
forked after that raises RuntimeError ("spawn" works).
"""

from airllm.backends.device.module import functions_of
from tensor_ops_webgpu.arrays import Array
from tensor_ops_webgpu.devices import driver
from tensor_ops_webgpu.kernel_text import stored_formats
from tensor_ops_webgpu.launches import KERNELS
from tensor_ops_webgpu.place import device_ops
from tensor_ops_webgpu.selection import choice
from tensor_ops_webgpu.survey import device, device_infos, get_webgpu_info, variants
from tensor_ops_webgpu.transfer import to_device

__all__ = [
    *KERNELS,
    "Array",
    "calls",
    "copies",
    "counters",
    "device",
    "device_infos",
    "device_ops",
    "get_webgpu_info",
    "only_when_asked",
    "select",
    "stored_formats",
    "use_device",
    "to_device",
    "try_again",
    "unusable",
    "variants",
]

calls, copies, counters = driver.calls, driver.copies, driver.counters
select, use_device, try_again = choice.select, choice.use_device, choice.try_again
only_when_asked, unusable = choice.only_when_asked, choice.unusable
__getattr__, __dir__ = functions_of(globals(), KERNELS)
