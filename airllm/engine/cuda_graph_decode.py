"""A model's step of decoding where a backend's module can capture it: weights, keys and values lie on the
device, and a step is one launch of all that there is to do.

`decoder.decoder_layer` and `model.Model` are the definition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.engine.model import Model, Tables
from airllm.engine.native_decode import end_arguments, prepare_layer
from airllm.files.weight_file import Stored
from airllm.formats import Quantized
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer

CACHE_DTYPES = ("f32", "f16")


class CapturedStep:
    """The steps of one sequence, a token each: of its cache only the tokens are in host memory.

    Raises NotImplementedError where the backend's graph has no place for a part of the model, MemoryError
    where the device has no room for weights and cache.
    """

    def __init__(self, model: Model, cache: Cache):
        self._tables_of = model.tables
        tables = self._tables(cache)
        self._graph = _graph(model, tables, cache)

    def run(self, token: int, cache: Cache) -> np.ndarray | None:
        """Logits (vocabulary), float32, after `token`; the cache, which it is made for, grows by it. None
        where it is not made ready for the next token of the sequence.
        """
        if cache.length >= self._until or cache.long != self._long:
            return None
        logits = self._graph.step(token, cache.length)[0]
        cache.extend([token])
        return logits

    def prefill(self, tokens: Sequence[int], cache: Cache) -> np.ndarray:
        """The same after the last of `tokens`, which go one by one."""
        if cache.long != self._long:
            self._graph.turn(self._tables(cache))
        for token in tokens:
            logits = self.run(token, cache)
        assert logits is not None, "there is room for all of them"
        return logits

    def _tables(self, cache: Cache) -> Tables:
        """What turns the tokens of a sequence that is as long as this one; ready for so many."""
        tables = self._tables_of(cache.capacity, cache.long)
        self._long, self._until = cache.long, len(tables[0][0])
        return tables


def capture_step(model: Model, cache: Cache) -> tuple[CapturedStep | None, str]:
    """A model's step with this cache, where its backend captures steps, or why this one is not captured."""
    if model.ops.extension("DecoderGraph") is None:
        return None, ""
    if why_not := _why_not(model, cache):
        return None, why_not
    try:
        return CapturedStep(model, cache), ""
    except (NotImplementedError, MemoryError) as error:
        return None, str(error)


def _why_not(model: Model, cache: Cache) -> str:
    """Why the step cannot be captured; "" if nothing speaks against trying."""
    if model.shard:
        return "what processes have found is added up between the launches of a step"
    if any(layer.experts for layer in model.layers):
        return "experts are chosen in host memory between the launches of a step"
    if cache.dtype not in CACHE_DTYPES:
        return f"a captured step takes caches in {' and '.join(CACHE_DTYPES)} only"
    return ""


def _graph(model: Model, tables: Tables, cache: Cache) -> Any:
    """The backend's graph of a step, with a copy of all weights on the device."""
    c, ops = model.config, model.ops
    to_device = ops.extension("to_device")

    def move(stored: Stored) -> Any:
        dense = isinstance(stored, Quantized)
        return to_device(stored if dense else np.require(stored, requirements=["C", "ALIGNED"]))

    def move_layer(layer: Layer) -> Any:
        weights = {name: move(stored) for name, stored in layer.weights.items()}
        return prepare_layer(ops, "DeviceLayer", dataclasses.replace(layer, weights=weights))

    embedding = move(model.embedding)
    return ops.extension("DecoderGraph")(
        tuple(map(move_layer, model.layers)),
        embedding,
        move(model.output_norm),
        embedding if model.output is model.embedding else move(model.output),
        tables,
        capacity=cache.capacity,
        cache_dtype=cache.dtype,
        **end_arguments(ops, c),
    )
