"""Where a sequence keeps a recurrent state, so that it can go back there.

Such a state cannot go back by itself. A next text shares most with the last one up to the end of its prompt:
an answer may be asked for again, and templates leave out thoughts of earlier answers. So a prompt is cut near
its end, and the state of that place is kept. To go back further, all tokens are computed again.
"""

from __future__ import annotations

from airllm.memory.kv_cache import Cache

STEP = 64  # tokens: states are kept at multiples of it


def tokens_before_mark(pending: list[int], cache: Cache, whole: int) -> int:
    """How many of a sequence's next tokens come before the place whose state is kept; 0 if it is not among
    them. That is the last multiple of `STEP` before the last token of the prompt of `whole` tokens, or of
    these tokens if they are more.
    """
    end = max(whole, cache.length + len(pending))
    place = (end - 1) // STEP * STEP
    count = place - cache.length
    return count if 0 < count <= len(pending) else 0
