"""The tensor operations of a Llama-family model.

Each function here declares an op: its array axes, its documentation, and the NumPy code that defines it.
From that, `airllm.ops.op` derives the shape checks, the dispatch to the fastest backend of this machine,
the float64 reference, and the inputs of tests and benchmarks. `print_backend_info()` shows which backend
runs and why the others do not.

Arrays are float32, float16 or bfloat16, or float64. The first three compute in float32, and the result has
the dtype of the first array. float64 is computed in float64 by the NumPy definition. Arrays may have any
strides. Ops also accept lists and arrays of other libraries (through DLPack if they support it), and return
the same kind. Every op takes `out=`, an array of the result's shape and dtype, and `backend=`, the name of
the backend for this call. Wrong shapes and a read-only or overlapping `out` raise ValueError; wrong types
and dtypes raise TypeError.
"""

import math
from typing import Any, Literal

import numpy as np

from airllm.backends.describe import explain, get_backend_info, print_backend_info
from airllm.backends.registry import get_backend, reload_backend, set_backend, use_backend
from airllm.formats import Quantized, format_named
from airllm.ops.op import OPS, op
from airllm.ops.parameters import Positive
from airllm.ops.rope_scaling import frequencies


@op(x="... d", weight="d", out="... d")
def rms_norm(x, weight, eps: float = 1e-6):
    """Scale each row of `x` to unit root-mean-square, then by `weight` (Zhang and Sennrich, 2019).

    `weight` has the dtype of `x` or float32. `out` may be `x` itself.
    """
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


@op(x="... d", weight="d", bias="d", out="... d")
def layer_norm(x, weight, bias=None, eps: float = 1e-5):
    """Scale each row of `x` to zero mean and unit variance, then by `weight`, plus `bias` (Ba et al., 2016).

    `weight` and `bias` have the dtype of `x` or float32. `out` may be `x` itself.
    """
    apart = x - np.mean(x, axis=-1, keepdims=True)
    scaled = apart / np.sqrt(np.mean(apart * apart, axis=-1, keepdims=True) + eps) * weight
    return scaled if bias is None else scaled + bias


@op(x="... d", residual="... d", weight="d", out=("... d", "... d"))
def add_rms_norm(x, residual, weight, eps: float = 1e-6):
    """Add `x` and `residual`, then apply `rms_norm` to the sum: the start of each half of a decoder layer.

    Returns (sum, normed). `out=` is a pair of arrays, which may be `x` and `residual` themselves.
    """
    total = x + residual
    return total, OPS["rms_norm"].definition(total, weight, eps)


@op(x="...", out="...")
def silu(x):
    """x * sigmoid(x), the activation of a Llama feed-forward (Elfwing et al., 2017). `out` may be `x`."""
    return x / (1 + np.exp(-x))


@op(x="...", out="...")
def gelu(x, approximate: Literal["tanh", "none"] = "tanh"):
    """Gaussian error linear unit (Hendrycks and Gimpel, 2016). `out` may be `x`.

    `approximate` is "tanh" for the hyperbolic tangent approximation, "none" for the exact error function.
    """
    if approximate == "none":
        return x * _erfc(x * -math.sqrt(0.5)) / 2
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x / (1 + np.exp(-2 * u))  # 0.5 x (1 + tanh u), without losing digits as tanh nears -1


@op(gate="...", up="...", out="...")
def swiglu(gate, up):
    """silu(gate) * up: the middle of a Llama feed-forward (Shazeer, 2020). `out` may be either."""
    return OPS["silu"].definition(gate) * up


@op(gate="...", up="...", out="...")
def geglu(gate, up, approximate: Literal["tanh", "none"] = "tanh"):
    """gelu(gate) * up: the middle of a Gemma feed-forward (Shazeer, 2020). `out` may be either."""
    return OPS["gelu"].definition(gate, approximate) * up


@op(x="... d", mask="... d : mask", out="... d")
def softmax(x, scale: float = 1.0, mask=None):
    """Softmax of each row of x * scale. A row that is all -inf gives zeros.

    A bool `mask` keeps elements where it is True; a float `mask` is added to x * scale. `out` may be `x`.
    """
    return _softmax_in_place(x * scale, mask)


@op(
    x="... d",
    cos="... r : any float",
    sin="... r : any float",
    out="... d",
    requires={"2 r at most d": lambda r, d: 2 * r <= d},
)
def apply_rope(x, cos, sin, interleaved: bool = False):
    """Rotate pairs of each row of `x` by the angles of its position (Su et al., 2021). `out` may be `x`.

    `x` is (..., heads, seq, d). `cos` and `sin`, from `rope_table`, are (seq, r) or (batch, 1, seq, r). The
    first 2 r elements of a row are rotated, the rest are unchanged. Pairs are (i, i + r), as in Hugging Face
    checkpoints, or (2 i, 2 i + 1) if `interleaved`, as in the paper and in ONNX.
    """
    r = cos.shape[-1]
    pairs = (slice(0, 2 * r, 2), slice(1, 2 * r, 2)) if interleaved else (slice(r), slice(r, 2 * r))
    first, second = (x[..., half] for half in pairs)
    rotated = x.copy()
    rotated[..., pairs[0]] = first * cos - second * sin
    rotated[..., pairs[1]] = second * cos + first * sin
    return rotated


@op(a="... m? k", b="... k n?", out="... m? n?")
def matmul(a, b):
    """Matrix product of the last two axes; leading axes broadcast as in NumPy. `out` must not overlap.

    A vector (k) works as in NumPy: `a` becomes a row, `b` a column, and the result drops that axis.
    """
    return np.matmul(a, b)


@op(w="n k : stored", x="k", out="n")
def matmul_vec(w, x):
    """Matrix `w` (floats or a Quantized) times vector `x`; the result has the dtype of `x`."""
    return w @ x


@op(x="... k", weight="n k : stored", bias="n : any float", out="... n")
def linear(x, weight, bias=None):
    """x @ weight.T + bias. `weight` has one row per output, as in checkpoints: floats or a Quantized.

    A Quantized weight is multiplied without dequantizing it. `x` is then rounded to 8 bits in blocks of 32
    (256 for the K formats), with a relative L2 error of about half a percent in the result.
    """
    product = np.matmul(x, weight.T)
    return product if bias is None else product + bias


@op(
    q="... h t d",
    k="... g s d : any float",
    v="... g s e : any float",
    mask="... h t s : mask",
    sinks="h",
    out="... h t e",
    requires={"h a multiple of g": lambda h, g: h == g or (g and h % g == 0)},
)
def attention(
    q,
    k,
    v,
    mask=None,
    causal: bool = False,
    scale: float | None = None,
    softcap: Positive | None = None,
    window: int | None = None,
    sinks=None,
):
    """softmax(q k^T * scale + mask) v for each head (Vaswani et al., 2017), without a score matrix in memory.

    Query head i attends to key-value head i // (h / g) (grouped-query attention: Ainslie et al., 2023).
    `scale` defaults to 1 / sqrt(d). `softcap` c replaces a score s by c * tanh(s / c) (Gemma 2). `causal`
    hides keys after a query; the last query is at the position of the last key. `window` hides keys that
    are `window` or more positions before a query. A bool `mask` keeps keys where it is True; a float `mask`
    is added to the scores. `sinks` has one extra score per head, which takes part in the softmax of each
    query and has no value (GPT-OSS; Xiao et al., 2024). Scale, softcap, mask, `causal` and `window` do not
    apply to it. It has the dtype of `q` or float32. A query without a visible key gives zeros. Arrays may
    have any strides if the last axis is contiguous.
    """
    *batch, h, t, d = q.shape
    g, s = k.shape[-3:-1]
    of_groups = (*batch, g, h // g * t)  # the query rows of all heads that share a key-value head
    scores = (q.reshape(*of_groups, d) @ np.swapaxes(k, -1, -2)).reshape(*batch, h, t, s)
    scores *= 1 / math.sqrt(max(d, 1)) if scale is None else scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if causal or window is not None:
        after = np.arange(s) - np.arange(s - t, s)[:, None]  # key position - query position
        hidden = (causal & (after > 0)) | (window is not None and after <= -window)
        np.copyto(scores, -np.inf, where=hidden)
    weights = _softmax_in_place(scores, mask, None if sinks is None else sinks[:, None, None])
    return (weights.reshape(*of_groups, s) @ v).reshape(*batch, h, t, v.shape[-1])


@op(query="d", keys="s d : any float", out="s")
def attention_scores(query, keys, scale: float = 1.0):
    """Dot product of `query` with each row of `keys`, times `scale`."""
    return keys @ query * scale


@op(weights="s", matrix="s d : any float", out="d")
def weighted_sum_rows(weights, matrix):
    """The sum of the rows of `matrix`, each multiplied by its weight."""
    return weights @ matrix


@op(ids="... : index of v", table="v d : stored", out="... d", computes=False)
def embedding(ids, table):
    """The rows `ids` of `table`. Rows of a Quantized table are dequantized to float32."""
    rows = table[ids]
    return rows.dequantize() if isinstance(rows, Quantized) else rows


@op(x="... k", out="... k : quantized")
def quantize(x, format: str):
    """Quantize each row of `x` to one of ggml's block formats ("q8_0", "q4_0", ...); returns a Quantized."""
    of = format_named(format, "quantize", packing=True)
    return Quantized(of.encode(x), of.name)


@op(q="... k : quantized", out="... k")
def dequantize(q):
    """The values of a Quantized as float32."""
    return q.dequantize()


def rope_table(
    positions, dim: int, theta: float = 10000.0, scaling: dict[str, Any] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines for `apply_rope` at `positions` (...): two float32 arrays (..., dim / 2).

    `theta` is the base of the geometric series of angles. `scaling` is a checkpoint's `rope_scaling` with
    rope_type "linear", "llama3", "yarn" or "factors" (a divisor for each pair). Angles are computed in
    float64. Raises ValueError for an odd `dim` or an unknown scaling.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"rope_table: dim has value {dim}, expected an even number from 2")
    turns, factor = frequencies(dim, theta, scaling)
    angles = np.asarray(positions, np.float64)[..., None] * turns
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def _softmax_in_place(x: np.ndarray, mask: np.ndarray | None, sinks: np.ndarray | None = None) -> np.ndarray:
    """softmax(x + mask), in place: allocating memory for each step costs more than the step.

    A sink is an extra element of a row. It adds to the sum and is not in the result.
    """
    if mask is not None and mask.dtype == np.bool_:
        np.copyto(x, -np.inf, where=~mask)
    elif mask is not None:
        x += mask
    top = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks)
    top = np.where(top == -np.inf, 0, top)
    x -= top
    np.exp(x, out=x)
    total = np.sum(x, axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - top)
    x /= np.where(total == 0, 1, total)
    return x


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


__all__ = [
    *OPS,
    "Quantized",
    "explain",
    "get_backend",
    "get_backend_info",
    "print_backend_info",
    "reload_backend",
    "rope_table",
    "set_backend",
    "use_backend",
]

set_backend("auto")  # raises here, at import, if a forced backend cannot run
