"""A layer's keys and values, as a `Cache` has them in host memory or on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airllm.memory.cache_layout import row_items
from airllm.memory.recurrent_states import Arrays


@dataclass(frozen=True)
class LayerCache:
    """A layer's views of a cache: `keys` and `values` (kv_heads, room, row); `both` (2, kv_heads, room, row)
    if they are equally wide. `arrays`: what has them, (1 or 2, kv_heads, room, row) each. `is_ring`: it has
    only the last tokens. `latent`: if not 0, values are the first so many values of keys.
    """

    keys: np.ndarray
    values: np.ndarray
    both: np.ndarray | None
    arrays: Arrays
    is_ring: bool
    latent: int = 0

    @classmethod
    def of(cls, arrays: Arrays, is_ring: bool, latent: int, dtype: str) -> LayerCache:
        """The views of a layer's arrays."""
        first, last = arrays[0], arrays[-1]
        if latent:
            inner = row_items(latent, dtype)
            return cls(first[0], first[0][..., :inner], None, arrays, is_ring, latent)
        return cls(first[0], last[-1], first if len(arrays) == 1 else None, arrays, is_ring)
