"""Encoders: models whose tokens attend to all tokens of their text, before and after them.

The rows of a pass are the tokens of several texts, the shortest first, without padding: only attention
separates them, and texts of one length attend together. All products meet the kernels for many rows, also
those of a short text alone, so that a text's states do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from airllm.architectures.tensor_names import NamedTensors
from airllm.engine.layers.decoder import normalize
from airllm.engine.layers.feed_forward import feed_forward
from airllm.engine.layers.rows import Angles
from airllm.engine.opened_model import OpenedModel
from airllm.files.weight_file import Stored
from airllm.formats import Quantized
from airllm.memory.kv_cache import ContextFull
from airllm.memory.layers import Layer, check_tensor, open_norm

_BLOCK = 128  # queries that attend together in a layer with a window


@dataclass(frozen=True)
class Alike:
    """Rows `start` to `stop` of x are texts of `length` tokens each."""

    start: int
    stop: int
    length: int

    def heads_of(self, array: np.ndarray) -> np.ndarray:
        """A view (texts, heads, length, dim) of an array (rows, heads, dim)."""
        part = array[self.start : self.stop]
        return part.reshape(-1, self.length, *array.shape[1:]).swapaxes(1, 2)


class Encoder:
    """The passes of an opened encoder. Raises ModelFileError if its file lacks a table or a norm."""

    def __init__(self, model: OpenedModel):
        self._model, self._config = model, model.config
        self._added, self._norm = _added(model.tensors), None
        encoding = model.config.encoding
        if encoding and encoding.embedding_norm:
            self._norm = open_norm(model.tensors, "embedding_norm")

    def states(self, batch: Sequence[list[int]]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the index of each text and its states (tokens, width), float32, after the last norm; short
        texts first. Raises ContextFull for a text longer than the context, MemoryBudgetError for one whose
        activations do not fit.
        """
        lengths = [len(tokens) for tokens in batch]
        most = self._model.residency.context
        if (longest := max(lengths, default=0)) > most:
            raise ContextFull(f"a text has {longest} tokens, expected at most {most}, the model's context")
        for some in _passes(lengths, self._model.residency.chunk):
            x = self._pass([batch[i] for i in some])
            ends = np.cumsum([lengths[i] for i in some])
            yield from zip(some, np.split(x, ends[:-1]), strict=True)

    def _pass(self, texts: Sequence[list[int]]) -> np.ndarray:
        model, ops = self._model, _ops_of(self._model.ops)
        ids = np.array([token for text in texts for token in text], np.int64)
        model.residency.begin([], tokens=len(ids))
        lengths = [len(text) for text in texts]
        rows, angles = list(_alike(lengths)), self._angles(lengths)
        x = self._embed(ops, ids, lengths)
        for some in model.residency.layer_parts():
            for layer in model.layers[some]:
                rope = self._config.rope_of(layer.index)
                own = angles[rope is self._config.local_rope] if rope else None
                x = encoder_layer(ops, x, layer, own, rows)
        return normalize(ops, x, model.output_norm, self._config) if self._config.final_norm else x

    def _embed(self, ops: Any, ids: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        c, table = self._config, self._model.embedding
        x = np.empty((len(ids), c.width), np.float32)
        for start, stop in self._model.residency.embedding_parts(len(ids)):
            x[start:stop] = ops.embedding(ids[start:stop], table)
        if c.embedding_scale != 1:
            x *= np.float32(c.embedding_scale)
        if self._added is not None:
            x += np.concatenate([self._added[:length] for length in lengths])
        return x if self._norm is None else normalize(ops, x, self._norm, c)

    def _angles(self, lengths: Sequence[int]) -> list[Angles]:
        """The angles of each rotation, if any layer has one."""
        if all(self._config.nope_layers or (False,)):
            return []
        found = []
        for rotation in self._model.rotations:
            tables = rotation.at(0, max(lengths), long=False)
            cos, sin = (np.concatenate([each[:length] for length in lengths])[:, None] for each in tables)
            found.append(Angles(cos, sin, rotation.rope.interleaved))
        return found


def _added(tensors: NamedTensors) -> np.ndarray | None:
    """What is added to the token at each position (context, width), float32: a row for the position, and one
    for the type of the token, which is the first type for all. None if nothing is.
    """
    c = tensors.config
    if not (of := c.encoding) or not (of.positions or of.token_types):
        return None
    found = np.zeros((c.context, c.width), np.float32)
    if of.token_types:
        found += _floats(check_tensor(tensors, "type_embedding", (of.token_types, c.width))[:1])
    if of.positions:
        rows = (of.skipped + c.context, c.width)
        found += _floats(check_tensor(tensors, "position_embedding", rows))[of.skipped :]
    return found


def _floats(stored: Stored) -> np.ndarray:
    return stored.dequantize() if isinstance(stored, Quantized) else np.asarray(stored, np.float32)


def encoder_layer(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None, rows: Sequence[Alike]
) -> np.ndarray:
    """Run one layer on `x` (rows, width), float32; returns its output. `angles` is None if the layer has no
    rotary positions.
    """
    c = layer.config
    normed = normalize(ops, x, layer["attention.norm"], c) if c.norm_before_attention(layer.index) else x
    x = _join(ops, x, _attention(ops, normed, layer, angles, rows), layer, "attention")
    normed = normalize(ops, x, layer["feed_forward.norm"], c) if c.pre_norms else x
    return _join(ops, x, feed_forward(ops, normed, layer), layer, "feed_forward")


def _join(ops: Any, x: np.ndarray, change: np.ndarray, layer: Layer, half: str) -> np.ndarray:
    """The hidden state after one half of a layer: x plus its result, and the norm of one of them."""
    c = layer.config
    if not c.post_norms:
        return np.add(x, change, out=change)
    norm = layer[f"{half}.post_norm"]
    if c.encoding and c.encoding.sum_norms:
        return normalize(ops, np.add(x, change, out=change), norm, c)
    change = normalize(ops, change, norm, c)
    return np.add(x, change, out=change)


def _attention(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None, rows: Sequence[Alike]
) -> np.ndarray:
    """Attention of `x` (rows, width) among the tokens of each text."""
    q, k = (_rotate(ops, _heads(ops, x, layer, part), angles) for part in "qk")
    v = _heads(ops, x, layer, "v")
    out = np.empty((len(x), q.shape[1], v.shape[2]), np.float32)
    for part in rows:
        own_q, own_k, own_v, own_out = (part.heads_of(each) for each in (q, k, v, out))
        _attend(ops, own_q, own_k, own_v, own_out, layer)
    return ops.linear(out.reshape(len(x), -1), layer["attention.output"], layer.get("attention.output_bias"))


def _heads(ops: Any, x: np.ndarray, layer: Layer, part: str) -> np.ndarray:
    """The queries, keys or values (rows, heads, dim) of `x`, normalized by head if the model does so."""
    a = layer.spec.attention
    found = ops.linear(x, layer[f"attention.{part}"], layer.get(f"attention.{part}_bias"))
    found = found.reshape(len(x), -1, a.value_dim if part == "v" else a.key_dim)
    norm = layer.get(f"attention.{part}_norm")
    return found if norm is None else ops.rms_norm(found, norm, layer.config.norm_eps)


def _rotate(ops: Any, x: np.ndarray, angles: Angles | None) -> np.ndarray:
    return ops.apply_rope_into(x, angles.cos, angles.sin, angles.interleaved, None) if angles else x


def _attend(ops: Any, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, layer: Layer) -> None:
    """Attend from `q` to `k` and `v` (texts, heads, tokens, dim) of the same texts, into `out`."""
    scale, window, tokens = layer.config.attention_scale, layer.spec.attention.window, q.shape[2]
    if window is None or tokens <= window // 2 + 1:
        ops.attention(q, k, v, scale=scale, out=out)
        return
    for start in range(0, tokens, _BLOCK):
        stop = min(start + _BLOCK, tokens)
        seen = slice(max(start - window // 2, 0), min(stop + window // 2, tokens))
        apart = np.arange(start, stop)[:, None] - np.arange(seen.start, seen.stop)
        some = (q[:, :, start:stop], k[:, :, seen], v[:, :, seen], np.abs(apart) <= window // 2)
        ops.attention(*some, scale=scale, out=out[:, :, start:stop])


def _alike(lengths: Sequence[int]) -> Iterator[Alike]:
    """Runs of texts of the same length."""
    start = 0
    for length, run in groupby(lengths):
        stop = start + length * len(list(run))
        yield Alike(start, stop, length)
        start = stop


def _passes(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """The indices of the texts of each pass, the shortest first: at most `most` tokens, or one text."""
    some: list[int] = []
    rows = 0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if some and rows + lengths[i] > most:
            yield some
            some, rows = [], 0
        some.append(i)
        rows += lengths[i]
    if some:
        yield some


def _ops_of(ops: Any) -> Any:
    """The ops, with products that meet the kernels for many rows, if the backend has others."""
    most = ops.extension("rows_as_stored")
    return ops if most is None else _ManyRows(ops, most)


class _ManyRows:
    """The ops of a backend, whose products have more rows than the kernels for few rows take: rows are added
    to those that have less. `few`: the most rows of those kernels, for floats and for quantized weights.
    """

    def __init__(self, ops: Any, few: tuple[int, int]):
        self._ops, self._few = ops, few

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def linear(self, x: np.ndarray, weight: Stored, bias: np.ndarray | None = None) -> np.ndarray:
        """`tensor_ops.linear` of x (rows, k)."""
        least = self._few[not isinstance(weight, np.ndarray)] + 1
        if len(x) >= least:
            return self._ops.linear(x, weight, bias)
        padded = np.concatenate([x, np.zeros((least - len(x), x.shape[1]), np.float32)])
        return self._ops.linear(padded, weight, bias)[: len(x)]
