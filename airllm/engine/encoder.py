"""The passes of encoders: the tokens of texts in, their states out, in host memory or on a device.

In host memory, all products meet the kernels for many rows, also those of a short text alone, so that a
text's states do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from airllm.architectures.tensor_names import NamedTensors
from airllm.engine.devices.placed_encoder import PlacedEncoder
from airllm.engine.devices.placement import OnDevice
from airllm.engine.layers.decoder import normalize
from airllm.engine.layers.encoder import alike, encoder_layer
from airllm.engine.layers.rows import Angles
from airllm.engine.opened_model import OpenedModel
from airllm.files.weight_file import Stored
from airllm.formats import Quantized
from airllm.memory.kv_cache import ContextFull
from airllm.memory.layers import check_tensor, open_norm


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
        texts first. Raises as `passes`.
        """
        for some, lengths, x in self.passes(batch):
            yield from zip(some, np.split(np.asarray(x), np.cumsum(lengths)[:-1]), strict=True)

    def passes(self, batch: Sequence[list[int]]) -> Iterator[tuple[list[int], list[int], Any]]:
        """Yield the indices of the texts of each pass, their lengths, and the states of all of them (rows,
        width), which are on the device if the model is. Raises ContextFull for a text longer than the
        context, MemoryBudgetError for one whose activations do not fit, DeviceFault.
        """
        lengths = [len(tokens) for tokens in batch]
        most = self._model.residency.context
        if (longest := max(lengths, default=0)) > most:
            raise ContextFull(f"a text has {longest} tokens, expected at most {most}, the model's context")
        for some in _divide(lengths, self._model.residency.chunk):
            own = [lengths[i] for i in some]
            ids = np.array([token for i in some for token in batch[i]], np.int64)
            self._model.residency.begin([], tokens=len(ids))
            there = self._model.on_device
            yield some, own, self._place(there).run(ids, own) if there else self._run(ids, own)

    def _place(self, there: OnDevice) -> PlacedEncoder:
        """The encoder on the device."""
        rotations = self._model.rotations if self._rotates else ()
        given = self._added, self._norm, rotations, self._model.residency.context
        return there.part(lambda: PlacedEncoder(there, *given), PlacedEncoder)

    def _run(self, ids: np.ndarray, lengths: list[int]) -> np.ndarray:
        """A pass in host memory."""
        model, ops = self._model, _ops_of(self._model.ops)
        rows, angles = list(alike(lengths)), self._angles(lengths)
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

    @property
    def _rotates(self) -> bool:
        return not all(self._config.nope_layers or (False,))

    def _angles(self, lengths: Sequence[int]) -> list[Angles]:
        """The angles of each rotation, if any layer has one."""
        if not self._rotates:
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


def _divide(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
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
