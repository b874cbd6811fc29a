"""Mamba-2's state space (Dao and Gu, 2024), as NumPy computes it: token by token, or in chunks of tokens.

A head keeps a matrix S (state_dim, head_dim). For each token it fades, gets the token's values at the places
that its input vector B says, and is read at those that its output vector C says:

    S = decay * S + B (x) v;  out = S^T C

A chunk has the same result by products of matrices (the duality of state spaces and masked attention).
"""

from __future__ import annotations

import numpy as np

from airllm.engine.delta_rule import CHUNK


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
    head = len(v) if start is None else min(-start % CHUNK, len(v))
    whole = (len(v) - head) // CHUNK * CHUNK
    out = np.empty_like(v)
    np.copyto(next_state, state)
    for scan_some, some in (
        (_by_token, slice(head)),
        (_by_chunk, slice(head, head + whole)),
        (_by_token, slice(head + whole, None)),
    ):
        scan_some(writes[some], reads[some], v[some], log_decay[some], next_state, out[some])
    return out


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
    if not len(v):
        return
    groups = writes.shape[1]
    writes, reads, v, found = (_in_chunks(each, groups) for each in (writes, reads, v, out))
    fade = np.cumsum(_in_chunks(log_decay[..., None], groups), axis=-2)
    between = np.exp(np.minimum(fade - fade.swapaxes(-1, -2), 0))  # from token j to token i >= j
    found[:] = np.tril(reads @ writes.swapaxes(-1, -2) * between) @ v
    asks, last = reads * np.exp(fade), fade[..., -1:, :]
    adds = (writes * np.exp(last - fade)).swapaxes(-1, -2) @ v
    left = np.exp(last)
    of_group = state.reshape(groups, -1, *state.shape[1:])
    for i in range(len(v)):
        found[i] += asks[i] @ of_group
        of_group *= left[i]
        of_group += adds[i]


def _in_chunks(x: np.ndarray, groups: int) -> np.ndarray:
    """A view of `x` (tokens, heads or groups, values)."""
    tokens, heads, values = x.shape
    return x.reshape(tokens // CHUNK, CHUNK, groups, heads // groups, values).transpose(0, 2, 3, 1, 4)
