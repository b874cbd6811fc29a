"""Embeddings: texts as vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from airllm.architectures.pooling import Dense, Pooling, unit
from airllm.engine.devices.placed_pooling import PlacedPooling
from airllm.engine.devices.placement import OnDevice
from airllm.engine.encoder import Encoder
from airllm.engine.model import Model
from airllm.files.gguf import GgufFile
from airllm.files.safetensors import SafetensorsFolder
from airllm.files.weight_file import ModelFileError, Stored, WeightFile
from airllm.formats import Quantized
from airllm.memory.kv_cache import Cache
from airllm.tensor_ops import gelu

_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: gelu(x, "none"),
}


class NoEmbeddings(ValueError):
    """The model's files do not say how a text becomes a vector."""


class NoGeneration(ValueError):
    """The model makes vectors of texts and does not write: an encoder, or a decoder without its output."""

    def __init__(self, name: str, encoder: bool = True):
        kind = "is an encoder, which" if encoder else "has no output matrix: it"
        super().__init__(f"{name} {kind} makes vectors of texts and does not generate: use embed")


def cut_text(tokens: list[int], most: int, closing: int | None) -> list[int]:
    """At most so many tokens, from the beginning of a text. `closing`, if it ends the text, still does."""
    if len(tokens) <= most:
        return tokens
    ends = [closing] if closing is not None and tokens[-1] == closing else []
    return tokens[: most - len(ends)] + ends


class Embedder:
    """Makes vectors of tokens: states, pooling, what the model multiplies the pooled vector by, length 1.

    `encoder`: the passes of a model that does not generate; another one goes through `model` with caches of
    `new_cache`. Raises ModelFileError for matrices that are missing or of another shape.
    """

    def __init__(
        self, model: Model, pooling: Pooling, encoder: Encoder | None, new_cache: Callable[[], Cache]
    ):
        self._model, self._pooling, self._encoder, self._new_cache = model, pooling, encoder, new_cache
        self._dense = [(each, *_matrix(model.weights, each)) for each in pooling.dense]
        self.width = model.config.width
        for each in pooling.dense:
            if each.narrow != self.width:
                expected = f"{self.width}, as what comes before has"
                raise ModelFileError(model.weights.path, each.path, f"takes {each.narrow} values", expected)
            self.width = each.wide

    def embed(self, batch: Sequence[list[int]]) -> np.ndarray:
        """The vectors (texts, width), float32, of texts' tokens. None depends on the other texts: in host
        memory by no bit, on a device by its rounding.
        """
        found = self._model.with_fallback([], lambda: self._embed(batch))
        return (unit(found) if self._pooling.normalize else found).astype(np.float32)

    def _embed(self, batch: Sequence[list[int]]) -> np.ndarray:
        if not batch or not (there := self._model.on_device):
            return self._embed_on_host(batch)
        return self._embed_on_device(batch, there.part(lambda: self._place(there), PlacedPooling))

    def _embed_on_host(self, batch: Sequence[list[int]]) -> np.ndarray:
        found = np.empty((len(batch), self._model.config.width))
        for i, states in self._encoder.states(batch) if self._encoder else self._states(batch):
            found[i] = self._pooling.of(states)
        for dense, matrix, bias in self._dense:
            found = _FUNCTIONS[dense.activation](found @ matrix.T + bias)
        return found

    def _states(self, batch: Sequence[list[int]]) -> Iterator[tuple[int, np.ndarray]]:
        """The states of a decoder. Each text goes through the layers alone."""
        for i, tokens in enumerate(batch):
            yield i, self._model.states(tokens, self._new_cache())

    # ---- on a device ----

    def _place(self, there: OnDevice) -> PlacedPooling:
        dense = ((each.activation, w, b if isinstance(b, np.ndarray) else None) for each, w, b in self._dense)
        return PlacedPooling(there, self._pooling, dense)

    def _embed_on_device(self, batch: Sequence[list[int]], placed: PlacedPooling) -> np.ndarray:
        """The vectors before their length becomes 1. The host waits once, for them."""
        order, pooled = list[int](), list[Any]()
        for some, found in self._pool(batch, placed):
            order += some
            pooled.append(found)
        result = np.empty((len(batch), self.width))
        result[order] = placed.finish(pooled)
        return result

    def _pool(self, batch: Sequence[list[int]], placed: PlacedPooling) -> Iterator[tuple[list[int], Any]]:
        """Yield indices of texts, and their pooled states there. Texts of a decoder are alone."""
        if self._encoder:
            for some, lengths, x in self._encoder.passes(batch):
                yield some, placed.pool(x, lengths)
            return
        for i, tokens in enumerate(batch):
            parts = self._model.state_parts(tokens, self._new_cache())
            yield [i], placed.pool_parts(parts, len(tokens))


def _matrix(weights: WeightFile, dense: Dense) -> tuple[np.ndarray, np.ndarray | float]:
    """The matrix (wide, narrow) and the bias (wide), or 0, as float64."""
    if isinstance(weights, GgufFile):
        return _floats(weights.tensor(f"{dense.path}.weight")), 0.0
    with SafetensorsFolder(Path(weights.path) / dense.path) as folder:
        names = ["linear.weight"] + ["linear.bias"] * dense.bias
        shapes = [(dense.wide, dense.narrow), (dense.wide,)]
        found = [_floats(folder.tensor(name)) for name in names]
        for name, array, shape in zip(names, found, shapes, strict=False):
            if array.shape != shape:
                expected = f"{shape}, as its config.json says"
                raise ModelFileError(folder.path, f"tensor {name}", f"has shape {array.shape}", expected)
    return found[0], found[1] if dense.bias else 0.0


def _floats(stored: Stored) -> np.ndarray:
    whole = stored.dequantize() if isinstance(stored, Quantized) else stored
    return np.asarray(whole, np.float64)
