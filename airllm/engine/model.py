"""A model's forward pass over all its layers: tokens in, logits out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import accumulate
from os import PathLike
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from airllm.architectures import config_of
from airllm.architectures.tensor_names import NamedTensors
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.decoder import Angles, Rows, decoder_layer, unpacks_cache
from airllm.engine.native_decode import BoundStep, FusedLayers, FusedStep
from airllm.engine.parallel.tensor_parallel import Processes, Shard
from airllm.engine.rope_tables import Rotation
from airllm.files.open_weights import open_weights
from airllm.formats import Quantized
from airllm.memory.available import memory_limit
from airllm.memory.estimate import MemoryEstimate, estimate
from airllm.memory.fingerprint import fingerprint
from airllm.memory.kv_cache import Cache, layer_values
from airllm.memory.layers import Layer, open_norm, open_table
from airllm.memory.residency import Residency, open_layers, residency
from airllm.progress import OnProgress

Tables = list[tuple[np.ndarray, np.ndarray]]  # cosines and sines (positions, dim / 2) of each rotation

_BOUND = 256  # tokens that one BoundStep is prepared for


class ExactOps:
    """The ops of a backend, but `linear` dequantizes stored weights to float32 first, so that activations are
    never rounded to 8 bits. Slow: it measures what that rounding costs.
    """

    def __init__(self, ops: KernelBackend):
        self.backend = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def __repr__(self) -> str:
        return f"{self.backend.name()} in float32"

    def extension(self, name: str) -> None:
        """None: native layers round activations."""

    def linear(self, x: np.ndarray, weight: Any, bias: np.ndarray | None = None) -> np.ndarray:
        """`tensor_ops.linear` with a dequantized weight."""
        if isinstance(weight, Quantized):
            weight = self.backend.dequantize(weight)
        return self.backend.linear(x, weight, bias)


class Model:
    """The decoder of an opened file: `config`, weights that are looked up layer by layer, `forward`.

    `ops` is a `KernelBackend` or `ExactOps`; `max_memory` is in bytes. If it is None and the model does not
    fit in the memory that is available, it is that. With `processes`, this process holds a part of each layer
    and of the output, and `config` describes that part. All processes call the same methods with the same
    tokens and get the same logits. Raises ModelFileError, OSError, MemoryBudgetError.
    """

    residency: Residency

    def __init__(
        self,
        path: str | PathLike[str],
        ops: Any,
        max_memory: int | None = None,
        context: int | None = None,
        cache_dtype: str = "f16",
        processes: Processes | None = None,
    ):
        with ExitStack() as undo:
            self.weights = undo.enter_context(open_weights(path))
            self.config = config_of(self.weights)
            self._tensors = tensors = NamedTensors(self.weights, self.config)
            unpacked = isinstance(ops, ExactOps), unpacks_cache(ops, cache_dtype)
            limit = memory_limit(tensors, max_memory, context, cache_dtype, share=bool(processes))
            layers = open_layers(tensors, limit)
            self.embedding = open_table(tensors, "token_embedding")
            self.output = self.embedding if self.config.tied_embeddings else open_table(tensors, "output")
            self.output_norm = open_norm(tensors, "output_norm")
            ropes = (self.config.rope, self.config.local_rope)
            self._rotations = [Rotation(rope, self.config.context, tensors) for rope in ropes if rope]
            self.residency = residency(tensors, layers, limit, context, cache_dtype, *unpacked)
            self.layers = self.residency.layers
            self.shard = Shard(self.config, processes) if processes else None
            if self.shard:
                self.layers = [self.shard.layer(layer) for layer in self.layers]
                self.output, self.config = self.shard.output(self.output), self.shard.config
            self.use(ops)
            undo.pop_all()

    def use(self, ops: Any) -> None:
        """Run on these ops from now on, with their native layers and step if they have them."""
        self.ops = ops
        self.fused = FusedLayers(ops, self.layers, self.residency.whole)
        ends = (self.embedding, self.output_norm, self.output)
        self.step = FusedStep(ops, self.fused, self.config, *ends)
        self._bound: WeakKeyDictionary[Cache, BoundStep] = WeakKeyDictionary()

    @cached_property
    def fingerprint(self) -> str:
        """A string that identifies the model."""
        return fingerprint(self._tensors)

    def memory_estimate(self, context: int, cache_dtype: str, tokens: int) -> MemoryEstimate:
        """The memory the model takes without a budget, for one sequence of `context` tokens, if at most
        `tokens` go through the layers at once.
        """
        cached = layer_values(self._tensors.config, context) if unpacks_cache(self.ops, cache_dtype) else 0
        return estimate(self._tensors, context, cache_dtype, tokens, unpacked=[cached])

    def __repr__(self) -> str:
        return f"<Model {self.weights.path.name}: {self.config.in_short}, {self.ops!r}>"

    def close(self) -> None:
        """Close the file."""
        self.residency.close()
        self.weights.close()

    def forward(self, tokens: Sequence[list[int]], caches: Sequence[Cache]) -> list[np.ndarray]:
        """Hidden states (tokens, width), float32, of each sequence after the last layer. The caches grow."""
        rows = _rows(tokens, caches)
        angles = self._begin(rows)
        x = self._embed([token for sequence in tokens for token in sequence])
        fused = self.fused.supports(rows) and not self.shard
        for some in self.residency.layer_parts():
            if fused:
                self.fused.run(x, angles, rows, only=some)
            else:
                x = self._through_layers(self.layers[some], x, angles, rows)
        for part, sequence in zip(rows, tokens, strict=True):
            part.cache.extend(sequence)
        return [part.of(x) for part in rows]

    def run(
        self,
        batch: Sequence[list[int]],
        caches: Sequence[Cache],
        all_positions: bool = False,
        on_progress: OnProgress | None = None,
    ) -> list[np.ndarray]:
        """Logits after the tokens of each sequence, float32: (vocabulary), or (tokens, vocabulary) if
        `all_positions`. The caches grow by the tokens.

        A long prompt is cut into rounds of equal length, which all sequences share: kernels may round
        differently for a short last round. `on_progress(done, total)` is called before each round.
        """
        pending = [self.pending(*pair) for pair in zip(batch, caches, strict=True)]
        longest = max(map(len, pending))
        rounds = -(-longest // max(self.residency.chunk // len(pending), 1))
        if rounds == 1 and not all_positions:
            return list(self.decode(pending, caches))
        hidden: list[list[np.ndarray]] = [[] for _ in pending]
        for going, states in self._rounds(pending, caches, -(-longest // max(rounds, 1)) or 1, on_progress):
            for i, state in zip(going, states, strict=True):
                hidden[i] = [*hidden[i], state] if all_positions else [state[-1:]]
        logits = self.logits(np.concatenate([state for states in hidden for state in states]))
        if not all_positions:
            return list(logits)
        each_of = np.split(logits, np.cumsum([len(tokens) for tokens in pending])[:-1])
        return [rows[len(rows) - len(tokens) :] for rows, tokens in zip(each_of, batch, strict=True)]

    def _rounds(
        self,
        batch: Sequence[list[int]],
        caches: Sequence[Cache],
        each: int,
        on_progress: OnProgress | None,
    ) -> Iterator[tuple[list[int], list[np.ndarray]]]:
        """Indices of the sequences with tokens left, and the hidden states of their next `each` tokens."""
        for start in range(0, max(map(len, batch)), each):
            if on_progress:
                on_progress(sum(min(start, len(tokens)) for tokens in batch), sum(map(len, batch)))
            going = [i for i, tokens in enumerate(batch) if len(tokens) > start]
            parts = [batch[i][start : start + each] for i in going]
            yield going, self.forward(parts, [caches[i] for i in going])

    def layer_by_layer(self, token: int, cache: Cache) -> Generator[np.ndarray]:
        """Yield the hidden state (1, width), float32, of a sequence's next token after each layer.

        Each layer runs when its state is requested. The cache does not grow.
        """
        rows = _rows([[token]], [cache])
        angles = self._begin(rows)
        x = self._embed([token])
        fused = self.fused.supports(rows) and not self.shard
        for some in self.residency.layer_parts():
            for at in range(some.start, some.stop):
                if fused:
                    self.fused.run(x, angles, rows, only=slice(at, at + 1))
                else:
                    x = self._through_layers(self.layers[at : at + 1], x, angles, rows)
                yield x

    def decode(self, tokens: Sequence[list[int]], caches: Sequence[Cache]) -> np.ndarray:
        """Logits (sequences, vocabulary), float32, after each sequence's tokens. The caches grow.

        Runs as one native call, or a few, if the backend has one, rows are few and all weights are resident.
        """
        if len(tokens) == 1 and len(tokens[0]) == 1:
            logits = self._next(tokens[0][0], caches[0])
            if logits is not None:
                return logits[None]
        rows = _rows(tokens, caches)
        if not (self.residency.whole and self.step.supports(rows)):
            if self.residency.whole and (parts := self.step.parts(rows)):
                return np.concatenate([self.decode(tokens[part], caches[part]) for part in parts])
            return self.logits(np.concatenate([state[-1:] for state in self.forward(tokens, caches)]))
        angles = self._begin(rows)
        ids = [token for sequence in tokens for token in sequence]
        logits = self.step.run(ids, angles, rows, self.shard.processes.all_reduce if self.shard else None)
        for part, sequence in zip(rows, tokens, strict=True):
            part.cache.extend(sequence)
        return self.shard.gather_logits(logits) if self.shard else logits

    def _next(self, token: int, cache: Cache) -> np.ndarray | None:
        """Logits (vocabulary) after a sequence's next token; None if one native call cannot compute them."""
        bound = self._bound.get(cache)
        logits = bound.run(token, cache) if bound else None
        if logits is None and (bound := self.bind(cache)):
            self._bound[cache] = bound
            logits = bound.run(token, cache)
        return logits

    def bind(self, cache: Cache) -> BoundStep | None:
        """A `BoundStep` for the next tokens of a sequence; None if a native call cannot run them, or if its
        tables have no position left.
        """
        if self.shard or not (self.residency.whole and self.step.supports([Rows(0, 1, cache)])):
            return None
        self.residency.begin([(cache, 1)])
        tables = self.tables(min(cache.capacity, cache.length + _BOUND), cache.long)
        return self.step.bind(cache, tables) if cache.length < len(tables[0][0]) else None

    def tables(self, until: int, long: bool) -> Tables:
        """Cosines and sines of the first `until` positions, for each rotation of the model. `long` selects
        the angles of long texts (Phi-3). The tables end earlier if the angles change earlier.
        """
        for rotation in self._rotations:
            until = rotation.same_until(until, long)
        return [rotation.at(0, until, long) for rotation in self._rotations]

    def _begin(self, rows: list[Rows]) -> list[Angles]:
        """Begin a pass; returns the rows' angles for each rotation of the model."""
        self.residency.begin([(part.cache, part.stop - part.start) for part in rows])
        return [_angles(rotation, rows) for rotation in self._rotations]

    def pending(self, tokens: list[int], cache: Cache) -> list[int]:
        """The tokens that must go through the layers. Usually these are `tokens`. If they make the text so
        long that all positions get other angles (Phi-3), the cache is emptied and all tokens are returned.
        """
        cache.room_for(len(tokens))
        long = any(rotation.is_long(cache.length + len(tokens)) for rotation in self._rotations)
        if long != cache.long:
            tokens = [*cache.tokens, *tokens]
            cache.truncate(0)
            cache.long = long
        return tokens

    def _through_layers(
        self, layers: Sequence[Layer], x: np.ndarray, angles: list[Angles], rows: list[Rows]
    ) -> np.ndarray:
        for layer in layers:
            rope = self.config.rope_of(layer.index)
            layer_angles = angles[rope is self.config.local_rope] if rope else None
            x = decoder_layer(self.ops, x, layer, layer_angles, rows)
        return x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits (rows, vocabulary), float32, of hidden states (rows, width)."""
        c = self.config
        normed = self.ops.rms_norm(hidden, self.output_norm, c.norm_eps)
        logits = self._output_of(normed)
        if c.logit_softcap:
            logits = np.tanh(logits / c.logit_softcap, out=logits) * np.float32(c.logit_softcap)
        if c.logit_scale != 1:
            logits *= np.float32(c.logit_scale)
        return self.shard.gather_logits(logits) if self.shard else logits

    def _output_of(self, normed: np.ndarray) -> np.ndarray:
        if self.residency.whole:
            return self.ops.linear(normed, self.output)
        logits = np.empty((len(normed), 0), np.float32)
        for part in self.residency.output_parts():
            if part == slice(0, len(self.output)):
                return self.ops.linear(normed, self.output)
            if part.start == 0:
                logits = np.empty((len(normed), len(self.output)), np.float32)
            logits[:, part] = self.ops.linear(normed, self.output[part])
        return logits

    def _embed(self, tokens: list[int]) -> np.ndarray:
        ids = np.array(tokens, np.int64)
        x = np.empty((len(ids), self.config.width), np.float32)
        for start, stop in self.residency.embedding_parts(len(ids)):
            x[start:stop] = self.ops.embedding(ids[start:stop], self.embedding)
        return x if self.config.embedding_scale == 1 else x * np.float32(self.config.embedding_scale)


def _rows(tokens: Sequence[list[int]], caches: Sequence[Cache]) -> list[Rows]:
    """The row range of each sequence in the concatenated batch. Raises ContextFull if a cache has no room."""
    for sequence, cache in zip(tokens, caches, strict=True):
        cache.room_for(len(sequence))
    stops = accumulate(map(len, tokens))
    return [Rows(stop - len(s), stop, c) for stop, s, c in zip(stops, tokens, caches, strict=True)]


def _angles(rotation: Rotation, rows: list[Rows]) -> Angles:
    parts = [
        rotation.at(part.cache.length, part.cache.length + part.stop - part.start, part.cache.long)
        for part in rows
    ]
    cos, sin = (
        np.concatenate(each)[:, None] if len(parts) > 1 else each[0][:, None]
        for each in zip(*parts, strict=True)
    )
    return Angles(cos, sin, rotation.rope.interleaved)
