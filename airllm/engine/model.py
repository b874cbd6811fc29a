"""A model's forward pass over all its layers: tokens in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from airllm.engine.devices.fallback import go_on
from airllm.engine.layers.chunks import CHUNK
from airllm.engine.layers.decoder import decoder_layers, normalize
from airllm.engine.layers.native_decode import BoundStep
from airllm.engine.layers.rows import Angles, Rows
from airllm.engine.marks import tokens_before_mark
from airllm.engine.opened_model import OpenedModel
from airllm.engine.pass_rows import Progress, angles_of, rows_of
from airllm.engine.row_kernels import RowKernels, passes
from airllm.files.weight_file import Stored
from airllm.formats import Quantized
from airllm.memory.kv_cache import Cache
from airllm.progress import OnProgress

T = TypeVar("T")
_BOUND = 256  # tokens that one BoundStep is prepared for


class Model(OpenedModel):
    """The decoder of an opened file: tokens in, hidden states and logits out. `OpenedModel` has the
    arguments.
    """

    def forward(
        self,
        tokens: Sequence[list[int]],
        caches: Sequence[Cache],
        kernels: RowKernels | None = None,
        outputs: int = 1,
    ) -> list[np.ndarray]:
        """Hidden states (tokens, width), float32, of each sequence after the last layer. The caches grow.

        Without `kernels`, the number of all tokens decides which kernels they meet. `outputs`: how many of
        the states will go through the output together.
        """
        rows = rows_of(tokens, caches)
        angles = self._begin(rows, outputs)
        ids = [token for sequence in tokens for token in sequence]
        if self.on_device:
            before = self._before_device(ids, angles, rows)
            for state in self.on_device.run_layers(ids, angles, rows, *before):
                x = state  # only the last: each takes memory of the device
        else:
            x = self._forward_on_host(ids, angles, rows, kernels)
        for part, sequence in zip(rows, tokens, strict=True):
            part.cache.extend(sequence)
        return [part.of(x) for part in rows]

    def _before_device(
        self, ids: list[int], angles: list[Angles], rows: list[Rows]
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """What the layers on the device begin with, as `OnDevice.run_layers` takes it."""
        assert self.on_device
        if self.on_device.embeds:
            return None, self._input_rows(ids)
        x = self._embed(ids)
        inputs = self._inputs(self._ops_for(None), ids, x)
        return self._run_on_host(x, angles, rows, None, inputs, self.on_device.plan.first), inputs

    def _forward_on_host(
        self, ids: list[int], angles: list[Angles], rows: list[Rows], kernels: RowKernels | None
    ) -> np.ndarray:
        """The states after all layers."""
        x = self._embed(ids)
        return self._run_on_host(x, angles, rows, kernels, self._inputs(self._ops_for(kernels), ids, x))

    def _run_on_host(
        self,
        x: np.ndarray,
        angles: list[Angles],
        rows: list[Rows],
        kernels: RowKernels | None,
        inputs: np.ndarray | None,
        count: int | None = None,
    ) -> np.ndarray:
        """The states after the first `count` layers, which may be written to `x`; None: after all."""
        fused, ops = self._is_fused(rows, kernels), self._ops_for(kernels)
        for part in self.residency.layer_parts():
            some = slice(part.start, part.stop if count is None else min(part.stop, count))
            if fused:
                self.fused.run(x, angles, rows, some, inputs)
            else:
                x = decoder_layers(ops, x, self.layers[some], angles, rows, inputs)
        return x

    def _is_fused(self, rows: Sequence[Rows], kernels: RowKernels | None) -> bool:
        """Whether native calls run the layers: for few rows, or any number that meets the same kernels."""
        few = kernels.few if kernels else self.fused.supports(rows)
        return few and not self.fused.why_not and not self.shard

    def run(
        self,
        batch: Sequence[list[int]],
        caches: Sequence[Cache],
        all_positions: bool = False,
        on_progress: OnProgress | None = None,
        prompts: Sequence[int] | None = None,
    ) -> list[np.ndarray]:
        """Logits after the tokens of each sequence, float32: (vocabulary), or (tokens, vocabulary) if
        `all_positions`. The caches grow by the tokens.

        The logits of a sequence do not depend on the others (`row_kernels.py`), nor on how a prompt is cut
        into several calls, if `prompts` has the lengths of the whole prompts: the tokens of all its calls.

        Long prompts are cut into rounds, which all sequences share. `on_progress(done, total)` is called
        before each round.
        """
        wholes = prompts if prompts is not None else [0] * len(batch)
        return self.with_fallback(
            caches, lambda: self._run(batch, caches, all_positions, on_progress, wholes)
        )

    def _run(
        self,
        batch: Sequence[list[int]],
        caches: Sequence[Cache],
        all_positions: bool,
        on_progress: OnProgress | None,
        wholes: Sequence[int],
    ) -> list[np.ndarray]:
        pending = [self.pending(*each) for each in zip(batch, caches, wholes, strict=True)]
        lengths = [max(len(p), len(b), whole) for p, b, whole in zip(pending, batch, wholes, strict=True)]
        alike: dict[RowKernels | None, list[int]] = {}
        for i, length in enumerate(lengths):
            alike.setdefault(self.kernels_of(length), []).append(i)
        before = [0] * len(batch)
        if self.config.recurrent and not all_positions:
            before = list(map(tokens_before_mark, pending, caches, wholes))
        results: dict[int, np.ndarray] = {}
        progress = Progress(on_progress, pending)
        for kernels, some in alike.items():
            some_of = [pending[i] for i in some], [caches[i] for i in some], [before[i] for i in some]
            found = self._run_to_marks(*some_of, all_positions, progress, kernels)
            results |= zip(some, found, strict=True)
        return [results[i][-len(batch[i]) :] if all_positions else results[i] for i in range(len(batch))]

    def _run_to_marks(
        self,
        pending: Sequence[list[int]],
        caches: Sequence[Cache],
        before: Sequence[int],
        all_positions: bool,
        progress: Progress,
        kernels: RowKernels | None,
    ) -> list[np.ndarray]:
        """`_run_alike`, and mark the state after the first `before` tokens of each sequence, if not 0."""
        first = {i: pending[i][:count] for i, count in enumerate(before) if count}
        rest = {i: tokens[before[i] :] for i, tokens in enumerate(pending) if first.get(i) != tokens}

        def run(part: dict[int, list[int]]) -> dict[int, np.ndarray]:
            if not part:
                return {}
            its = [*part.values()], [caches[i] for i in part]
            return dict(zip(part, self._run_alike(*its, all_positions, progress, kernels), strict=True))

        results = run(first)
        for i in first:
            caches[i].mark()
        results |= run(rest)
        return [results[i] for i in range(len(pending))]

    def _run_alike(
        self,
        pending: Sequence[list[int]],
        caches: Sequence[Cache],
        all_positions: bool,
        progress: Progress,
        kernels: RowKernels | None,
    ) -> list[np.ndarray]:
        """`run` for sequences that meet the same kernels."""
        longest = max(map(len, pending))
        rounds = -(-longest // max(self.residency.chunk // len(pending), 1))
        if not all_positions and (kernels.few if kernels else rounds == 1):
            return self.decode(pending, caches)
        most = self._most_rows(kernels)
        each = min(-(-longest // (max(rounds, 1) * CHUNK)) * CHUNK or 1, most)
        hidden: list[list[np.ndarray]] = [[] for _ in pending]
        for going, parts, _ in passes(pending, each, most):
            progress.begin(parts)
            states = self.forward(parts, [caches[i] for i in going], kernels)
            for i, state in zip(going, states, strict=True):
                hidden[i] = [*hidden[i], state] if all_positions else [state[-1:]]
        every = np.concatenate([state for states in hidden for state in states])
        if not all_positions:
            return list(self.logits(every))
        return np.split(self.logits(every, kernels), np.cumsum([len(tokens) for tokens in pending])[:-1])

    def _most_rows(self, kernels: RowKernels | None) -> int:
        """The most rows of a pass.

        A native call takes few rows. A pass of as many needs the smallest buffers, but each pass reads the
        weights that do not stay.
        """
        few = self.fused.most_rows if self.residency.whole and kernels and kernels.few else 0
        return few or self.residency.chunk

    def layer_by_layer(self, token: int, cache: Cache) -> Generator[np.ndarray]:
        """Yield the hidden state (1, width), float32, of a sequence's next token after each layer.

        Each layer runs when its state is requested. The cache does not grow. On a device, the states are
        there.
        """
        rows = rows_of([[token]], [cache])
        angles = self._begin(rows)
        if self.on_device:
            before = self._before_device([token], angles, rows)
            yield from self.on_device.run_layers([token], angles, rows, *before)
            return
        x = self._embed([token])
        fused, ops = self._is_fused(rows, None), self._ops_for(self.kernels_of(1))
        inputs = self._inputs(ops, [token], x)
        for some in self.residency.layer_parts():
            for at in range(some.start, some.stop):
                if fused:
                    self.fused.run(x, angles, rows, slice(at, at + 1), inputs)
                else:
                    x = decoder_layers(ops, x, self.layers[at : at + 1], angles, rows, inputs)
                yield x

    def decode(self, tokens: Sequence[list[int]], caches: Sequence[Cache]) -> list[np.ndarray]:
        """Logits (vocabulary), float32, after each sequence's tokens, by the kernels for few rows. The caches
        grow.

        Runs as native calls, from tokens to logits, if the backend has one and all weights are resident. Each
        takes as many rows as it can.
        """
        return self.with_fallback(caches, lambda: self._decode(tokens, caches))

    def _decode(self, tokens: Sequence[list[int]], caches: Sequence[Cache]) -> list[np.ndarray]:
        if len(tokens) == 1 and len(tokens[0]) == 1:
            logits = self._next(tokens[0][0], caches[0])
            if logits is not None:
                return [logits]
        most = self._most_rows(self.kernels_of(1))
        results: dict[int, np.ndarray] = {}
        for going, parts, last in passes(tokens, most, most):
            found = self._step(parts, [caches[i] for i in going], any(last))
            results |= zip(going, found, strict=True)
        return [results[i] for i in range(len(tokens))]

    def _step(
        self, tokens: Sequence[list[int]], caches: Sequence[Cache], wanted: bool
    ) -> Sequence[np.ndarray]:
        """Logits (vocabulary) after each sequence's tokens; anything else if they are not `wanted`."""
        rows = rows_of(tokens, caches)
        native = self.residency.whole and self.step.supports(rows)
        if not native or not (wanted or self.shard):
            states = self.forward(tokens, caches, self.kernels_of(1), len(tokens) if wanted else 1)
            return list(self.logits(np.concatenate([state[-1:] for state in states]))) if wanted else states
        return list(self._run_step(tokens, rows))

    def verify(self, tokens: list[int], cache: Cache) -> np.ndarray:
        """Logits (tokens, vocabulary), float32, after each of a sequence's next tokens. The cache grows.

        For at most one token more than `most_drafted`, they have the bits that a pass for each token gives.
        """
        return self.with_fallback([cache], lambda: self._verify(tokens, cache))

    def _verify(self, tokens: list[int], cache: Cache) -> np.ndarray:
        rows = rows_of([tokens], [cache])
        if self.residency.whole and self.step.supports(rows):
            return self._run_step([tokens], rows, all_rows=True)
        (hidden,) = self.forward([tokens], [cache], self.kernels_of(1), len(tokens))
        return self.logits(hidden)

    @property
    def is_batch_invariant(self) -> bool:
        """Whether the backend computes each of a few rows with the bits that it has alone."""
        return self.ops.extension("batch_invariant_rows") is not None

    def most_drafted(self, cache: Cache) -> int:
        """The most tokens that `verify` can take after the next one without changing what it computes of it:
        the cache has room for them and can go back, and the angles of no position change.
        """
        if self.rotations.is_long(cache.length + 1) != cache.long or cache.layout.recurrent:
            return 0
        end = self.rotations.same_until(cache.capacity, cache.long)
        rows = self.ops.extension("batch_invariant_rows") or self.residency.outputs
        return max(min(end - cache.length, rows, self.residency.outputs) - 1, 0)

    def _run_step(self, tokens: Sequence[list[int]], rows: list[Rows], all_rows: bool = False) -> np.ndarray:
        """One native call: logits after each sequence's last token, or after each token."""
        angles = self._begin(rows, rows[-1].stop if all_rows else 1)
        ids = [token for sequence in tokens for token in sequence]
        reduce = self.shard.processes.all_reduce if self.shard else None
        logits = self.step.run(ids, angles, rows, reduce, all_rows, self._inputs_of(ids))
        for part, sequence in zip(rows, tokens, strict=True):
            part.cache.extend(sequence)
        return self.shard.gather_logits(logits) if self.shard else logits

    def _next(self, token: int, cache: Cache) -> np.ndarray | None:
        """Logits (vocabulary) after a sequence's next token; None if neither a native call nor a device
        computes them alone.
        """
        if self.on_device:
            return self._next_on_device(token, cache) if self.on_device.embeds else None
        bound = self._bound.get(cache)
        logits = bound.run(token, cache) if bound else None
        if logits is None and (bound := self.bind(cache)):
            self._bound[cache] = bound
            logits = bound.run(token, cache)
        return logits

    def _next_on_device(self, token: int, cache: Cache) -> np.ndarray:
        assert self.on_device
        rows = rows_of([[token]], [cache])
        angles = self._begin(rows)
        logits = self.on_device.step(token, angles, rows, self._input_rows([token]))
        cache.extend([token])
        return self._scaled(logits)[0]

    def bind(self, cache: Cache) -> BoundStep | None:
        """A `BoundStep` for the next tokens of a sequence; None if a native call cannot run them, or if its
        tables have no position left.
        """
        if self.shard or not (self.residency.whole and self.step.supports([Rows(0, 1, cache)])):
            return None
        cache.prepare(1)
        self.residency.begin([(cache, 1)])
        tables = self.rotations.tables(min(cache.capacity, cache.length + _BOUND), cache.long)
        inputs_of = self._inputs_of if self._layer_inputs else None
        return self.step.bind(cache, tables, inputs_of) if cache.length < len(tables[0][0]) else None

    def _begin(self, rows: list[Rows], outputs: int = 1) -> list[Angles]:
        """Begin a pass; returns the rows' angles for each rotation of the model."""
        self.residency.begin([(part.cache, part.stop - part.start) for part in rows], outputs)
        return [angles_of(rotation, rows) for rotation in self.rotations]

    def pending(self, tokens: list[int], cache: Cache, whole: int = 0) -> list[int]:
        """The tokens that must go through the layers. Usually these are `tokens`. If they make the text so
        long that all positions get other angles (Phi-3), the cache is emptied and all tokens are returned.
        `whole`: the length of the prompt that they are a piece of.
        """
        cache.room_for(len(tokens))
        long = self.rotations.is_long(max(cache.length + len(tokens), whole))
        if long != cache.long:
            tokens = [*cache.tokens, *tokens]
            cache.truncate(0)
            cache.long = long
        return tokens

    def states(self, tokens: list[int], cache: Cache) -> np.ndarray:
        """States (tokens, width), float32, after the last norm: what the output would multiply. The cache
        grows.
        """
        return self.with_fallback(
            [cache], lambda: np.concatenate([np.asarray(each) for each in self.state_parts(tokens, cache)])
        )

    def state_parts(self, tokens: list[int], cache: Cache) -> Iterator[Any]:
        """Yield the states of a text's tokens, some tokens (rows, width) after the other. They are on the
        device if the model is. Raises DeviceFault.
        """
        tokens = self.pending(tokens, cache)
        kernels, most = self.kernels_of(len(tokens)), self.residency.chunk
        for start in range(0, len(tokens), most):
            (hidden,) = self.forward([tokens[start : start + most]], [cache], kernels)
            if isinstance(hidden, np.ndarray):
                yield normalize(self.host_ops, hidden, self.output_norm, self.config)
            else:
                assert self.on_device
                with self.on_device.faults():
                    found = self.on_device.normalized(hidden)
                yield found

    def logits(self, hidden: np.ndarray, kernels: RowKernels | None = None) -> np.ndarray:
        """Logits (rows, vocabulary), float32, of hidden states (rows, width). Without `kernels`, by those for
        few rows.
        """
        c = self.config
        if isinstance(hidden, np.ndarray):
            ops = self._ops_for(kernels or self.kernels_of(1))
            logits = self._output_of(ops, normalize(ops, hidden, self.output_norm, c))
        else:
            assert self.on_device
            logits = self.on_device.logits(hidden)
        logits = self._scaled(logits)
        return self.shard.gather_logits(logits) if self.shard else logits

    def _scaled(self, logits: np.ndarray) -> np.ndarray:
        """What the output makes, capped and scaled as the model's logits are."""
        c = self.config
        if c.logit_softcap:
            logits = np.tanh(logits / c.logit_softcap, out=logits) * np.float32(c.logit_softcap)
        if c.logit_scale != 1:
            logits *= np.float32(c.logit_scale)
        return logits

    def _output_of(self, ops: Any, normed: np.ndarray) -> np.ndarray:
        if self.residency.whole:
            return ops.linear(normed, self.output)
        logits = np.empty((len(normed), 0), np.float32)
        for part in self.residency.output_parts():
            if part == slice(0, len(self.output)):
                return ops.linear(normed, self.output)
            if part.start == 0:
                logits = np.empty((len(normed), len(self.output)), np.float32)
            logits[:, part] = ops.linear(normed, self.output[part])
        return ops.adapt(logits, normed, self.output) if self._pairs else logits

    def _embed(self, tokens: list[int]) -> np.ndarray:
        x = self._rows_of(self.embedding, tokens)
        return x if self.config.embedding_scale == 1 else x * np.float32(self.config.embedding_scale)

    def _rows_of(self, table: Stored, tokens: list[int]) -> np.ndarray:
        """The rows (tokens, columns), float32, of a table for the vocabulary, in host memory."""
        ids = np.array(tokens, np.int64)
        found = np.empty((len(ids), table.shape[1]), np.float32)
        for start, stop in self.residency.embedding_parts(len(ids)):
            found[start:stop] = self._look_up(ids[start:stop], table)
        return found

    def _look_up(self, ids: np.ndarray, table: Stored) -> np.ndarray:
        if self.on_device and self.on_device.embeds:  # its ops would upload the whole table
            rows = table[ids]
            return rows.dequantize() if isinstance(rows, Quantized) else rows
        return self.host_ops.embedding(ids, table)

    def _input_rows(self, tokens: list[int]) -> np.ndarray | None:
        """What a table adds to the inputs of all layers, if they have any."""
        if not (of := self._layer_inputs):
            return None
        return of.weigh(self._rows_of(of.table, tokens))

    def _inputs(self, ops: Any, tokens: list[int], x: np.ndarray) -> np.ndarray | None:
        """What each layer gets beside the hidden state, if the model has that: see `LayerInputs.of`."""
        if not self._layer_inputs:
            return None
        return self._layer_inputs.of(ops, self._input_rows(tokens), x)

    def _inputs_of(self, tokens: list[int]) -> np.ndarray | None:
        """`_inputs` for a native call, which embeds the tokens itself."""
        if not self._layer_inputs:
            return None
        return self._inputs(self._ops_for(self.kernels_of(1)), tokens, self._embed(tokens))

    def with_fallback(self, caches: Sequence[Cache], call: Callable[[], T]) -> T:
        """The result of a call that computes next tokens of these sequences, also if the device fails."""
        return go_on(self, caches, call) if self.on_device and self._fallbacks else call()
