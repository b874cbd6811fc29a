"""The KV cache: keys and values of a sequence's tokens, for every layer."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from airllm import tensor_ops
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.values import MOST
from airllm.files import pages
from airllm.formats import FORMATS, Quantized

# Name of a cache dtype -> the NumPy dtype of its items. q8_0 has ggml's blocks of 32.
_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "q8_0": np.dtype(np.uint8),
}


PASS = 512  # the most tokens of a sequence that go through the layers together
_STEP = 256  # tokens: what is dropped; attention cuts keys at multiples of this (kFewRowsPiece)
_RELEASE = 256  # tokens: `truncate` releases the memory of this many, since each release has a cost
_BACK = 64  # tokens that `truncate` can always drop, besides those of the last pass


class ContextFull(ValueError):
    """A sequence would become longer than its cache has room for."""


class Cache:
    """Keys and values of one sequence: room for `capacity` tokens, of which the first `length` are valid.

    Memory is reserved at once and becomes resident page by page, as tokens are appended. `data` has shape
    (layers, 2, kv_heads, capacity, row), keys first. A row is one token's key, or value, of one head.

    With `windowed`, `recent` has the layers with a window, and `data` the others. `recent` lacks the first
    `dropped` tokens; its shape is that of `data`, with room for a window and the tokens of a pass. It is None
    if that would be as much as `capacity`.
    """

    def __init__(self, config: ModelConfig, capacity: int, dtype: str = "f16", windowed: bool = False):
        self.config, self.capacity, self.dtype = config, capacity, (dtype := dtype_named(dtype))
        self.windowed = windowed
        self.tokens: list[int] = []
        self.long = False  # whether its keys have the angles of a long text: Rotation.is_long
        self.dropped = 0
        self._most = 0  # most tokens that it ever had
        parts = divide(config, capacity, windowed)
        shapes = [part.shape(config, dtype) for part in parts]
        sizes = [math.prod(shape) * _DTYPES[dtype].itemsize for shape in shapes]
        self._map, self._start = self._allocate(sum(sizes))
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a huge page spans many heads and would make them all resident
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
        starts = [self._start, self._start + sizes[0]]
        arrays = [
            np.ndarray(shape, _DTYPES[dtype], self._map, at)
            for shape, at in zip(shapes, starts, strict=False)
        ]
        self.data, self.recent = arrays[0], arrays[1] if len(arrays) > 1 else None
        self._window = widest_window(config) if len(arrays) > 1 else 0
        self._of_layer: dict[int, tuple[Any, bool]] = {
            layer: (array[place], array is self.recent)
            for part, array in zip(parts, arrays, strict=True)
            for place, layer in enumerate(part.layers)
        }

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

    @property
    def arrays(self) -> np.ndarray | tuple[np.ndarray, np.ndarray, int]:
        """What native calls take: `data`, or (data, recent, dropped)."""
        return self.data if self.recent is None else (self.data, self.recent, self.dropped)

    @property
    def until(self) -> int:
        """The length that it can have before tokens must be dropped."""
        return self.capacity if self.recent is None else self.dropped + self.recent.shape[3]

    @property
    def shortest(self) -> int:
        """The least length, besides 0, to which `truncate` can go back."""
        return self.dropped and self.dropped + self._window - 1

    def layer(self, layer: int) -> np.ndarray:
        """A layer's keys and values (2, kv_heads, room, row), without the tokens that are dropped."""
        return self._of_layer[layer][0]

    def put_layer(self, layer: int, array: Any) -> None:
        """Keep a layer's keys and values in another array from now on, such as one on a device. It may have
        less room than `room_of` says, but what `layer` has.
        """
        self._of_layer[layer] = array, self._of_layer[layer][1]

    def room_of(self, layer: int) -> int:
        """The most tokens that a layer keeps."""
        is_recent = self._of_layer[layer][1]
        return self.recent.shape[3] if is_recent and self.recent is not None else self.capacity

    def dropped_of(self, layer: int) -> int:
        """How many of the first tokens a layer lacks."""
        return self.dropped if self._of_layer[layer][1] else 0

    def append(
        self,
        layer: int,
        keys: np.ndarray,
        values: np.ndarray,
        assign: Callable[[np.ndarray, np.ndarray], Any] | None = None,
        append: Callable[[Any, int, Any, Any], None] | None = None,
    ) -> None:
        """Store keys and values (tokens, kv_heads, head_dim), float32, of new tokens after a layer's others.
        They become valid by `extend`. `assign` may be a faster `numpy.copyto` for floats, and `append` may
        write both to a layer on a device, from a place on.
        """
        start = self.length - self.dropped_of(layer)
        if append:
            append(self.layer(layer), start, keys, values)
            return
        put = np.copyto if self.dtype == "q8_0" or assign is None else assign
        for kept, new in zip(self.layer(layer), (keys, values), strict=True):
            put(kept[:, start : start + len(keys)], self._encode(new.swapaxes(0, 1)))

    def read(self, layer: int, tokens: int) -> np.ndarray:
        """Keys and values of a layer's first tokens, but those dropped: (2, kv_heads, tokens, head_dim),
        floats.
        """
        kept = self.layer(layer)[:, :, : tokens - self.dropped_of(layer)]
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

    def prepare(self, tokens: int) -> None:
        """Make room for the tokens of the next pass. Layers with a window may drop tokens before theirs.

        Raises ContextFull, and ValueError for more than `PASS` tokens if such layers drop any.
        """
        self.room_for(tokens)
        if self.length + tokens <= self.until:
            return
        if tokens > PASS:
            raise ValueError(f"a pass has {tokens} tokens of a sequence, expected at most {PASS}")
        self._drop((self.length + 1 - self._window - _BACK) // _STEP * _STEP)

    def _drop(self, dropped: int) -> None:
        """Drop tokens of the layers with a window, so that they lack the first `dropped`."""
        kept, before = self.length - dropped, dropped - self.dropped
        for array, is_recent in self._of_layer.values():
            for run in array.reshape(-1, *array.shape[2:]) if is_recent else ():
                run[:kept] = run[before : before + kept]
        self.dropped = dropped

    def _may_lack(self, dropped: int, length: int) -> bool:
        """Whether layers with a window may lack the first `dropped` of `length` tokens."""
        if self.recent is None or not dropped:
            return dropped == 0 and length <= self.until
        room = self.recent.shape[3]
        return not dropped % _STEP and length - room <= dropped <= length + 1 - self._window

    def extend(self, tokens: list[int]) -> None:
        """Mark these tokens as valid: their keys and values are in all layers."""
        self.tokens += tokens

    def cut(self, length: int) -> int:
        """The length that `truncate(length)` leaves: 0 if that is less than `shortest`."""
        return min(length, self.length) if length >= self.shortest else 0

    def truncate(self, length: int) -> None:
        """Drop all tokens after the first `length`. If that is less than `shortest`, keys and values before
        it are missing, and all tokens are dropped. The memory of many tokens is released.
        """
        self._most = max(self._most, self.length)
        del self.tokens[self.cut(length) :]
        if not self.tokens:
            self.dropped = 0
        if self._most - self.length >= _RELEASE:
            self.release()

    def copy_prefix(self, other: Cache, length: int) -> None:
        """Become the first `length` tokens of another cache of the same model, capacity and dtype. Raises
        ValueError if the other cannot go back to that length.
        """
        if not length or other.cut(length) != length:
            found = f"a prefix of {length} tokens of a cache of {other.length}"
            raise ValueError(f"{found}, expected {max(other.shortest, 1)} to {other.length}")
        self.truncate(0)
        for layer in self._of_layer:
            self._copy_layer(layer, other.layer(layer), length - other.dropped_of(layer))
        self.long, self.dropped = other.long, other.dropped
        self.extend(other.tokens[:length])

    def _copy_layer(self, layer: int, given: Any, rows: int) -> None:
        """Copy the first `rows` of another cache's layer, to where that is: in host memory or on a device."""
        if not isinstance(given, np.ndarray):
            self.put_layer(layer, given[:, :, :rows].copy())
            return
        kept = self.layer(layer)
        _allocate_runs(kept, rows)
        np.copyto(kept[:, :, :rows], given[:, :, :rows])

    def release(self) -> None:
        """Give the memory after the last token back to the system. A file keeps its contents."""
        self._most = max(self._most, self.length)
        if not pages.SUPPORTED:  # elsewhere the advice may do nothing
            return
        start = self._start
        for array, dropped in ((self.data, 0), (self.recent, self.dropped)):
            if array is not None and array.size:
                self._release_runs(start, array, self.length - dropped)
                start += array.nbytes
        self._most = self.length

    def _release_runs(self, start: int, array: np.ndarray, rows: int) -> None:
        """Release all but the first `rows` of each run of an array that begins at `start`."""
        page, (*runs, tokens, row) = mmap.PAGESIZE, array.shape
        nbytes = tokens * row * array.itemsize
        count, nbytes = (math.prod(runs), nbytes) if rows else (1, array.nbytes)
        for at in range(start, start + count * nbytes, nbytes):
            first = -(-(at + rows * row * array.itemsize) // page) * page
            last = (at + nbytes) // page * page
            if first < last:
                self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def resident_bytes(self, more: int = 0) -> int:
        """Resident bytes of the cache once it has `more` tokens."""
        tokens = max(self._most, self.length + more)
        return resident_bytes(self.config, self.capacity, tokens, self.dtype, self.windowed)

    def _encode(self, new: np.ndarray) -> np.ndarray:
        if self.dtype != "q8_0":
            return new
        return tensor_ops.quantize(np.ascontiguousarray(new), "q8_0").data


def _allocate_runs(array: np.ndarray, rows: int) -> None:
    """Allocate the memory of the first `rows` of each run of a layer."""
    if pages.SUPPORTED and array.size:
        start, run = array.ctypes.data, array[0, 0]
        for address in range(start, start + array.nbytes, run.nbytes):
            pages.allocate(address, run[:rows].nbytes)


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


@dataclass(frozen=True)
class Part:
    """Layers of a cache, with room for equally many tokens."""

    layers: tuple[int, ...]
    tokens: int

    def shape(self, config: ModelConfig, dtype: str) -> tuple[int, ...]:
        """(layers, 2, kv_heads, tokens, row)."""
        return len(self.layers), 2, config.kv_heads, self.tokens, row_items(config, dtype)

    def runs(self, config: ModelConfig) -> int:
        """The number of contiguous runs: a layer's keys, or values, of one head, token after token."""
        return len(self.layers) * 2 * config.kv_heads


def widest_window(config: ModelConfig) -> int:
    """The widest window of a layer; 0 if no layer has one."""
    return max((each for each in config.windows if each), default=0)


def divide(config: ModelConfig, capacity: int, windowed: bool = False) -> list[Part]:
    """All layers of a cache for `capacity` tokens; with `windowed`, the layers without a window and those
    with one, if those need less room.
    """
    layers, window = range(config.layers), widest_window(config)
    room = (-(-(window + _BACK + PASS) // _STEP) + 1) * _STEP
    if not (windowed and window and room < capacity):
        return [Part(tuple(layers), capacity)]
    full = tuple(layer for layer in layers if not config.window(layer))
    return [Part(full, capacity), Part(tuple(layer for layer in layers if config.window(layer)), room)]


def run_bytes(config: ModelConfig, tokens: int, dtype: str) -> int:
    """Bytes of this many tokens in a run."""
    return tokens * row_items(config, dtype) * _DTYPES[dtype].itemsize


def resident_bytes(
    config: ModelConfig, capacity: int, tokens: int, dtype: str, windowed: bool = False
) -> int:
    """Resident bytes of a cache for `capacity` tokens that has `tokens`: whole pages of each run."""
    return sum(_resident_bytes(config, part, tokens, dtype) for part in divide(config, capacity, windowed))


def _resident_bytes(config: ModelConfig, part: Part, tokens: int, dtype: str) -> int:
    page, tokens, runs = mmap.PAGESIZE, min(tokens, part.tokens), part.runs(config)
    pages = -(-run_bytes(config, tokens, dtype) // page)
    if tokens and run_bytes(config, part.tokens, dtype) % page:  # runs may begin and end within a page
        pages += 1
    return min(runs * pages * page, runs * run_bytes(config, part.tokens, dtype) + page)


def layer_values(config: ModelConfig, tokens: int) -> int:
    """Number of values in a layer's keys and values of this many tokens."""
    return 2 * config.kv_heads * config.head_dim * tokens


def token_bytes(config: ModelConfig, dtype: str, capacity: int = 0, windowed: bool = False) -> int:
    """Bytes that one more token adds to a long sequence's cache for `capacity` tokens."""
    parts = (part for part in divide(config, capacity, windowed) if part.tokens == capacity)
    return sum(part.runs(config) * run_bytes(config, 1, dtype) for part in parts)
