"""The ops in terms of MLX's. They take and return float32; products and `embedding` take any floats.

Each has the parameters and the meaning of its declaration in `airllm.tensor_ops`. MLX's own norms, softmax
and erf are less accurate than float32 allows, or differ if everything is masked.
"""

import math

import mlx.core as mx

from tensor_ops_mlx.runtime import on_gpu

_HALVES = 4096  # products of float16 or bfloat16 in one sum; their result has fewer digits
_SCORES = 1 << 26  # attention scores in memory at a time

# For gelu: erfc(z) = exp(-z^2) * a polynomial in t = 1 / (1 + 0.4 z), without the last factor t; fit to 1e-8.
_ERFCX = (
    *(-0.02772447094, 0.1879071295, -0.4751781225, 0.5161172748, -0.2585077882),
    *(0.2583016455, 0.1343924999, 0.2139202505, 0.2250707299, 0.2257008851),
)


def _part():
    """How many numbers to add in one sum: a float32 sum loses digits with its length.

    MLX adds one by one on the CPU, and in groups on a GPU, where splitting a sum costs time.
    """
    return 8192 if on_gpu() else 256


# ---- rows ----


def rms_norm(x, weight, eps):
    return x * mx.rsqrt(_mean(x * x) + eps) * weight


def layer_norm(x, weight, bias=None, eps=1e-5):
    """The mean takes two steps: with one rounding, a row far from zero would lose all digits."""
    first = x[..., :1]
    apart = x - (first + _mean(x - first))  # a row of equal numbers gives exact zeros
    apart = apart - _mean(apart)
    scaled = apart * mx.rsqrt(_mean(apart * apart) + eps) * weight
    return scaled if bias is None else scaled + bias


def add_rms_norm(x, residual, weight, eps):
    total = x + residual
    return total, rms_norm(total, weight, eps)


def softmax(x, scale, mask=None):
    return _softmax(x * scale, mask)


def _softmax(x, mask, sinks=None):
    """A row's sink is an extra element. It adds to the sum and is not in the result."""
    if mask is not None:
        x = mx.where(mask, x, -math.inf) if mask.dtype == mx.bool_ else x + mask
    top = mx.max(x, axis=-1, keepdims=True)
    if sinks is not None:
        top = mx.maximum(top, sinks)
    top = mx.where(top == -math.inf, 0, top)
    e = mx.exp(x - top)
    total = _sum(e)
    if sinks is not None:
        total = total + mx.exp(sinks - top)
    return e / mx.where(total == 0, 1, total)


def _mean(x):
    return _sum(x) / x.shape[-1]


def _sum(x):
    """Sum along the last axis, which is kept with size 1; in parts if it is long."""
    n, part = x.shape[-1], _part()
    if n <= part:
        return mx.sum(x, axis=-1, keepdims=True)
    whole = n - n % part
    parts = mx.sum(mx.unflatten(x[..., :whole], -1, (-1, part)), axis=-1)
    return _sum(mx.concatenate([parts, mx.sum(x[..., whole:], axis=-1, keepdims=True)], axis=-1))


# ---- elements ----


def silu(x):
    return x / (1 + mx.exp(-x))


def gelu(x, approximate):
    if approximate == "none":
        return _gelu_with_erf(x)
    return x / (1 + mx.exp(x * (-1.5957691216057308 - 0.07135481627152966 * x * x)))


def _gelu_with_erf(x):
    """x / 2 * erfc(-x / sqrt 2): with 1 + erf, the tail would be lost."""
    size = mx.minimum(mx.abs(x), 15)  # above 15, the tail is 0 in float32
    t = 1 / (1 + 0.28284271 * size)
    p = mx.full((), _ERFCX[0])
    for coefficient in _ERFCX[1:]:
        p = p * t + coefficient
    tail = p * t * _exp_of_minus_half_square(size)
    return 0.5 * x * mx.where(x < 0, tail, 2 - tail)


def _exp_of_minus_half_square(size):
    """exp turns absolute errors into relative ones, so it gets an exact part of the square and the rest."""
    coarse = mx.round(size * 16) / 16
    return mx.exp(-0.5 * coarse * coarse) * mx.exp(-0.5 * (size - coarse) * (size + coarse))


def swiglu(gate, up):
    return silu(gate) * up


def geglu(gate, up, approximate):
    return gelu(gate, approximate) * up


def apply_rope(x, cos, sin, interleaved):
    r = cos.shape[-1]
    turning, rest = x[..., : 2 * r], x[..., 2 * r :]
    if interleaved:
        pairs = mx.unflatten(turning, -1, (r, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = turning[..., :r], turning[..., r:]
    rotated = [first * cos - second * sin, second * cos + first * sin]
    together = mx.flatten(mx.stack(rotated, axis=-1), -2) if interleaved else mx.concatenate(rotated, axis=-1)
    return mx.concatenate([together, rest], axis=-1)


# ---- products ----


def matmul(a, b):
    """MLX also adds products of float16 and bfloat16 in float32, and rounds once."""
    k = a.shape[-1]
    if k <= _part() or (a.dtype == b.dtype != mx.float32 and k <= _HALVES):
        together = mx.float32 if a.dtype != b.dtype else a.dtype
        return a.astype(together) @ b.astype(together)
    a, b, half = a.astype(mx.float32), b.astype(mx.float32), k // 2
    return matmul(a[..., :half], b[..., :half, :]) + matmul(a[..., half:], b[..., half:, :])


def matmul_vec(w, x):
    return matmul(x[None], w.T)[0]


def linear(x, weight, bias=None):
    rows = (x if bias is None else x.astype(mx.float32)).reshape(math.prod(x.shape[:-1]), x.shape[-1])
    product = matmul(rows, weight.T).reshape(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias.astype(mx.float32)


def attention_scores(query, keys, scale):
    return matmul_vec(keys.astype(mx.float32), query) * scale


def weighted_sum_rows(weights, matrix):
    return matmul(weights[None], matrix)[0]


def embedding(ids, table):
    """An id out of range gives NaN: ids on a device are not checked before."""
    is_row = (ids >= 0) & (ids < table.shape[0])
    return mx.where(is_row[..., None], table[mx.where(is_row, ids, 0)], math.nan)


# ---- attention ----


def attention(q, k, v, mask=None, causal=False, scale=None, softcap=None, window=None, sinks=None):
    t, s = q.shape[-2], k.shape[-2]
    q = q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is None and softcap is None and window is None and not (causal and t > s) and s <= _part():
        return _fused_attention(q, k, v, causal, sinks)
    rows = max(1, _SCORES // (math.prod(q.shape[:-2]) * s))
    by_head = None if sinks is None else sinks[:, None, None]
    results = []
    for start in range(0, t, rows):
        here = slice(start, start + rows)
        scores = _by_group(q[..., here, :], k.swapaxes(-1, -2))
        if softcap is not None:
            scores = softcap * mx.tanh(scores / softcap)
        scores = mx.where(_hidden(t, s, causal, window)[here], -math.inf, scores)
        results.append(_by_group(_softmax(scores, _rows_of(mask, here), by_head), v))
    return mx.concatenate(results, axis=-2)


def _fused_attention(q, k, v, causal, sinks):
    """MLX's attention, which stores no score matrix; every query must have a key."""
    lead = q.shape[:-3]
    k, v = (mx.broadcast_to(a, (*lead, *a.shape[-3:])) for a in (k, v))
    given = [a.reshape(-1, *a.shape[-3:]) for a in (q, k, v)]
    rule = "causal" if causal else None
    result = mx.fast.scaled_dot_product_attention(*given, scale=1.0, mask=rule, sinks=sinks)
    return result.reshape(*lead, *result.shape[1:])


def _by_group(a, b):
    """a (..., h, t, n) @ b (..., g, n, m): head i times matrix i // (h / g)."""
    *lead, h, t, n = a.shape
    g = b.shape[-3]
    return matmul(a.reshape(*lead, g, h // g * t, n), b).reshape(*lead, h, t, b.shape[-1])


def _hidden(t, s, causal, window):
    """Which keys are hidden from each query, by their position relative to it."""
    after = mx.arange(s) - mx.arange(s - t, s)[:, None]
    hidden = after > (0 if causal else t)
    return hidden if window is None else hidden | (after <= -min(window, s + t))


def _rows_of(mask, here):
    """The mask's rows for some of the queries, if it has a row per query."""
    return mask if mask is None or mask.ndim < 2 or mask.shape[-2] == 1 else mask[..., here, :]
