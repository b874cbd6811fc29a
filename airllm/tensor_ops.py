"""The tensor operations of a Llama-family model.

Each function here is a declaration: its array axes, its documentation, and the NumPy code that defines
it. `airllm.op` makes of it the shape checks, the dispatch to the fastest backend of this machine, the
float64 truth and the inputs of tests and benchmarks. To see which kernel runs, and why the others do
not: `print_backend_info()`.

Arrays are float32, float16 or bfloat16 (arithmetic in float32, the result in the first array's dtype) or
float64 (computed by the definition in float64). Any strides; lists and arrays of other libraries are
taken, through DLPack where they have it, and come back as their kind. Every op takes `out=`, an array of
the result's shape and dtype, and `backend=`, the name of the backend for this one call.
Wrong shapes and read-only or overlapping `out` raise ValueError; wrong types and dtypes TypeError.
"""

import math

import numpy as np

from airllm.backends.registry import (
    get_backend,
    get_backend_info,
    print_backend_info,
    reload_backend,
    set_backend,
    use_backend,
)
from airllm.op import OPS, op


@op(x="... d", weight="d", out="... d")
def rms_norm(x, weight, eps=1e-6):
    """Scale each row of `x` to unit root-mean-square, then by `weight` (Zhang and Sennrich, 2019).

    `weight` has the dtype of `x` or float32. `out` may be `x` itself.
    """
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


@op(x="...", out="...")
def silu(x):
    """x * sigmoid(x), the activation of a Llama feed-forward (Elfwing et al., 2017). `out` may be `x`."""
    return x / (1 + np.exp(-x))


@op(x="...", out="...")
def gelu(x):
    """Gaussian error linear unit in its tanh form (Hendrycks and Gimpel, 2016). `out` may be `x`."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x / (1 + np.exp(-2 * u))  # 0.5 x (1 + tanh u), with all its digits where tanh nears -1


@op(x="... d", out="... d")
def softmax(x):
    """Exponentials of each row of `x`, scaled to sum to one. A row that is all -inf gives zeros.

    `out` may be `x` itself.
    """
    top = np.max(x, axis=-1, keepdims=True)
    e = np.exp(x - np.where(top == -np.inf, 0, top))
    total = np.sum(e, axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


@op(a="... m k", b="... k n", out="... m n")
def matmul(a, b):
    """Matrix product of the last two axes; leading axes broadcast as in NumPy. `out` must not overlap."""
    return np.matmul(a, b)


__all__ = [
    *OPS,
    "get_backend",
    "get_backend_info",
    "print_backend_info",
    "reload_backend",
    "set_backend",
    "use_backend",
]

set_backend("auto")  # raises here, at import, if a forced backend cannot run
