"""Keeps the keys and values of a `Cache` in arrays on a device, which grow as tokens come, and its recurrent
states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from airllm.memory.cache_layout import device_room
from airllm.memory.kv_cache import Cache
from airllm.memory.layer_cache import LayerCache

_FEW = 16  # tokens of all layers that come from a device together
_STEP = 256  # tokens: the room of an array is a multiple of this, unless the cache's is less


def move_cache(cache: Cache, on_device: Any, tokens: int, first: int = 0) -> None:
    """Keep a cache's keys and values of the layers from `first` on a device, a `DeviceOps`, with room for
    `tokens` more, and their recurrent states. What it has goes there once.
    """
    for layer in _layers(cache, first):
        kept: Any = cache.layer(layer).arrays
        rows, most = cache.length - cache.dropped_of(layer), cache.room_of(layer)
        if isinstance(kept[0], np.ndarray) or kept[0].shape[2] < min(rows + tokens, most):
            cache.put_layer(layer, *(_larger(each, on_device, rows, tokens, most) for each in kept))
    _move_states(cache, on_device, first)


def _move_states(cache: Cache, on_device: Any, first: int) -> None:
    """Bring the recurrent states to the device; of a sequence without tokens, they are zeros."""
    states = cache.recurrent
    there, host = set(states.on_device()), states.in_host_memory()
    for layer in (layer for layer in cache.layout.recurrent if layer >= first and layer not in there):
        moved = [tuple(on_device.empty(each.shape, each.dtype) for each in of[layer]) for of in host]
        for number in states.valid:
            for to, given in zip(moved[number], host[number][layer], strict=True):
                on_device.assign(to, given if cache.length else 0)
        states.put(layer, moved)


def device_bytes(cache: Cache, first: int, tokens: int) -> int:
    """Bytes of these layers on a device, once there is room for `tokens` more; 0 tokens: what is there."""
    total = 0
    for layer in _layers(cache, first):
        kept: Any = cache.layer(layer).arrays
        there, room = not isinstance(kept[0], np.ndarray), kept[0].shape[2]
        rows, most = cache.length - cache.dropped_of(layer), cache.room_of(layer)
        grows = tokens and not (there and room >= min(rows + tokens, most))
        if there or tokens:
            each = sum(array[:, :, :1].nbytes for array in kept)
            total += each * (_room(rows, tokens, most) if grows else room)
    states, there_too = cache.layout.layer_state_bytes, cache.recurrent.on_device()
    return total + sum(states[i] for i in states if i >= first and (tokens or i in there_too))


def fetch_rows(cache: Cache, tokens: int) -> None:
    """Copy the keys and values of the next `tokens` from a device to the cache's host memory as well. Of few
    tokens, those of all layers of one size come together.
    """
    there, host = set(cache.on_device()), cache.host_layers()
    for part in cache.layout.parts:
        layers = [layer for layer in part.layers if layer in there]
        each = len(layers) if tokens <= _FEW else 1
        for start in range(0, len(layers), max(each, 1)):
            _fetch_together(cache, host, layers[start : start + each], tokens)


def _fetch_together(cache: Cache, host: dict[int, LayerCache], layers: list[int], tokens: int) -> None:
    rows = [_rows_of(cache, layer, tokens) for layer in layers]
    for number in range(len(cache.layer(layers[0]).arrays) if layers else 0):
        kept: list[Any] = [cache.layer(layer).arrays[number] for layer in layers]
        parts = [array[:, :, some] for array, some in zip(kept, rows, strict=True)]
        found = parts[0].ops.empty((len(parts), *parts[0].shape), parts[0].dtype)
        for place, part in enumerate(parts):
            found[place] = part
        for layer, some, values in zip(layers, rows, found.numpy(), strict=True):
            np.copyto(host[layer].arrays[number][:, :, some], values)


def _rows_of(cache: Cache, layer: int, tokens: int) -> slice:
    """The rows of the next tokens in a layer, which may lack the first ones."""
    start = cache.length - cache.dropped_of(layer)
    return slice(max(start, 0), start + tokens)


def _layers(cache: Cache, first: int) -> list[int]:
    return [layer for part in cache.layout.parts for layer in part.layers if layer >= first]


def _larger(kept: Any, on_device: Any, rows: int, tokens: int, most: int) -> Any:
    """An array on the device that begins with the first `rows` of these, with room for more than `tokens`."""
    room = _room(rows, tokens, most)
    larger = on_device.empty((*kept.shape[:2], room, kept.shape[3]), kept.dtype)
    if rows:
        larger[:, :, :rows] = kept[:, :, :rows]
    return larger


def _room(rows: int, tokens: int, most: int) -> int:
    """The tokens that a new array has room for: more than `tokens` after these `rows`."""
    return min(device_room(most), -(-max(rows + tokens, rows * 3 // 2) // _STEP) * _STEP)
