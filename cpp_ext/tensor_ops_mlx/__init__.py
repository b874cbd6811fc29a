"""The ops of `airllm.tensor_ops` on MLX: on Apple GPUs through Metal; on Linux, on MLX's CPU build.

Arrays are C-contiguous float32, float16 or bfloat16. NumPy arrays give a NumPy array. `mlx.core.array` gives
one on MLX's default device, without a copy and without waiting. MLX can evaluate such a result only in the
thread that made it. An MLX array as `out=` becomes the result, as with `out[...] = result`.

The import starts nothing: the first call that needs MLX imports it. A process forked after that raises
RuntimeError ("spawn" works).
"""

from collections.abc import Callable
from typing import Any

from tensor_ops_mlx.runtime import calls, copies, counters, device, device_infos, only_when_asked

__all__ = [
    "calls",
    "copies",
    "counters",
    "device",
    "device_infos",
    "device_ops",
    "only_when_asked",
    "stored_formats",
]


def stored_formats() -> dict[str, tuple[int, int, int]]:
    """The block formats that kernels support: none of ggml's, since MLX's formats cannot represent them."""
    return {}


def device_ops() -> Any:
    """The ops of a model whose arrays stay on the device."""
    from tensor_ops_mlx import model_ops

    return model_ops.DeviceOps()


def __getattr__(name: str) -> Callable:
    """The function of an op, generated from its declaration at first access."""
    from airllm.tensor_ops import OPS

    if name in OPS:
        from tensor_ops_mlx import operations

        if hasattr(operations, name):
            from tensor_ops_mlx.function import op_function

            globals()[name] = function = op_function(OPS[name])
            return function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
