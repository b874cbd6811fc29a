"""The ops in PyTorch, as its functions or as users write them: the baseline of benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from airllm.formats import Quantized

TORCH = "torch"


def torch_call(op_name: str, arrays: list[Any]) -> Callable[[], Any] | None:
    """A PyTorch call for an op on these arrays, on the CPU; None if it has no equivalent."""
    function = torch_op(op_name)
    if function is None or any(isinstance(array, Quantized) for array in arrays):
        return None
    tensors = [as_torch(array) for array in arrays]
    return lambda: function(*tensors)


def torch_op(op_name: str) -> Callable[..., Any] | None:
    """The PyTorch function for an op, for tensors on any device; None if it has no equivalent."""
    if op_name not in _OWN:
        return None
    import torch

    return partial(_OWN[op_name], torch, torch.nn.functional)


def as_torch(array: np.ndarray) -> Any:
    """The array as a torch.Tensor that shares its memory; bfloat16 is passed as 16-bit integers."""
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _add_rms_norm(torch: Any, f: Any, x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    total = x + residual
    return total, torch.rms_norm(total, total.shape[-1:], weight, 1e-6)


def _apply_rope(torch: Any, f: Any, x: Any, cos: Any, sin: Any) -> Any:
    """As in model code: full-width tables, and halves swapped by a concatenation."""
    cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def _attention(torch: Any, f: Any, q: Any, k: Any, v: Any) -> Any:
    causal = q.shape[-2] == k.shape[-2]  # a single query at the last key sees all keys
    return f.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal, enable_gqa=True)[0]


_OWN: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda torch, f, x, weight: torch.rms_norm(x, x.shape[-1:], weight, 1e-6),
    "layer_norm": lambda torch, f, x, weight: f.layer_norm(x, x.shape[-1:], weight),
    "add_rms_norm": _add_rms_norm,
    "silu": lambda torch, f, x: f.silu(x),
    "gelu": lambda torch, f, x: f.gelu(x, approximate="tanh"),
    "swiglu": lambda torch, f, gate, up: f.silu(gate) * up,
    "geglu": lambda torch, f, gate, up: f.gelu(gate, approximate="tanh") * up,
    "softmax": lambda torch, f, x: torch.softmax(x, -1),
    "apply_rope": _apply_rope,
    "matmul": lambda torch, f, a, b: torch.matmul(a, b),
    "matmul_vec": lambda torch, f, w, x: torch.mv(w, x),
    "linear": lambda torch, f, x, weight: f.linear(x, weight),
    "attention": _attention,
    "attention_scores": lambda torch, f, query, keys: torch.mv(keys, query),
    "weighted_sum_rows": lambda torch, f, weights, matrix: torch.mv(matrix.T, weights),
    "embedding": lambda torch, f, ids, table: f.embedding(ids, table),
}
