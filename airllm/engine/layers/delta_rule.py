"""The gated delta rule (Yang et al., 2024), as NumPy computes it: token by token, or in chunks of tokens.

A head keeps a matrix S (key_dim, value_dim), which answers a key with a value. For each token it fades, then
learns the difference between the token's value and the one that it gives for the token's key, then answers
the query:

    S = decay * S;  S = S + k (x) beta * (v - S^T k);  out = S^T q

A chunk has the same result by products of matrices (Yang et al., 2024, the WY form). Within it, the
differences that tokens learn are the solution of a triangular system.
"""

from __future__ import annotations

import numpy as np

from airllm.engine.layers.chunks import CHUNK, scan_chunks


def scan(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    log_decay: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
    next_state: np.ndarray,
    start: int | None = 0,
) -> np.ndarray:
    """Answers (tokens, heads, value_dim) to queries. `q`, `k` (tokens, heads, key_dim), `v` (tokens, heads,
    value_dim), `log_decay`, `beta` (tokens, heads), `state` (heads, key_dim, value_dim); `next_state` gets
    the one after them. `start`: the position of the first token, which decides where chunks begin; None for
    no chunks.
    """
    given = q, k, v, log_decay, beta
    return scan_chunks(_by_token, _by_chunk, given, np.empty_like(v), state, next_state, start)


def _by_token(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    log_decay: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
) -> None:
    """`scan`, whose state is replaced in place."""
    decay = np.exp(log_decay)
    for t in range(len(q)):
        state *= decay[t, :, None, None]
        learned = beta[t, :, None] * (v[t] - (k[t, :, None] @ state)[:, 0])
        state += k[t, :, :, None] * learned[:, None]
        out[t] = (q[t, :, None] @ state)[:, 0]


def _by_chunk(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    log_decay: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
) -> None:
    """`_by_token` of whole chunks."""
    q, k, v = (_in_chunks(each) for each in (q, k, v))  # (chunks, heads, CHUNK, values)
    fade = np.cumsum(_in_chunks(log_decay[..., None])[..., 0], axis=-1)  # (chunks, heads, CHUNK)
    rate = _in_chunks(beta[..., None])
    between = np.exp(np.minimum(fade[..., :, None] - fade[..., None, :], 0))  # from token j to token i >= j
    keys = k.swapaxes(-1, -2)
    solved = _inverse(np.tril((rate * k) @ keys * between, -1))
    values = solved @ (rate * v)
    reads = solved @ (rate * k * np.exp(fade)[..., None])
    attends = np.tril(q @ keys * between)
    asks = q * np.exp(fade)[..., None]
    last = fade[..., -1:]
    teaches = (k * np.exp(last - fade)[..., None]).swapaxes(-1, -2)
    left = np.exp(last)[..., None]
    found = _in_chunks(out)
    for i in range(len(q)):
        learned = values[i] - reads[i] @ state
        found[i] = asks[i] @ state + attends[i] @ learned
        state *= left[i]
        state += teaches[i] @ learned


def _in_chunks(x: np.ndarray) -> np.ndarray:
    """A view (chunks, heads, CHUNK, values) of `x` (tokens, heads, values)."""
    return x.reshape(-1, CHUNK, *x.shape[1:]).swapaxes(1, 2)


def _inverse(below: np.ndarray) -> np.ndarray:
    """The inverse of I + `below` (..., n, n), whose upper triangle and diagonal are 0: the product of
    I + (-below)^(2^i), since the n-th power is 0.
    """
    power = -below
    found = power + np.eye(below.shape[-1], dtype=below.dtype)
    size = 2
    while size < below.shape[-1]:
        power = power @ power
        found = found + found @ power
        size *= 2
    return found
