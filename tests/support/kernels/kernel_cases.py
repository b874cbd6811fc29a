"""Small calls of every GPU kernel for the tests that launch them themselves, with their exact results.

Sizes lie around a pack, a work-group and a tile. The definitions are in float64 and independent of the
library's own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from stored import scales, with_scales

from airllm.backends.gpu.kernel_text import stored_formats
from airllm.formats import FORMATS, Quantized

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
LENGTHS = (1, 5, 8, 19, 150)  # that fill no pack, one, or a work-group and a bit
MANY_UNITS = 1000  # compute units for which no tile is small enough; 0 leads to the largest
# Batch, m, n, k, and compute units: few rows, sizes that fill no tile, quads that need no guard, a second
# slice of k, a second block of k, a second tile. A large tile takes seconds under oclgrind, so not every
# dtype has each of them.
ROWS = ((1, 1, 3, 5), (2, 2, 70, 9), (1, 4, 64, 3))
CPU_BLOCKS = ((1, 1, 3, 300), (1, 5, 6, 300), (2, 7, 17, 18), (1, 66, 3, 5), (1, 250, 16, 2))
TILES: dict[Any, tuple] = {
    np.float32: ((1, 5, 8, 20), (1, 66, 3, 5), (1, 5, 6, 3, 0)),
    np.float16: ((1, 5, 8, 4), (1, 7, 9, 18, 0)),
    ml_dtypes.bfloat16: ((2, 7, 9, 5), (1, 5, 8, 4, 0)),
}


@dataclass(frozen=True)
class Case:
    """A call: arrays by name, None for one that is not given, and exact results by name."""

    op: str
    arrays: dict[str, Any]
    exact: dict[str, np.ndarray]
    parameters: dict[str, Any] = field(default_factory=dict)
    compute_units: int = MANY_UNITS
    result_dtype: Any = None  # that of the first array if None

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.result_dtype or next(iter(self.arrays.values())).dtype)

    def __str__(self) -> str:
        shapes = {name: getattr(array, "shape", None) for name, array in self.arrays.items()}
        return f"{self.op} {self.dtype} {shapes} {self.parameters}"


def cases(form: str) -> Iterator[Case]:
    """Cases that together reach every kernel of a form."""
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        for d in LENGTHS:
            yield from _elements(rng, dtype, d)
            yield from _rows(rng, dtype, d)
            yield from _softmax(rng, dtype, d)
            yield from _rope(rng, dtype, 1 + d)
        for sizes in FEW_QUERIES:
            yield from _attention(rng, dtype, sizes)
        yield from _products(rng, dtype)
        yield from list(_attention(rng, dtype, MANY_QUERIES[dtype]))[DTYPES.index(dtype) :][:1]
        for batch, m, n, k, *units in (*ROWS, *(CPU_BLOCKS if form == "cpu" else TILES[dtype])):
            yield _matmul(rng, dtype, (batch, m, n, k), *units)
    for format in stored_formats():
        yield from _blocks(rng, format)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape, np.float32).astype(dtype)


def blocks(rng: np.random.Generator, format: str, rows: int, k: int) -> Quantized:
    """Blocks of random bits, whose scales are small numbers."""
    of = FORMATS[format]
    data = rng.integers(0, 256, (rows, k // of.values, of.bytes), np.uint8)
    data = with_scales(data, format, normal(rng, (*data.shape[:2], scales(format))))
    return Quantized(data.reshape(rows, -1), format)


def f64(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


@dataclass(frozen=True)
class Sizes:
    """Of an attention: batch, query heads, key heads, queries, keys, and the lengths of their rows."""

    b: int
    h: int
    g: int
    t: int
    s: int
    d: int
    e: int
    compute_units: int = 1


# One key, rows that fill no pack, a second block of keys, keys in several parts.
FEW_QUERIES = (
    Sizes(2, 4, 2, 1, 1, 4, 8),
    Sizes(1, 3, 3, 2, 131, 9, 5),
    Sizes(1, 2, 1, 1, 600, 8, 20, MANY_UNITS),
)
# Tiles, which take seconds: two blocks of keys and both halves of the columns for one dtype.
MANY_QUERIES: dict[Any, Sizes] = {
    np.float32: Sizes(1, 1, 1, 17, 70, 18, 66),
    np.float16: Sizes(1, 1, 1, 16, 9, 4, 4),
    ml_dtypes.bfloat16: Sizes(1, 1, 1, 16, 9, 4, 4),
}


# ---- definitions ----

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x, approximate):
    if approximate == "none":
        return x / 2 * _erfc(-x / math.sqrt(2))
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps) * weight + bias


def softmax(x):
    top = np.max(x, axis=-1, keepdims=True)
    e = np.exp(x - np.where(top == -np.inf, 0, top))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def mask_terms(mask):
    if mask is None:
        return 0.0
    return np.where(mask, 0.0, -np.inf) if mask.dtype == bool else f64(mask)


def apply_rope(x, cos, sin, interleaved):
    r = cos.shape[-1]
    halves = (slice(0, 2 * r, 2), slice(1, 2 * r, 2)) if interleaved else (slice(0, r), slice(r, 2 * r))
    a, b = (x[..., half] for half in halves)
    out = x.copy()
    out[..., halves[0]], out[..., halves[1]] = a * cos - b * sin, b * cos + a * sin
    return out


def attention(q, k, v, mask, sinks, causal=False, scale=None, softcap=None, window=None):
    """A head's sink is one more key of each of its queries, whose value is zeros."""
    q, k, v = f64(q), f64(k), f64(v)
    (heads, t, d), (groups, s) = q.shape[-3:], k.shape[-3:-1]
    k, v = (np.repeat(a, heads // groups, axis=-3) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(d) if scale is None else scale)
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    distance = np.arange(t)[:, None] + s - t - np.arange(s)
    hidden = (causal & (distance < 0)) | (distance >= (window or math.inf))
    scores = np.where(hidden, -np.inf, scores + mask_terms(mask))
    if sinks is None:
        return softmax(scores) @ v
    last = np.broadcast_to(f64(sinks)[:, None, None], (*scores.shape[:-1], 1))
    return softmax(np.concatenate([scores, last], axis=-1))[..., :-1] @ v


# ---- calls ----


def _elements(rng, dtype, d):
    """The longest fills several work-groups, more than run at once, and ends within a pack of halves."""
    x, up = (normal(rng, (3, d, min(d, 10)), dtype) for _ in range(2))
    yield Case("silu", {"x": x}, {"out": silu(f64(x))})
    yield Case("swiglu", {"gate": x, "up": up}, {"out": silu(f64(x)) * f64(up)})
    for form in ("tanh", "none"):
        parameters, exact = {"approximate": form}, gelu(f64(x), form)
        yield Case("gelu", {"x": x}, {"out": exact}, parameters)
        yield Case("geglu", {"gate": x, "up": up}, {"out": exact * f64(up)}, parameters)


def _rows(rng, dtype, d):
    x, residual = normal(rng, (3, d), dtype), normal(rng, (3, d), dtype)
    total = (x.astype(np.float32) + residual.astype(np.float32)).astype(dtype)
    for weight_dtype in {dtype, np.float32}:
        weight, bias = normal(rng, (d,), weight_dtype), normal(rng, (d,), weight_dtype)
        normed = rms_norm(f64(x), f64(weight), 1e-6)
        yield Case("rms_norm", {"x": x, "weight": weight}, {"out": normed}, {"eps": 1e-6})
        arrays = {"x": x, "residual": residual, "weight": weight}
        exact = {"out0": f64(total), "out1": rms_norm(f64(total), f64(weight), 1e-6)}
        yield Case("add_rms_norm", arrays, exact, {"eps": 1e-6})
        for given in (bias, None):
            out = layer_norm(f64(x), f64(weight), 0.0 if given is None else f64(given), 1e-5)
            arrays = {"x": x, "weight": weight, "bias": given}
            yield Case("layer_norm", arrays, {"out": out}, {"eps": 1e-5})


def _softmax(rng, dtype, d):
    x = normal(rng, (2, 3, 2, d), dtype)
    yield Case("softmax", {"x": x, "mask": None}, {"out": softmax(f64(x))}, {"scale": 1.0})
    masks = (normal(rng, (2, 1, 2, d)), normal(rng, (2, d), dtype), normal(rng, (3, 1, d)) > 0, None)
    for mask in masks:
        exact = softmax(f64(x) * 0.5 + mask_terms(mask))
        yield Case("softmax", {"x": x, "mask": mask}, {"out": exact}, {"scale": 0.5})


def _rope(rng, dtype, d):
    x = normal(rng, (2, 3, 2, d), dtype)
    for r in {d // 2, max(d // 4, 1)}:
        for shape in ((2, r), (2, 1, 2, r), (r,)):
            cos, sin = normal(rng, shape), normal(rng, shape, dtype)
            for interleaved in (False, True):
                exact = apply_rope(f64(x), f64(cos), f64(sin), interleaved)
                arrays = {"x": x, "cos": cos, "sin": sin}
                yield Case("apply_rope", arrays, {"out": exact}, {"interleaved": interleaved})


def _matmul(rng, dtype, sizes, compute_units=MANY_UNITS):
    batch, m, n, k = sizes
    a, b = normal(rng, (batch, m, k), dtype), normal(rng, (batch, k, n), dtype)
    return Case("matmul", {"a": a, "b": b}, {"out": f64(a) @ f64(b)}, compute_units=compute_units)


def _attention(rng, dtype, n):
    """A sink weighs as much as some twenty keys, so that it tells among hundreds."""
    other = DTYPES[DTYPES.index(dtype) - 1]
    q = normal(rng, (n.b, n.h, n.t, n.d), other)
    k = normal(rng, (n.b, n.g, n.s + 2, n.d), dtype)[:, :, : n.s]  # a part of a cache
    v = normal(rng, (n.b, n.s, n.g, n.e), dtype).transpose(0, 2, 1, 3)
    sinks = normal(rng, (n.h,)) + 3
    for mask, given, parameters in (
        (None, None, {"causal": True}),
        (normal(rng, (n.t, n.s), dtype), sinks, {"scale": 0.3, "window": 3}),
        (normal(rng, (n.b, 1, n.t, n.s)) > 0, sinks.astype(other), {"softcap": 2.0}),
    ):
        parameters = {"causal": False, "scale": None, "softcap": None, "window": None, **parameters}
        arrays = {"q": q, "k": k, "v": v, "mask": mask, "sinks": given}
        exact = attention(**arrays, **parameters)
        yield Case("attention", arrays, {"out": exact}, parameters, n.compute_units)


def _linear(rng, x_dtype, weight, values, rows, with_bias):
    x, bias = (
        normal(rng, (rows, values.shape[1]), x_dtype),
        normal(rng, (len(values),)) if with_bias else None,
    )
    exact = f64(x) @ f64(values).T + (0.0 if bias is None else f64(bias))
    return Case("linear", {"x": x, "weight": weight, "bias": bias}, {"out": exact})


def _products(rng, dtype):
    """Rows of floats that end within a unit, and with one; one row of x, eight, more than that."""
    other = DTYPES[DTYPES.index(dtype) - 1]
    for n, k in ((3, 5), (2, 48), (5, 70)):
        weight = normal(rng, (n, k), dtype)
        for rows in (1, 8):
            yield _linear(rng, other, weight, weight, rows, rows == 1)
        ids = rng.integers(0, n, (2, 2), np.int32 if n == 2 else np.int64)
        yield Case("embedding", {"ids": ids, "table": weight}, {"out": f64(weight[ids])}, {}, 1, dtype)
        query, weights = normal(rng, (k,), other), normal(rng, (n,), other)
        scores, rows = 0.5 * f64(weight) @ f64(query), f64(weights) @ f64(weight)
        yield Case("attention_scores", {"query": query, "keys": weight}, {"out": scores}, {"scale": 0.5})
        yield Case("weighted_sum_rows", {"weights": weights, "matrix": weight}, {"out": rows})
    weight = normal(rng, (5, 38), dtype)  # two slices of a tile
    yield _linear(rng, other, weight, weight, 9, True)


def _blocks(rng, format):
    """Every kernel of a format: one block and, where it fits, several; a tile."""
    k = FORMATS[format].values
    weight = blocks(rng, format, 3, 2 * k if k == 32 else k)
    values = weight.dequantize()
    yield Case("dequantize", {"q": weight}, {"out": f64(values)}, {}, 1, np.float32)
    ids = np.array([2, 0, 2])
    yield Case("embedding", {"ids": ids, "table": weight}, {"out": f64(values[ids])}, {}, 1, np.float32)
    yield _linear(rng, DTYPES[k % 3], weight, values, 2, True)
    if format in ("q8_0", "q4_k"):
        yield _linear(rng, np.float32, weight, values, 9, False)
