"""What lies where in a KV cache, and how many bytes it takes: it follows from the layers' specifications."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.architectures.layer_spec import Attention, Latent
from airllm.architectures.model_config import ModelConfig
from airllm.formats import FORMATS

# Name of a cache dtype -> the NumPy dtype of its items. q8_0 has ggml's blocks of 32.
_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "q8_0": np.dtype(np.uint8),
}
PASS = 512  # the most tokens of a sequence that go through the layers together
STEP = 256  # tokens: what is dropped; attention cuts keys at multiples of this (kFewRowsPiece)
BACK = 64  # tokens that `Cache.truncate` can always drop, besides those of the last pass
STATES = 3  # recurrent states: of the last token, of the next, and of an earlier one to go back to
_LINE = 64  # bytes: recurrent states begin at a multiple


@dataclass(frozen=True)
class Part:
    """Layers whose keys and values have equal sizes. If `windowed`, all of them have a window. If `latent`, a
    value is the first part of its key.
    """

    layers: tuple[int, ...]
    kv_heads: int
    key_dim: int
    value_dim: int
    windowed: bool
    latent: bool = False

    @property
    def is_even(self) -> bool:
        """Whether keys are as wide as values: then one array has both."""
        return self.key_dim == self.value_dim

    def widths(self) -> list[tuple[int, int]]:
        """For each array of the part: how many of keys and values it has, and the width of a row."""
        if self.is_even:
            return [(2, self.key_dim)]
        return [(1, self.key_dim)] if self.latent else [(1, self.key_dim), (1, self.value_dim)]


class CacheLayout:
    """The arrays of a cache for `capacity` tokens.

    Each part has an array (layers, 2, kv_heads, room, row), keys first. A row is one token's key, or value,
    of one head. If values have another width than keys, keys and values have an array each, with a 1 instead
    of the 2; values that are parts of keys have none. With `windowed`, layers with a window have only room
    for it and the tokens of a pass, if that is less than `capacity`: they form a ring. `shapes` has the
    shapes of each part's arrays.
    """

    def __init__(self, config: ModelConfig, capacity: int, dtype: str = "f16", windowed: bool = False):
        self.config, self.capacity, self.dtype = config, capacity, dtype_named(dtype)
        self.parts = divide(config)
        self.window = widest_window(config) if windowed and _ring_room(config) < capacity else 0
        self.rooms = [_ring_room(config) if self.is_ring(part) else capacity for part in self.parts]
        self.shapes = [
            [
                (len(part.layers), count, part.kv_heads, room, row_items(width, self.dtype))
                for count, width in part.widths()
            ]
            for part, room in zip(self.parts, self.rooms, strict=True)
        ]
        self.recurrent = {
            layer: spec.recurrent.shapes for layer, spec in enumerate(config.all_layers) if spec.recurrent
        }

    def is_ring(self, part: Part) -> bool:
        """Whether the layers of a part have room for their window only."""
        return bool(self.window) and part.windowed

    @property
    def items(self) -> np.dtype[Any]:
        """The dtype of the arrays of keys and values."""
        return _DTYPES[self.dtype]

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states."""
        return sum(self.layer_state_bytes.values())

    @property
    def layer_state_bytes(self) -> dict[int, int]:
        """Bytes of all states of each recurrent layer."""
        return {layer: STATES * 4 * sum(map(math.prod, shapes)) for layer, shapes in self.recurrent.items()}

    @property
    def state_places(self) -> dict[int, int]:
        """Where the state of each recurrent layer begins in one of the states: floats before it."""
        places, at = {}, 0
        for layer, shapes in self.recurrent.items():
            places[layer] = at
            at += sum(map(math.prod, shapes))
        return places

    @property
    def states_at(self) -> int:
        """The offset of the recurrent states, after all keys and values."""
        end = sum(map(self._nbytes, self._arrays()))
        return -(-end // _LINE) * _LINE if self.recurrent else end

    @property
    def nbytes(self) -> int:
        """All bytes of the cache."""
        return self.states_at + self.state_bytes

    def resident_bytes(self, tokens: int) -> int:
        """Resident bytes with this many tokens: whole pages of each run, and the states."""
        return sum(self._resident_bytes(shape, tokens) for shape in self._arrays()) + self.state_bytes

    def token_bytes(self) -> int:
        """Bytes that one more token adds to a long sequence."""
        grows = (
            shape
            for part, shapes in zip(self.parts, self.shapes, strict=True)
            if not self.is_ring(part)
            for shape in shapes
        )
        return sum(self._nbytes(shape) // self.capacity for shape in grows)

    def _arrays(self) -> Iterator[tuple[int, ...]]:
        for shapes in self.shapes:
            yield from shapes

    def _nbytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.items.itemsize

    def _resident_bytes(self, shape: tuple[int, ...], tokens: int) -> int:
        *runs, room, row = shape
        page, count, row = mmap.PAGESIZE, math.prod(runs), row * self.items.itemsize
        tokens = min(tokens, room)
        pages = -(-tokens * row // page)
        if tokens and room * row % page:  # runs may begin and end within a page
            pages += 1
        return min(count * pages * page, count * room * row + page)


def divide(config: ModelConfig) -> list[Part]:
    """The layers that have keys and values of their own, by their sizes; those with a window come last."""
    found: dict[tuple[int, int, int, bool, bool], list[int]] = {}
    for layer, spec in enumerate(config.all_layers):
        a = spec.mixer
        if isinstance(a, Attention) and a.source == layer:
            found.setdefault((a.kv_heads, a.key_dim, a.value_dim, bool(a.window), False), []).append(layer)
        elif isinstance(a, Latent):
            found.setdefault((1, a.row, a.kv_rank, False, True), []).append(layer)
    parts = [Part(tuple(layers), *of) for of, layers in found.items()]
    return sorted(parts, key=lambda part: part.windowed)


def places(parts: list[Part]) -> dict[int, tuple[int, int]]:
    """The part of each layer that has keys and values of its own, and its place in the part."""
    return {
        layer: (number, place) for number, part in enumerate(parts) for place, layer in enumerate(part.layers)
    }


def widest_window(config: ModelConfig) -> int:
    """The widest window of a layer; 0 if no layer has one."""
    return max((each for each in config.windows if each), default=0)


def _ring_room(config: ModelConfig) -> int:
    return (-(-(widest_window(config) + BACK + PASS) // STEP) + 1) * STEP


def dtype_named(name: Any) -> str:
    """The canonical name of a cache dtype; case is ignored. ValueError that lists the dtypes."""
    if not isinstance(name, str) or name.lower() not in _DTYPES:
        raise ValueError(f"cache_dtype has value {name!r}, expected one of {', '.join(_DTYPES)}")
    return name.lower()


def row_items(width: int, dtype: str) -> int:
    """Items in a row of `width` values, one token's key of one head. ValueError if the dtype does not support
    that width.
    """
    if dtype != "q8_0":
        return width
    of = FORMATS["q8_0"]
    if width % of.values:
        wanted = f"f32 or f16 for heads of {width}, which is not a multiple of {of.values}"
        raise ValueError(f"cache_dtype has value 'q8_0', expected {wanted}")
    return width // of.values * of.bytes


def layer_values(config: ModelConfig, tokens: int) -> int:
    """The most values in a layer's keys and values of this many tokens."""
    each = (part.kv_heads * sum(count * width for count, width in part.widths()) for part in divide(config))
    return tokens * max(each, default=0)
