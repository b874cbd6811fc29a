"""Small calls of the kernels of arrays that stay on a device, with their exact results in float64."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import erfc
from typing import Any

import numpy as np
from kernel_cases import DTYPES, Case, attention, normal

from airllm.backends.gpu import expert_launches, tensor_launches
from airllm.backends.gpu.launches import VECTORS_ON_CPU, Call, Plan, plan_of
from airllm.formats import FORMATS, Quantized

_HEADS, _KV_HEADS, _DIM = 3, 2, 11


@dataclass(frozen=True)
class At:
    """A NumPy array as kernels are planned for: it begins `offset` bytes after the start of its memory."""

    array: np.ndarray
    offset: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)


@dataclass(frozen=True)
class Blocks:
    """Rows of q8_0 as kernels are planned for: a Quantized whose data need not be dense."""

    data: np.ndarray
    format: str = "q8_0"

    @property
    def shape(self) -> tuple[int, ...]:
        return *self.data.shape[:-1], self.data.shape[-1] // 34 * 32


def tensor_cases(form: str) -> Iterator[tuple[str, Case, Plan]]:
    """The family of the kernels, the call, and its plan."""
    rng, grid = np.random.default_rng(0), (4, 1) if form == "cpu" else (64, 64)
    for dtype in DTYPES:
        x = normal(rng, (3, 2, 70), dtype).transpose(1, 0, 2)[:, :, :65]
        out = np.empty(x.shape, np.float32)
        plan = tensor_launches.assign({"x": At(x)}, At(out), grid)
        yield "elements", Case("assign", {"x": x}, {"out": x.astype(np.float64)}, {}, 1, np.float32), plan
        yield "elements", *_assign_q8_0(rng, dtype, grid)
    of_bytes = rng.integers(0, 256, (3, 2, 70), np.uint8).transpose(1, 0, 2)[:, :, :65]
    plan = tensor_launches.assign({"x": At(of_bytes)}, At(np.empty(of_bytes.shape, np.uint8)), grid)
    exact = {"out": of_bytes.astype(np.float64)}
    yield "elements", Case("assign", {"x": of_bytes}, exact, {}, 1, np.uint8), plan
    for tokens in (1, 17):
        yield "attention", *_attention_to_blocks(rng, tokens, form)
    x, y = normal(rng, (3, 2, 70)).transpose(1, 0, 2), normal(rng, (2, 3, 70))
    for op, function in enumerate((np.add, np.subtract, np.multiply, np.divide, np.minimum, np.maximum)):
        for other in (y, None):
            wide = 1.5 if other is None else other.astype(np.float64)
            exact = function(x.astype(np.float64), wide)
            given = {"x": At(x), "y": None if other is None else At(other)}
            parameters = {"op": op, "value": 1.5}
            plan = tensor_launches.combine(given, At(np.empty(x.shape, np.float32)), parameters, grid)
            yield "elements", Case("combine", {"x": x, "y": other}, {"out": exact}, parameters), plan
    for interleaved in (0, 1):
        for norms in ("", "head", "row", "late", "gated"):
            yield "elements", *_rope_append(rng, interleaved, norms, grid)
    for rows, centered in ((1, 0), (3, 1)):
        yield "elements", *_residual_norms(rng, rows, centered, grid)
    for name, activation in (("f32", 1), ("f16", 2), ("q4_0", 3), ("q4_k", 1), ("q6_k", 2)):
        yield f"experts.{name}", *_gated_linear(rng, name, activation, form)
    if form == "cpu":
        for name in VECTORS_ON_CPU:
            for rows in (1, 6):
                yield "linear", *_linear(rng, name, rows)


def _rope_append(
    rng: np.random.Generator, interleaved: int, norms: str, grid: tuple[int, int]
) -> tuple[Case, Plan]:
    """Into a cache with room for one token, all of which is then written. `norms`: of heads or of whole rows,
    or after the rotation. "gated": of heads whose queries have gates beside them.
    """
    r, sizes = 4, (_HEADS, _KV_HEADS)
    step = 2 if norms == "gated" else 1
    x = normal(rng, (_HEADS * step + 2 * _KV_HEADS, _DIM))
    cos, sin = normal(rng, (r,)), normal(rng, (r,))
    spans = [n * _DIM if norms == "row" else _DIM for n in sizes]
    weights = {name: normal(rng, (span,)) for name, span in zip(("q_norm", "k_norm"), spans, strict=True)}
    weights = weights | {"v_norm": normal(rng, (_DIM,))} if norms else {}
    parts = np.split(x.astype(np.float64), np.cumsum((_HEADS * step, _KV_HEADS)))
    parts[0] = parts[0][::step]

    def normalized(part: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        if weight is None:
            return part
        flat = part.reshape(-1, weight.size)
        return (flat / np.sqrt((flat**2).mean(axis=-1, keepdims=True) + 0.25) * weight).reshape(part.shape)

    def rotated(part: np.ndarray) -> np.ndarray:
        first = np.arange(r) * 2 if interleaved else np.arange(r)
        second, found = first + (1 if interleaved else r), part.copy()
        found[:, first] = part[:, first] * cos - part[:, second] * sin
        found[:, second] = part[:, second] * cos + part[:, first] * sin
        return found

    def placed(part: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        return normalized(rotated(part), weight) if norms == "late" else rotated(normalized(part, weight))

    q, k, v = (weights.get(name) for name in ("q_norm", "k_norm", "v_norm"))
    kept = np.stack([placed(parts[1], k), normalized(parts[2], v)])
    arrays = {"x": x, "cos": cos, "sin": sin, **weights}
    numbers = {
        "heads": _HEADS, "kv_heads": _KV_HEADS, "q_first": 0, "q_step": step,
        "k_first": _HEADS * step, "v_first": _HEADS * step + _KV_HEADS, "dim": _DIM, "r": r,
        "interleaved": interleaved, "late": int(norms == "late"), "k_from": 0, "v_from": _KV_HEADS * _DIM,
        "head_step": _DIM, "q_span": spans[0], "k_span": spans[1], "eps": 0.25, "factor": 0.5,
    }  # fmt: skip
    plan = tensor_launches.rope_append(arrays, {"cache": np.empty(kept.shape, np.float32)}, numbers, grid)
    return Case("rope_append", arrays, {"q": placed(parts[0], q) / 2, "cache": kept}, numbers), plan


def _residual_norms(
    rng: np.random.Generator, rows: int, centered: int, grid: tuple[int, int]
) -> tuple[Case, Plan]:
    """With all that it takes: two norms of the sum, or one that is centered and has a bias."""
    dim, eps = 75, 0.25
    names = ("x", "y", "residual")
    arrays = {name: normal(rng, (rows, dim)) for name in names}
    arrays |= {name: normal(rng, (dim,)) for name in ("x_norm", "y_norm", "post")}
    arrays |= {"scale": normal(rng, (1,)), "norms": normal(rng, (2, dim))}
    w = {name: each.astype(np.float64) for name, each in arrays.items()}

    def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight

    both = rms(rms(w["x"], w["x_norm"]) + rms(w["y"], w["y_norm"]), w["post"])
    total = (w["residual"] + both * 0.5) * w["scale"]
    apart = total - total.mean(axis=-1, keepdims=True)
    one = rms(apart, w["norms"][0]) + w["norms"][1]
    normed = one[None] if centered else np.stack([rms(total, each) for each in w["norms"]])
    numbers = {
        "count": len(normed), "eps": eps, "factor": 0.5, "centered": centered, "biased": centered,
    }  # fmt: skip
    plan = tensor_launches.residual_norms(arrays, {}, numbers, grid)
    return Case("residual_norms", arrays, {"total": total, "normed": normed}, numbers), plan


def _assign_q8_0(rng: np.random.Generator, dtype: Any, grid: tuple[int, int]) -> tuple[Case, Plan]:
    """Rows of three blocks."""
    x = normal(rng, (3, 2, 100), dtype).transpose(1, 0, 2)[:, :, :96]
    wide = np.ascontiguousarray(x.astype(np.float32)).reshape(-1, 96)
    exact = FORMATS["q8_0"].encode(wide).reshape(2, 3, -1)
    plan = tensor_launches.assign_q8_0({"x": At(x)}, At(np.empty(exact.shape, np.uint8)), grid)
    return Case("assign_q8_0", {"x": x}, {"out": exact.astype(np.float64)}, {}, 1, np.uint8), plan


def _attention_to_blocks(rng: np.random.Generator, tokens: int, form: str) -> tuple[Case, Plan]:
    """To rows of q8_0, values of another width than keys, in arrays with room for more."""
    heads, groups, length, d, e = 2, 1, 40, 64, 32
    q, sinks = normal(rng, (heads, tokens, d)), normal(rng, (heads,)) + 3
    stored = [FORMATS["q8_0"].encode(normal(rng, (groups * 48, n))) for n in (d, e)]
    kept = [each.reshape(groups, 48, -1)[:, :length] for each in stored]
    keys, values = (FORMATS["q8_0"].decode(each).astype(np.float64) for each in kept)
    parameters = {"causal": True, "scale": 0.2, "softcap": None, "window": 30}
    exact = attention(q, keys, values, None, sinks, **parameters)
    blocks = {name: Blocks(each) for name, each in zip("kv", kept, strict=True)}
    plan = plan_of(Call("attention", {"q": q, **blocks, "sinks": sinks}, parameters, exact.shape, form, 1))
    arrays = {"q": q, "k": kept[0], "v": kept[1], "sinks": sinks}
    return Case("attention", arrays, {"out": exact}, parameters), plan


def _linear(rng: np.random.Generator, name: str, rows: int) -> tuple[Case, Plan]:
    """Of float32 with rows that a CPU device reads by eight."""
    n, k = 7, 96
    x, bias, (stored, values) = normal(rng, (rows, k)), normal(rng, (n,)), weight_of(rng, name, (n, k))
    arrays = {"x": x, "weight": stored, "bias": bias}
    plan = plan_of(Call("linear", arrays, {}, (rows, n), "cpu", 1))
    return Case("linear", arrays, {"out": x.astype(np.float64) @ values.T + bias}), plan


def _gated_linear(rng: np.random.Generator, name: str, activation: int, form: str) -> tuple[Case, Plan]:
    n, k = 5, 256 if "_k" in name else 96
    x, stored, values = normal(rng, (1, k)), *weight_of(rng, name, (2 * n, k))
    x /= np.float32(np.sqrt(k))  # silu(-10) has ten times the relative error of -10
    gate, up = np.split(x.astype(np.float64) @ values.T, 2, axis=-1)
    arrays = {"x": x, "weight": stored}
    plan = expert_launches.gated_linear(arrays, np.empty((1, n), np.float32), activation, form, 3)
    case = Case("gated_linear", arrays, {"out": activated(gate, activation) * up}, {"activation": activation})
    return case, plan


def activated(x: np.ndarray, activation: int) -> np.ndarray:
    if activation == 1:
        return x / (1 + np.exp(-x))
    if activation == 2:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x / 2 * np.vectorize(erfc)(-x / np.sqrt(2))


def weight_of(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> tuple[Any, np.ndarray]:
    """A weight as stored, and its values in float64."""
    if name in FORMATS:
        stored: Any = Quantized(FORMATS[name].encode(normal(rng, shape)), name)
        return stored, stored.dequantize().astype(np.float64)
    floats = normal(rng, shape, DTYPES[("f32", "f16", "bf16").index(name)])
    return floats, floats.astype(np.float64)
