"""The KV cache: keys and values of a sequence's tokens, for every layer."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from airllm import tensor_ops
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.values import MOST
from airllm.formats import FORMATS, Quantized

# Name of a cache dtype -> the NumPy dtype of its items. q8_0 has ggml's blocks of 32.
_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "q8_0": np.dtype(np.uint8),
}


class ContextFull(ValueError):
    """A sequence would become longer than its cache has room for."""


class Cache:
    """Keys and values of one sequence: room for `capacity` tokens, of which the first `length` are valid.

    Memory is reserved at once and becomes resident page by page, as tokens are appended. `data` has shape
    (layers, 2, kv_heads, capacity, row), keys first. A row is one token's key, or value, of one head.
    """

    def __init__(self, config: ModelConfig, capacity: int, dtype: str = "f16"):
        self.config, self.capacity, self.dtype = config, capacity, (dtype := dtype_named(dtype))
        self.tokens: list[int] = []
        self.long = False  # whether its keys have the angles of a long text: Rotation.is_long
        self._most = 0  # most tokens that it ever had
        shape = (config.layers, 2, config.kv_heads, capacity, row_items(config, dtype))
        kept = _DTYPES[dtype]
        items = int(np.prod(shape))
        self._map, start = self._allocate(items * kept.itemsize)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a huge page spans many heads and would make them all resident
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self.data = np.frombuffer(self._map, kept, items, start).reshape(shape)

    @property
    def length(self) -> int:
        """Number of valid tokens."""
        return len(self.tokens)

    def __repr__(self) -> str:
        room = f"{self.length} of {self.capacity} tokens, {self.dtype}, {self.config.layers} layers"
        return f"<{type(self).__name__}: {room}>"

    def _allocate(self, nbytes: int) -> tuple[mmap.mmap, int]:
        """Memory for the cache, and the offset of keys and values in it."""
        private = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}
        return mmap.mmap(-1, max(nbytes, 1), **private), 0

    def append(
        self,
        layer: int,
        keys: np.ndarray,
        values: np.ndarray,
        assign: Callable[[np.ndarray, np.ndarray], Any] | None = None,
    ) -> None:
        """Store keys and values (tokens, kv_heads, head_dim), float32, of new tokens after a layer's others.
        They become valid by `extend`. `assign` may be a faster `numpy.copyto` for floats.
        """
        end = self.length + len(keys)
        put = np.copyto if self.dtype == "q8_0" or assign is None else assign
        for kept, new in zip(self.data[layer], (keys, values), strict=True):
            put(kept[:, self.length : end], self._encode(new.swapaxes(0, 1)))

    def read(self, layer: int, tokens: int) -> np.ndarray:
        """Keys and values of a layer's first tokens: (2, kv_heads, tokens, head_dim), floats."""
        kept = self.data[layer, :, :, :tokens]
        if self.dtype != "q8_0":
            return kept
        floats = np.empty((*kept.shape[:-1], self.config.head_dim), np.float32)
        for place in np.ndindex(kept.shape[:2]):  # a head's rows are contiguous
            tensor_ops.dequantize(Quantized(kept[place], "q8_0"), out=floats[place])
        return floats

    def take(self, tokens: int) -> None:
        """Count memory for this many more tokens as resident, whether or not they become valid."""
        self._most = max(self._most, self.length + tokens)

    def room_for(self, tokens: int) -> None:
        """Raises ContextFull if there is no room for this many more tokens."""
        if (end := self.length + tokens) > self.capacity:
            found = f"has {self.length} tokens and would get {tokens} more, {end} in all"
            raise ContextFull(f"cache {found}, expected at most {self.capacity}: the context of this engine")

    def extend(self, tokens: list[int]) -> None:
        """Mark these tokens as valid: their keys and values are in all layers."""
        self.tokens += tokens

    def truncate(self, length: int) -> None:
        """Drop all tokens after the first `length`."""
        del self.tokens[length:]

    def resident_bytes(self, more: int = 0) -> int:
        """Resident bytes of the cache once it has `more` tokens."""
        tokens = max(self._most, self.length + more)
        return resident_bytes(self.config, self.capacity, tokens, self.dtype)

    def _encode(self, new: np.ndarray) -> np.ndarray:
        if self.dtype != "q8_0":
            return new
        return tensor_ops.quantize(np.ascontiguousarray(new), "q8_0").data


def check_context(context: Any) -> None:
    """Raises ValueError unless `context` is a possible number of tokens."""
    whole = isinstance(context, (int, np.integer)) and not isinstance(context, bool)
    if not whole or not 1 <= context <= MOST:
        raise ValueError(f"context has value {context!r}, expected a whole number from 1 to {MOST}")


def token_id(token: Any, where: str) -> int:
    """A token as a Python int. TypeError if it is no whole number, such as 1.5 or [1]."""
    try:
        return index(token)
    except TypeError:
        kind = type(token).__name__
        raise TypeError(f"{where}: token has type {kind}, expected a whole number") from None


def dtype_named(name: Any) -> str:
    """The canonical name of a cache dtype; case is ignored. ValueError that lists the dtypes."""
    if not isinstance(name, str) or name.lower() not in _DTYPES:
        raise ValueError(f"cache_dtype has value {name!r}, expected one of {', '.join(_DTYPES)}")
    return name.lower()


def row_items(config: ModelConfig, dtype: str) -> int:
    """Items in a row, one token's key of one head. ValueError if the dtype does not support the head_dim."""
    if dtype_named(dtype) != "q8_0":
        return config.head_dim
    of = FORMATS["q8_0"]
    if config.head_dim % of.values:
        wanted = f"f32 or f16 for heads of {config.head_dim}, which is not a multiple of {of.values}"
        raise ValueError(f"cache_dtype has value 'q8_0', expected {wanted}")
    return config.head_dim // of.values * of.bytes


def runs(config: ModelConfig) -> int:
    """The number of contiguous runs: a layer's keys, or values, of one head, token after token."""
    return config.layers * 2 * config.kv_heads


def run_bytes(config: ModelConfig, tokens: int, dtype: str) -> int:
    """Bytes of this many tokens in a run."""
    return tokens * row_items(config, dtype) * _DTYPES[dtype].itemsize


def resident_bytes(config: ModelConfig, capacity: int, tokens: int, dtype: str) -> int:
    """Resident bytes of a cache for `capacity` tokens that has `tokens`: whole pages of each run."""
    page = mmap.PAGESIZE
    pages = -(-run_bytes(config, tokens, dtype) // page)
    if tokens and run_bytes(config, capacity, dtype) % page:  # runs may begin and end within a page
        pages += 1
    return min(runs(config) * pages * page, capacity * token_bytes(config, dtype) + page)


def layer_values(config: ModelConfig, tokens: int) -> int:
    """Number of values in a layer's keys and values of this many tokens."""
    return 2 * config.kv_heads * config.head_dim * tokens


def token_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes that one token adds to a cache."""
    return runs(config) * run_bytes(config, 1, dtype)
