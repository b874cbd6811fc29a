"""Import MLX once, and describe its device."""

import os
import sys
from typing import Any

from airllm.backends.device.driver_state import Driver

driver = Driver("MLX")
counters = driver.counters


def import_core() -> Any:
    """Import mlx.core. Raises ModuleNotFoundError without MLX.

    RuntimeError in a process forked after the first call: MLX's threads do not survive a fork.
    """
    if not driver.started:
        # By default, MLX rounds the operands of float32 products to 10 bits on GPUs where that is faster.
        os.environ.setdefault("MLX_ENABLE_TF32", "0")
    import mlx.core as mx

    driver.start()
    return mx


def calls() -> int:
    """Ops run by MLX so far in this process."""
    return driver.launched.value


def copies() -> int:
    """NumPy arrays copied to MLX's memory so far. Results are views of its memory, not copies."""
    return driver.copied.value


def on_gpu() -> bool:
    """Whether MLX's default device is a GPU."""
    mx = import_core()
    return mx.default_device().type == mx.gpu


def only_when_asked() -> str:
    """Why the automatic order skips MLX; "" if it has an Apple GPU."""
    if sys.platform != "darwin":
        return "MLX needs an Apple GPU, and there is none here"
    return "" if on_gpu() else "MLX has no GPU here: its default device is the CPU"


def device() -> str:
    """MLX's version and its device, in one line."""
    name = import_core().device_info()["device_name"]
    return f"MLX {import_core().__version__} on {name} ({'GPU' if on_gpu() else 'CPU'})"


def device_infos() -> list[dict[str, Any]]:
    """MLX's default device, with the fields of `airllm.backends.DeviceInfo`. Its memory is the host's."""
    from airllm.backends.devices import host_memory, usable_cores

    info = import_core().device_info()
    found: dict[str, Any] = {"name": info["device_name"], "unified_memory": True}
    if on_gpu():  # the memory that a GPU may use without slowing down
        return [found | {"total_memory": info["max_recommended_working_set_size"]}]
    total, free = host_memory()
    return [found | {"total_memory": total, "free_memory": free, "compute_units": usable_cores()}]
