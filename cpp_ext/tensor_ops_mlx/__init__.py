"""The ops of `airllm.tensor_ops` on MLX: Apple's GPUs, through Metal; on Linux, MLX's build for processors.

Arrays are C-contiguous float32, float16 or bfloat16: NumPy's, which give a NumPy array, or `mlx.core.array`,
which give one on MLX's default device, without a copy and without waiting. Until it is evaluated, such a
result is its thread's: MLX evaluates it in no other. An `out=` of MLX's becomes the result, as by
`out[...] = result`.

Importing this starts nothing: MLX is imported by the first call that needs it. Not across a fork: a process
forked after that raises RuntimeError ("spawn" works).
"""

from collections.abc import Callable

from tensor_ops_mlx.runtime import calls, copies, device, device_infos, only_when_asked

__all__ = ["calls", "copies", "device", "device_infos", "only_when_asked", "stored_formats"]


def stored_formats() -> dict[str, tuple[int, int, int]]:
    """The stored formats that kernels read: none of ggml's, which MLX's own do not hold without a loss."""
    return {}


def __getattr__(name: str) -> Callable:
    """The function of an op that MLX computes, made from its declaration when first asked for."""
    from airllm.tensor_ops import OPS

    if name in OPS:
        from tensor_ops_mlx import operations

        if hasattr(operations, name):
            from tensor_ops_mlx.function import op_function

            globals()[name] = function = op_function(OPS[name])
            return function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
