"""MLX, imported once, and the device that it computes on."""

import os
import sys
from typing import Any

from airllm.backends.device.driver_state import Driver

driver = Driver("MLX")


def import_core() -> Any:
    """The module mlx.core. Raises ModuleNotFoundError without MLX.

    RuntimeError in a process that was forked after the first call: the threads of MLX do not live on in it.
    """
    if not driver.started:
        # By default, MLX rounds the operands of float32 products to 10 bits on GPUs that gain by it.
        os.environ.setdefault("MLX_ENABLE_TF32", "0")
    import mlx.core as mx

    driver.start()
    return mx


def calls() -> int:
    """Ops given to MLX so far in this process."""
    return driver.launched.value


def copies() -> int:
    """NumPy arrays copied into MLX's memory so far. Results are NumPy's views of it, and not copied."""
    return driver.copied.value


def on_gpu() -> bool:
    """Whether MLX's default device is a GPU."""
    mx = import_core()
    return mx.default_device().type == mx.gpu


def only_when_asked() -> str:
    """Why the automatic order passes MLX over, "" where it has an Apple GPU to compute on."""
    if sys.platform != "darwin":
        return "MLX is for Apple's GPUs, of which there is none here"
    return "" if on_gpu() else "MLX has no GPU here: its default device is the CPU"


def device() -> str:
    """MLX's version and the device that it computes on, in a line."""
    name = import_core().device_info()["device_name"]
    return f"MLX {import_core().__version__} on {name} ({'GPU' if on_gpu() else 'CPU'})"


def device_infos() -> list[dict[str, Any]]:
    """MLX's default device in the fields of `airllm.backends.DeviceInfo`. All of its memory is the host's."""
    from airllm.backends.devices import host_memory, usable_cores

    info = import_core().device_info()
    found: dict[str, Any] = {"name": info["device_name"], "unified_memory": True}
    if on_gpu():  # what a GPU may take of the memory without slowing down
        return [found | {"total_memory": info["max_recommended_working_set_size"]}]
    total, free = host_memory()
    return [found | {"total_memory": total, "free_memory": free, "compute_units": usable_cores()}]
