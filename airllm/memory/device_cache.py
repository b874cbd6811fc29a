"""Keeps the keys and values of a `Cache` in arrays on a device, which grow as tokens come."""

from __future__ import annotations

from typing import Any

import numpy as np

from airllm.memory.kv_cache import Cache

_STEP = 256  # tokens: the room of an array is a multiple of this


def why_not_movable(cache: Cache) -> str:
    """Why a cache stays in host memory; "" if it can be on a device."""
    if type(cache) is not Cache:
        return "it is in a file"
    if cache.layout.recurrent or not all(part.is_even for part in cache.layout.parts):
        return "devices have no kernels for recurrent states, and for values of another width than keys"
    return why_dtype_not_movable(cache.dtype)


def why_dtype_not_movable(dtype: str) -> str:
    """Why caches of a dtype stay in host memory; "" if they can be on a device."""
    return "devices have no kernels that write q8_0" if dtype.lower() == "q8_0" else ""


def move_cache(cache: Cache, on_device: Any, tokens: int, first: int = 0) -> None:
    """Keep a cache's keys and values of the layers from `first` on a device, a `DeviceOps`, with room for
    `tokens` more. What it has goes there once.
    """
    for layer in _layers(cache, first):
        kept: Any = cache.layer(layer).both
        rows = cache.length - cache.dropped_of(layer)
        if isinstance(kept, np.ndarray) or kept.shape[2] < min(rows + tokens, cache.room_of(layer)):
            cache.put_layer(layer, _larger(kept, on_device, rows, tokens, cache.room_of(layer)))


def device_bytes(cache: Cache, first: int, tokens: int) -> int:
    """Bytes of these layers on a device, once there is room for `tokens` more; 0 tokens: what is there."""
    total = 0
    for layer in _layers(cache, first):
        kept: Any = cache.layer(layer).both
        there = not isinstance(kept, np.ndarray)
        rows, most = cache.length - cache.dropped_of(layer), cache.room_of(layer)
        grows = tokens and not (there and kept.shape[2] >= min(rows + tokens, most))
        if there or tokens:
            total += kept[:, :, :1].nbytes * (_room(rows, tokens, most) if grows else kept.shape[2])
    return total


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
    return min(most, -(-max(rows + tokens, rows * 3 // 2) // _STEP) * _STEP)
