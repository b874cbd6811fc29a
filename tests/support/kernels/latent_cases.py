"""Small calls of the kernels of latent attention, with their exact results in float64."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from kernel_cases import Case, normal
from tensor_cases import At, weight_of

from airllm.backends.gpu import mixture_launches
from airllm.backends.gpu.launches import Plan
from airllm.formats import FORMATS

# Formats of the matrices of heads and of that of queries, for each of which there is a family, and the plain
# values of a query: floats that fill no slice, and two slices.
LATENTS = {("f32", "f32"): 41, ("q8_0", "q4_0"): 64}
MERGED = ("f32", "q8_0")
_HEADS, _RANK, _PAIRS, _EPS = 2, 32, 16, 0.25


def latent_cases(form: str) -> Iterator[tuple[str, Case, Plan]]:
    """The family of the kernels, the call, and its plan."""
    rng = np.random.default_rng(0)
    for formats, plain in LATENTS.items():
        for of_queries in ("there", "product", "product of a norm"):
            for interleaved, in_blocks in ((0, False), (1, True)):
                case, plan = _append(rng, form, formats, plain, of_queries, interleaved, in_blocks)
                yield plan.launches[0].family, case, plan
    for name in MERGED if form == "gpu" else ():
        case, plan = _merged(rng, name)
        yield plan.launches[0].family, case, plan


def _append(
    rng: np.random.Generator,
    form: str,
    formats: tuple[str, str],
    plain: int,
    of_queries: str,
    interleaved: int,
    in_blocks: bool,
) -> tuple[Case, Plan]:
    """Into a cache with room for one token, all of which is then written."""
    dim, wide, k = (
        plain + 2 * _PAIRS,
        _RANK + 2 * _PAIRS,
        41 if formats[1] == "f32" and not interleaved else 64,
    )
    stored, matrices = weight_of(rng, formats[0], (_HEADS, _RANK, plain))
    keep, norm = normal(rng, (wide,)), normal(rng, (_RANK,))
    cos, sin = normal(rng, (_PAIRS,)), normal(rng, (_PAIRS,))
    arrays: dict[str, Any] = {"weight": stored, "keep": keep, "keep_norm": norm, "cos": cos, "sin": sin}
    if of_queries == "there":
        arrays |= {"x": normal(rng, (_HEADS * dim,))}
        queries = arrays["x"].astype(np.float64)
    else:
        arrays |= {"x": normal(rng, (k,))}
        arrays["queries"], matrix = weight_of(rng, formats[1], (_HEADS * dim, k))
        row = arrays["x"].astype(np.float64)
        if "norm" in of_queries:
            arrays["x_norm"] = normal(rng, (k,))
            row = _rms(row) * arrays["x_norm"]
        queries = matrix @ row
    queries = queries.reshape(_HEADS, dim) / 2
    parts = np.zeros((-(-plain // 32), _HEADS, 1, wide))
    for number, part in enumerate(parts):
        some = slice(32 * number, min(32 * number + 32, plain))
        part[:, 0, :_RANK] = np.einsum("hk,hnk->hn", queries[:, some], matrices[:, :, some])
    parts[0, :, 0, _RANK:] = _rotated(queries[:, plain:], cos, sin, interleaved)
    exact = keep.astype(np.float64)
    kept = np.concatenate([_rms(exact[:_RANK]) * norm, _rotated(exact[_RANK:], cos, sin, interleaved)])
    if in_blocks:
        kept = FORMATS["q8_0"].encode(kept.astype(np.float32)[None])
    numbers = {
        "x_from": 0, "keep_from": 0, "cache_from": 0, "heads": _HEADS, "k": 0 if of_queries == "there" else k,
        "plain": plain, "rank": _RANK, "r": _PAIRS, "interleaved": interleaved, "eps": _EPS, "factor": 0.5,
    }  # fmt: skip
    outs = {"q": parts, "cache": At(kept if in_blocks else kept.astype(np.float32))}
    plan = mixture_launches.plan("latent_append", arrays, outs, numbers, form, 1)
    exacts = {"q": parts, "cache": kept}
    return Case("latent_append", arrays, exacts, numbers, result_dtype=np.float32), plan


def _merged(rng: np.random.Generator, name: str) -> tuple[Case, Plan]:
    """A number of rows that is odd, and fills no slice."""
    splits, n, k = 3, 37, 64
    partial = np.concatenate(
        [normal(rng, (_HEADS, splits, 1)), normal(rng, (_HEADS, splits, 1 + k))], axis=-1
    )
    partial[..., 1] = np.abs(partial[..., 1]) + 1
    stored, matrices = weight_of(rng, name, (_HEADS, n, k))
    wide = partial.astype(np.float64)
    weights = np.exp(wide[..., 0] - wide[..., 0].max(axis=-1, keepdims=True))
    rows = np.einsum("hs,hsk->hk", weights, wide[..., 2:]) / (weights * wide[..., 1]).sum(axis=-1)[:, None]
    exact = np.einsum("hk,hnk->hn", rows, matrices)
    arrays = {"partial": partial, "weight": stored}
    plan = mixture_launches.plan("linear_merged", arrays, {"out": At(exact)}, {}, "gpu", 1)
    return Case("linear_merged", arrays, {"out": exact}), plan


def _rms(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean() + _EPS)


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: int) -> np.ndarray:
    first = np.arange(_PAIRS) * (2 if interleaved else 1)
    second, found = first + (1 if interleaved else _PAIRS), np.empty_like(x)
    found[..., first] = x[..., first] * cos - x[..., second] * sin
    found[..., second] = x[..., second] * cos + x[..., first] * sin
    return found
