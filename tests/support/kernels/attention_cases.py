"""What the tests of attention share: the targets that have it, its definition in float64, and samples."""

import numpy as np
from accuracy import assert_agrees
from targets_with import on

attends = on("attention")


def visible(t, s, causal=False, window=None):
    """Which keys each query may see; the last query stands at the last key."""
    query, key = np.arange(t)[:, None] + s - t, np.arange(s)
    seen = np.ones((t, s), bool)
    if causal:
        seen &= key <= query
    if window is not None:
        seen &= key > query - min(window, s + t)
    return seen


def exact(q, k, v, mask=None, causal=False, scale=None, softcap=None, window=None, sinks=None):
    q, k, v = (np.asarray(a).astype(np.float64) for a in (q, k, v))
    (h, t, d), (g, s) = q.shape[-3:], k.shape[-3:-1]
    if s == 0:
        return np.zeros((*q.shape[:-1], v.shape[-1]))
    k, v = (np.repeat(a, h // g, axis=-3) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (d**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask.astype(np.float64)
    scores = np.where(visible(t, s, causal, window), scores, -np.inf)
    if sinks is not None:
        column = np.asarray(sinks).astype(np.float64)[:, None, None]
        scores = np.concatenate([scores, np.broadcast_to(column, (*scores.shape[:-1], 1))], axis=-1)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = e.sum(axis=-1, keepdims=True)
    return (e[..., :s] / np.where(total == 0, 1, total)) @ v


def sample(h=4, g=2, t=5, s=37, d=16, e=None, batch=(2,), dtype=np.float32, kv_dtype=None, seed=0):
    """q, k and v. The values have a mean, so that a result's scale is not that of its last digits."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((*batch, h, t, d), np.float32).astype(dtype)
    k = rng.standard_normal((*batch, g, s, d), np.float32).astype(kv_dtype or dtype)
    v = (rng.standard_normal((*batch, g, s, e or d), np.float32) + 1).astype(kv_dtype or dtype)
    return q, k, v


def check(module, q, k, v, **options):
    assert_agrees(module.attention(q, k, v, **options), exact(q, k, v, **options), q.dtype)
