"""A recurrence over tokens, in chunks of them where there are whole ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

CHUNK = 8  # tokens: pieces of prompts end at multiples of it, so that no cut changes the bits

# Computes from arrays of some tokens and a state, which it replaces in place, what comes out of them.
Scan = Callable[..., None]


def scan_chunks(
    by_token: Scan,
    by_chunk: Scan,
    arrays: Sequence[np.ndarray],
    out: np.ndarray,
    state: np.ndarray,
    next_state: np.ndarray,
    start: int | None,
) -> np.ndarray:
    """`out` (tokens, ...), filled. `arrays` have the tokens as their first axis; `next_state` gets the state
    after them. `start`: the position of the first token, which decides where chunks begin; None for no
    chunks.
    """
    np.copyto(next_state, state)
    head = len(out) if start is None else min(-start % CHUNK, len(out))
    whole = head + (len(out) - head) // CHUNK * CHUNK
    parts = (by_token, slice(head)), (by_chunk, slice(head, whole)), (by_token, slice(whole, None))
    for scan, some in parts:
        if len(out[some]):
            scan(*(each[some] for each in arrays), next_state, out[some])
    return out
