"""The KV cache: keys and values of a sequence's tokens, for every layer."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from operator import index
from typing import Any

import numpy as np

from airllm import tensor_ops
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.values import MOST
from airllm.files import pages
from airllm.formats import Quantized
from airllm.memory.cache_layout import BACK, PASS, STATES, STEP, CacheLayout, Part
from airllm.memory.layer_cache import LayerCache
from airllm.memory.recurrent_states import Arrays, RecurrentStates

_RELEASE = 256  # tokens: `truncate` releases the memory of this many, since each release has a cost


class ContextFull(ValueError):
    """A sequence would become longer than its cache has room for."""


class Cache:
    """What a sequence keeps of its tokens: keys and values of each layer, or a recurrent state. There is room
    for `capacity` tokens, of which the first `length` are valid.

    Memory is reserved at once and becomes resident page by page, as tokens are appended. `layout` says which
    arrays there are; `arrays` has those of each part. With `windowed`, layers with a window keep only recent
    tokens, if that needs less room: they lack the first `dropped`. A recurrent state cannot go back, but to
    the first `marked` tokens: `mark` keeps their state.
    """

    def __init__(self, config: ModelConfig, capacity: int, dtype: str = "f16", windowed: bool = False):
        self.config, self.capacity = config, capacity
        self.layout = CacheLayout(config, capacity, dtype, windowed)
        self.dtype = self.layout.dtype
        self.tokens: list[int] = []
        self.long = False  # whether its keys have the angles of a long text: Rotation.is_long
        self.dropped = 0
        self._most = 0  # most tokens that it ever had
        self._map, self._start = self._allocate(self.layout.nbytes)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a huge page spans many heads and would make them all resident
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self.arrays = self._map_arrays()
        self._of_layer = self.host_layers()
        self.recurrent = RecurrentStates(self.layout.recurrent, self._map_states())

    def _map_arrays(self) -> list[Arrays]:
        """The arrays of each part."""
        at, found = self._start, []
        for shapes in self.layout.shapes:
            arrays = []
            for shape in shapes:
                arrays.append(np.ndarray(shape, self.layout.items, self._map, at))
                at += arrays[-1].nbytes
            found.append(tuple(arrays))
        return found

    def host_layers(self) -> dict[int, LayerCache]:
        """The layers as they are in host memory, also of those that are on a device."""
        return {
            layer: self._views(part, arrays, place)
            for part, arrays in zip(self.layout.parts, self.arrays, strict=True)
            for place, layer in enumerate(part.layers)
        }

    def _views(self, part: Part, arrays: Arrays, place: int) -> LayerCache:
        own, latent = tuple(each[place] for each in arrays), part.value_dim * part.latent
        return LayerCache.of(own, self.layout.is_ring(part), latent, self.dtype)

    def _map_states(self) -> np.ndarray:
        """The memory of the recurrent states: (states, floats)."""
        floats = self.layout.state_bytes // STATES // 4
        at = self._start + self.layout.states_at if floats else 0
        return np.ndarray((STATES, floats), np.float32, self._map, at)

    @property
    def length(self) -> int:
        """Number of valid tokens."""
        return len(self.tokens)

    def __repr__(self) -> str:
        room = f"{self.length} of {self.capacity} tokens, {self.dtype}, {self.config.layers} layers"
        return f"<{type(self).__name__}: {room}>"

    def _allocate(self, nbytes: int) -> tuple[mmap.mmap, int]:
        """Memory for the cache, and the offset of its arrays in it."""
        private = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}
        return mmap.mmap(-1, max(nbytes, 1), **private), 0

    @property
    def native(self) -> np.ndarray | tuple[tuple[np.ndarray, int], ...]:
        """What native calls take: for each part, its array and how many tokens it lacks. For a single part
        that lacks none, the array.
        """
        parts = tuple((arrays[0], self._dropped_by(part)) for part, arrays in self._parts())
        return parts if len(parts) != 1 or parts[0][1] else parts[0][0]

    @property
    def native_states(self) -> tuple[np.ndarray, int, int] | None:
        """What native calls take of recurrent layers; None if there are none."""
        return self.recurrent.native if self.layout.recurrent else None

    def _parts(self) -> Iterator[tuple[Part, Arrays]]:
        return zip(self.layout.parts, self.arrays, strict=True)

    def _dropped_by(self, part: Part) -> int:
        return self.dropped if self.layout.is_ring(part) else 0

    def _runs(self) -> Iterator[tuple[np.ndarray, int]]:
        """All arrays of keys and values, and how many of the first tokens each lacks."""
        for part, arrays in self._parts():
            for array in arrays:
                yield array, self._dropped_by(part)

    @property
    def _room(self) -> int:
        """The tokens that layers with a window have room for, if they form a ring; else all."""
        return min(self.layout.rooms, default=self.capacity)

    @property
    def until(self) -> int:
        """The length that it can have before tokens must be dropped."""
        return self.dropped + self._room if self.layout.window else self.capacity

    @property
    def shortest(self) -> int:
        """The least length, besides 0, to which `truncate` can go back. With a recurrent state, there is no
        other between it and the whole length.
        """
        if self.layout.recurrent:
            return self.marked if self.marked and self._has_windows(self.marked) else self.length
        return self.dropped and self.dropped + self.layout.window - 1

    def layer(self, layer: int) -> LayerCache:
        """A layer's keys and values, without the tokens that are dropped."""
        return self._of_layer[layer]

    def put_layer(self, layer: int, *arrays: Any) -> None:
        """Keep a layer's keys and values in other arrays from now on, such as on a device. They may have
        less room than `room_of` says, but what `layer` has.
        """
        old = self._of_layer[layer]
        self._of_layer[layer] = LayerCache.of(arrays, old.is_ring, old.latent, self.dtype)

    def room_of(self, layer: int) -> int:
        """The most tokens that a layer keeps."""
        rooms = zip(self.layout.parts, self.layout.rooms, strict=True)
        return next(room for part, room in rooms if layer in part.layers)

    def dropped_of(self, layer: int) -> int:
        """How many of the first tokens a layer lacks."""
        return self.dropped if self._of_layer[layer].is_ring else 0

    @property
    def marked(self) -> int:
        """How many of the first tokens have a recurrent state to go back to."""
        return self.recurrent.marked

    def mark(self) -> None:
        """Keep the recurrent state, if there is one, so that `truncate` can go back to this length."""
        if self.layout.recurrent:
            self.recurrent.mark(self.length)

    def append(
        self,
        layer: int,
        keys: np.ndarray,
        values: np.ndarray | None,
        assign: Callable[[np.ndarray, np.ndarray], Any] | None = None,
        append: Callable[..., None] | None = None,
    ) -> None:
        """Store keys and values (tokens, kv_heads, head_dim), float32, of new tokens after a layer's others.
        No values are given if they are parts of keys. All become valid by `extend`. `assign` may be a faster
        `numpy.copyto` for floats, and `append` may write all to a layer on a device, from a place on.
        """
        start, kept = self.length - self.dropped_of(layer), self.layer(layer)
        if append and len(kept.arrays) == 1:
            append(kept.arrays[0], start, *(each for each in (keys, values) if each is not None))
            return
        put = np.copyto if self.dtype == "q8_0" or assign is None else assign
        for rows, new in ((kept.keys, keys), (kept.values, values)):
            if new is None:
                continue
            to = rows[:, start : start + len(keys)]
            if self.dtype == "q8_0" and not isinstance(new, np.ndarray):
                new.ops.assign_blocks(to, new.swapaxes(0, 1))  # on a device
            else:
                put(to, self._encode(new.swapaxes(0, 1)))

    def read(self, layer: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a layer's first tokens, but those dropped: (kv_heads, tokens, head_dim) each,
        floats.
        """
        kept, count = self.layer(layer), tokens - self.dropped_of(layer)
        if kept.latent:
            rows = self._decode(kept.keys[:, :count])
            return rows, rows[..., : kept.latent]
        return self._decode(kept.keys[:, :count]), self._decode(kept.values[:, :count])

    def _decode(self, kept: np.ndarray) -> np.ndarray:
        if self.dtype != "q8_0":
            return kept
        if not isinstance(kept, np.ndarray):
            return kept.ops.read_blocks(kept)  # on a device
        heads = [Quantized(rows, "q8_0") for rows in kept]  # a head's rows are contiguous
        floats = np.empty((len(heads), *heads[0].shape), np.float32)
        for head, out in zip(heads, floats, strict=True):
            tensor_ops.dequantize(head, out=out)
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
        self._drop((self.length + 1 - self.layout.window - BACK) // STEP * STEP)

    def _drop(self, dropped: int) -> None:
        """Drop tokens of the layers with a window, so that they lack the first `dropped`."""
        self._move_runs([layer for layer in self._of_layer.values() if layer.is_ring], dropped)
        self.dropped = dropped

    def _move_runs(self, layers: Iterable[LayerCache], dropped: int) -> None:
        """Move the last tokens of these layers to the front."""
        kept, before = self.length - dropped, dropped - self.dropped
        for layer in layers:
            for run in (*layer.keys, *layer.values):
                run[:kept] = run[before : before + kept]

    def _may_lack(self, dropped: int, length: int) -> bool:
        """Whether layers with a window may lack the first `dropped` of `length` tokens."""
        if not self.layout.window or not dropped:
            return dropped == 0 and length <= self.until
        return not dropped % STEP and length - self._room <= dropped <= length + 1 - self.layout.window

    def extend(self, tokens: list[int]) -> None:
        """Mark these tokens as valid: what they leave is in all layers."""
        self.tokens += tokens
        self.recurrent.advance()

    def cut(self, length: int) -> int:
        """The length that `truncate(length)` leaves: 0 if that is less than `shortest`."""
        if length >= self.length:
            return self.length
        least = self.shortest
        return 0 if length < least else least if self.layout.recurrent else length

    def truncate(self, length: int) -> None:
        """Drop all tokens after the first `length`. If that is less than `shortest`, something is missing,
        and all tokens are dropped. The memory of many tokens is released.
        """
        self._most = max(self._most, self.length)
        if (left := self.cut(length)) < self.length:
            self.recurrent.go_back()
        del self.tokens[left:]
        if not self.tokens:
            self.dropped = 0
            self.recurrent.clear()
        if self._most - self.length >= _RELEASE:
            self.release()

    def copy_prefix(self, other: Cache, length: int) -> None:
        """Become the first `length` tokens of another cache of the same model, capacity and dtype. Raises
        ValueError if the other cannot go back to that length.
        """
        if not length or other.cut(length) != length:
            found = f"a prefix of {length} tokens of a cache of {other.length}"
            between = "or" if self.layout.recurrent else "to"
            raise ValueError(f"{found}, expected {max(other.shortest, 1)} {between} {other.length}")
        self.truncate(0)
        if other.on_device():
            self._copy_layers(other, length)
        else:
            self._copy_runs(other, length)
        self.recurrent.copy(other.recurrent, length == other.length)
        self.long, self.dropped = other.long, other.dropped
        self.extend(other.tokens[:length])
        self.mark()

    def on_device(self) -> list[int]:
        """The layers whose keys and values are in arrays on a device: `put_layer`."""
        return [i for i, layer in self._of_layer.items() if not isinstance(layer.keys, np.ndarray)]

    @property
    def is_on_device(self) -> bool:
        """Whether a layer's keys and values, or its states, are in arrays on a device."""
        return bool(self.on_device() or self.recurrent.on_device())

    def leave_device(self) -> None:
        """Drop all tokens, and keep those that come in host memory."""
        self.truncate(0)
        self._of_layer = self.host_layers()

    def fetch_layers(self) -> None:
        """Bring keys, values and states that are on a device to host memory, and keep them there."""
        there, views = self.on_device(), self.host_layers()
        for layer in there:
            kept, rows = self.layer(layer), self.length - self.dropped_of(layer)
            np.copyto(views[layer].keys[:, :rows], np.asarray(kept.keys[:, :rows]))
            np.copyto(views[layer].values[:, :rows], np.asarray(kept.values[:, :rows]))
        self._of_layer = views
        self.recurrent.leave_device(fetched=False)

    def _copy_layers(self, other: Cache, length: int) -> None:
        """Copy layer by layer, each where it is."""
        there = other.on_device()
        for layer, kept in other._of_layer.items():
            rows = length - other.dropped_of(layer)
            if layer in there:
                self.put_layer(layer, *(each[:, :, :rows].copy() for each in kept.arrays))
                continue
            own = self._of_layer[layer]
            for to, given in ((own.keys, kept.keys), (own.values, kept.values)):
                np.copyto(to[:, :rows], given[:, :rows])

    def _copy_runs(self, other: Cache, length: int) -> None:
        for (own, _), (array, dropped) in zip(self._runs(), other._runs(), strict=True):
            rows = length - dropped
            _allocate_runs(own, rows)
            np.copyto(own[:, :, :, :rows], array[:, :, :, :rows])

    def _has_windows(self, length: int) -> bool:
        """Whether layers with a window have what the next token after this length sees."""
        return not self.dropped or length >= self.dropped + self.layout.window - 1

    def release(self) -> None:
        """Give the memory after the last token back to the system. A file keeps its contents."""
        self._most = max(self._most, self.length)
        if not pages.SUPPORTED:  # elsewhere the advice may do nothing
            return
        start = self._start
        for array, dropped in self._runs():
            if array.size:
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
        return self.layout.resident_bytes(max(self._most, self.length + more))

    def _encode(self, new: np.ndarray) -> np.ndarray:
        if self.dtype != "q8_0":
            return new
        return tensor_ops.quantize(np.ascontiguousarray(new), "q8_0").data


def _allocate_runs(array: np.ndarray, rows: int) -> None:
    """Allocate the memory of the first `rows` of each run."""
    if pages.SUPPORTED and array.size:
        start, run = array.ctypes.data, array[0, 0, 0]
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
