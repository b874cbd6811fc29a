"""Mamba-2's state space (Dao and Gu, 2024), as NumPy computes it: token by token, or in chunks of tokens.

A head keeps a matrix S (state_dim, head_dim). For each token it fades, gets the token's values at the places
that its input vector B says, and is read at those that its output vector C says:

    S = decay * S + B (x) v;  out = S^T C

A chunk has the same result by products of matrices (the duality of state spaces and masked attention).
"""

from __future__ import annotations

import numpy as np

from airllm.engine.layers.chunks import CHUNK, scan_chunks


def scan(
    writes: np.ndarray,
    reads: np.ndarray,
    v: np.ndarray,
    log_decay: np.ndarray,
    state: np.ndarray,
    next_state: np.ndarray,
    start: int | None = 0,
) -> np.ndarray:
    """What is read (tokens, heads, head_dim). `writes`, `reads` (tokens, groups, state_dim): input and output
    vectors, which as many heads in a row share. `v` (tokens, heads, head_dim), `log_decay` (tokens, heads),
    `state` (heads, state_dim, head_dim); `next_state` gets the one after them. `start`: the position of the
    first token, which decides where chunks begin; None for no chunks.
    """
    given = writes, reads, v, log_decay
    return scan_chunks(_by_token, _by_chunk, given, np.empty_like(v), state, next_state, start)


def _by_token(
    writes: np.ndarray,
    reads: np.ndarray,
    v: np.ndarray,
    log_decay: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
) -> None:
    """`scan`, whose state is replaced in place."""
    groups, decay = writes.shape[1], np.exp(log_decay)
    of_group = state.reshape(groups, -1, *state.shape[1:])
    for t in range(len(v)):
        state *= decay[t, :, None, None]
        of_group += writes[t, :, None, :, None] * v[t].reshape(groups, -1, 1, v.shape[-1])
        out[t] = (reads[t, :, None, None, :] @ of_group).reshape(v.shape[1:])


def _by_chunk(
    writes: np.ndarray,
    reads: np.ndarray,
    v: np.ndarray,
    log_decay: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
) -> None:
    """`_by_token` of whole chunks. Arrays have axes (chunks, groups, heads of a group, CHUNK, values)."""
    groups = writes.shape[1]
    writes, reads, v, found = (_in_chunks(each, groups) for each in (writes, reads, v, out))
    fade = np.cumsum(_in_chunks(log_decay[..., None], groups), axis=-2)
    between = np.exp(np.minimum(fade - fade.swapaxes(-1, -2), 0))  # from token j to token i >= j
    found[:] = np.tril(reads @ writes.swapaxes(-1, -2) * between) @ v
    asks, last = reads * np.exp(fade), fade[..., -1:, :]
    teaches = (writes * np.exp(last - fade)).swapaxes(-1, -2)
    left = np.exp(last)
    of_group = state.reshape(groups, -1, *state.shape[1:])
    for i in range(len(v)):
        found[i] += asks[i] @ of_group
        of_group *= left[i]
        of_group += teaches[i] @ v[i]


def _in_chunks(x: np.ndarray, groups: int) -> np.ndarray:
    """A view of `x` (tokens, heads or groups, values)."""
    tokens, heads, values = x.shape
    return x.reshape(tokens // CHUNK, CHUNK, groups, heads // groups, values).transpose(0, 2, 3, 1, 4)
