"""Decode by a captured graph, if the backend's module can capture one: weights, keys and values are on the
device, and one graph launch runs the whole step.

`decoder.decoder_layer` and `model.Model` are the definition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.engine.layers.native_decode import end_arguments, prepare_layers
from airllm.engine.layers.rope_tables import Tables
from airllm.engine.model import Model
from airllm.files.weight_file import Stored
from airllm.formats import Quantized
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer

CACHE_DTYPES = ("f32", "f16")


class CapturedStep:
    """Decode steps of one sequence, one token each. Of its cache, only the tokens are in host memory.

    Raises NotImplementedError if the backend's graph does not support a part of the model, MemoryError if the
    device has no room for weights and cache.
    """

    def __init__(self, model: Model, cache: Cache):
        self._tables_of = model.rotations.tables
        tables = self._tables(cache)
        self._graph = _graph(model, tables, cache)

    def run(self, token: int, cache: Cache) -> np.ndarray | None:
        """Logits (vocabulary), float32, after `token`. `cache` must be the one of the constructor; it grows
        by the token. None if the step was not prepared for the next position.
        """
        if cache.length >= self._until or cache.long != self._long:
            return None
        logits = self._graph.step(token, cache.length)[0]
        cache.extend([token])
        return logits

    def prefill(self, tokens: Sequence[int], cache: Cache) -> np.ndarray:
        """Logits after the last of `tokens`, which run one by one."""
        if cache.long != self._long:
            self._graph.set_angles(self._tables(cache))
        for token in tokens:
            logits = self.run(token, cache)
        assert logits is not None, "there is room for all of them"
        return logits

    def _tables(self, cache: Cache) -> Tables:
        """The angles of a sequence as long as this one; sets the positions that the step is prepared for."""
        tables = self._tables_of(cache.capacity, cache.long)
        self._long, self._until = cache.long, len(tables[0][0])
        return tables


def capture_step(model: Model, cache: Cache) -> tuple[CapturedStep | None, str]:
    """A model's captured step for this cache, or None and why not; "" if the backend captures no steps."""
    if model.ops.extension("DecoderGraph") is None:
        return None, ""
    if why_not := _why_not(model, cache):
        return None, why_not
    try:
        return CapturedStep(model, cache), ""
    except (NotImplementedError, MemoryError) as error:
        return None, str(error)


def _why_not(model: Model, cache: Cache) -> str:
    """Why the step cannot be captured; "" if nothing speaks against it yet."""
    if model.shard:
        return "the results of the processes are added between the launches of a step"
    if any(layer.experts for layer in model.layers):
        return "experts are chosen in host memory between the launches of a step"
    if cache.dtype not in CACHE_DTYPES:
        return f"a captured step takes caches in {' and '.join(CACHE_DTYPES)} only"
    return ""


def _graph(model: Model, tables: Tables, cache: Cache) -> Any:
    """The backend's graph of a step. Copies all weights to the device."""
    c, ops = model.config, model.ops
    to_device = ops.extension("to_device")

    def move(stored: Stored) -> Any:
        dense = isinstance(stored, Quantized)
        return to_device(stored if dense else np.require(stored, requirements=["C", "ALIGNED"]))

    def move_layer(layer: Layer) -> Layer:
        weights = {name: move(stored) for name, stored in layer.weights.items()}
        return dataclasses.replace(layer, weights=weights)

    embedding = move(model.embedding)
    return ops.extension("DecoderGraph")(
        prepare_layers(ops, "DeviceLayer", [move_layer(layer) for layer in model.layers]),
        embedding,
        move(model.output_norm),
        embedding if model.output is model.embedding else move(model.output),
        tables,
        capacity=cache.capacity,
        cache_dtype=cache.dtype,
        **end_arguments(ops, c),
    )
