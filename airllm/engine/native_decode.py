"""Whole decoder layers as one call, where a backend's module has one and the rows are few: decode.

`decoder.decoder_layer` is the definition. A call of `FusedLayers.run` gives the same, with threads that stay
together over all layers in place of one start of them for each op. `FusedStep.run` goes from tokens to
logits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.engine.decoder import Angles, Rows
from airllm.files.weight_file import Stored
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer

# Each call reads all weights. Op by op they are unpacked once, which costs as much as some calls: on Zen 4 as
# three (AVX-512) to four (AVX2) of 16 rows, with a model of 135M in q4_0 and one of 1B in q4_k.
_MOST_CALLS = 3


class FusedLayers:
    """The layers of a model as a backend's module has prepared them; `why_not` says why there are none.

    `whole`: all weights stay in memory. Of layers that do not, it must be known which experts are used.
    """

    def __init__(self, ops: Any, layers: Sequence[Layer], whole: bool = True):
        self.prepared: tuple[Any, ...] = ()
        self._run = ops.extension("decoder_layers")
        self.why_not = why_op_by_op(ops, layers[0].config)
        if not whole and any(layer.experts for layer in layers):
            self.why_not = self.why_not or "experts come and go within a budget of memory"
        if self.why_not:
            return
        self.most_rows = ops.extension("decoder_rows")
        try:
            self.prepared = tuple(prepare_layer(ops, "DecoderLayer", layer) for layer in layers)
        except NotImplementedError as error:
            self.why_not = str(error)

    def supports(self, rows: Sequence[Rows]) -> bool:
        """Whether the layers are run by one call for these rows."""
        return not self.why_not and rows[-1].stop <= self.most_rows

    def run(
        self, x: np.ndarray, angles: Sequence[Angles], rows: Sequence[Rows], only: slice = slice(None)
    ) -> None:
        """`x` (rows, width), float32, goes through all layers, or those of `only`, in place; the rows' keys
        and values are put into their caches.
        """
        self._run(self.prepared[only], x, *_arguments(angles, rows))


class FusedStep:
    """All of a model as a backend's module has planned it; `why_not` says why it has not.

    `embedding` and `output` are stored (vocabulary, width), of which `output` may be a part.
    """

    def __init__(
        self,
        ops: Any,
        layers: FusedLayers,
        config: ModelConfig,
        embedding: Stored,
        output_norm: np.ndarray,
        output: Stored,
    ):
        self._layers, self._plan = layers, None
        plan, self._run = ops.extension("DecoderPlan"), ops.extension("decode_step")
        self.why_not = layers.why_not
        if self.why_not or plan is None:
            self.why_not = self.why_not or "the backend has no call for a whole step"
            return
        try:
            self._plan = plan(layers.prepared, embedding, output_norm, output, **end_arguments(ops, config))
        except NotImplementedError as error:
            self.why_not = str(error)

    def supports(self, rows: Sequence[Rows]) -> bool:
        """Whether one call goes from the tokens of these rows to logits."""
        return not self.why_not and self._layers.supports(rows)

    def parts(self, rows: Sequence[Rows]) -> list[slice]:
        """The sequences of each call, where one has too many rows, of a token each; none where op by op is
        faster, or one call does.
        """
        several = not self.why_not and 1 < rows[-1].stop == len(rows) <= _MOST_CALLS * self._layers.most_rows
        each = self._layers.most_rows if several else 1
        return [slice(start, start + each) for start in range(0, len(rows), each)] if several else []

    def run(
        self,
        tokens: list[int],
        angles: Sequence[Angles],
        rows: Sequence[Rows],
        reduce: Callable[[np.ndarray], None] | None = None,
    ) -> np.ndarray:
        """Logits (sequences, vocabulary), float32, after each sequence's last row; keys and values are put
        into the caches. `reduce` adds up, in place, what processes that share the layers have found.
        """
        return self._run(self._plan, tokens, *_arguments(angles, rows), reduce)

    def bind(self, cache: Cache, tables: Sequence[tuple[np.ndarray, np.ndarray]]) -> BoundStep:
        """For the tokens of one sequence, as many as the tables of cosines and sines have positions."""
        return BoundStep(self._run, self._plan, cache, tables)


class BoundStep:
    """Steps of one sequence, a token each: what stays the same from token to token is looked up once.

    Between two steps the weights have gone through the CPU's caches, so that any Python there runs ten times
    slower than when it is measured alone: each line of it costs microseconds.
    """

    def __init__(self, run: Any, plan: Any, cache: Cache, tables: Sequence[tuple[np.ndarray, np.ndarray]]):
        self._run, self._plan, self._data, self._long = run, plan, cache.data, cache.long
        self._from, self._until = cache.length, min(len(cos) for cos, _ in tables)
        self._angles = [
            tuple((cos[at : at + 1, None], sin[at : at + 1, None]) for cos, sin in tables)
            for at in range(self._from, self._until)
        ]

    def run(self, token: int, cache: Cache) -> np.ndarray | None:
        """Logits (vocabulary), float32, after `token`; the cache, which it is bound to, grows by it. None
        where it is not made ready for the next token of the sequence.
        """
        at = len(cache.tokens)
        if not self._from <= at < self._until or cache.long != self._long:
            return None
        logits = self._run(self._plan, token, self._angles[at - self._from], ((0, 1, self._data, at),))
        cache.extend([token])
        return logits


def _arguments(angles: Sequence[Angles], rows: Sequence[Rows]) -> tuple[list[Any], list[Any]]:
    parts = [(part.start, part.stop, part.cache.data, part.cache.length) for part in rows]
    return [(each.cos, each.sin) for each in angles], parts


def why_op_by_op(ops: Any, config: ModelConfig) -> str:
    """Why the layers of a model are not one call on these ops; "" if they are."""
    if ops.extension("decoder_layers") is None:
        return f"{ops} has no call for whole layers"
    return why_not_native(ops, config, "layers")


def why_not_native(ops: Any, config: ModelConfig, part: str) -> str:
    """Which traits of a model's "layers" or "ends" the backend's native ones do not know, or do not compute
    together; "" if they compute all. A model that has others runs op by op.
    """
    traits = config.traits(part)
    if unknown := sorted(traits - ops.extension("decoder_traits")[part]):
        return f"native {part} of {ops.name()} do not know {', '.join(unknown)}"
    why = _refusal(ops, traits) if part == "layers" else ""
    return f"native layers of {ops.name()}: {why}" if why else ""


def _refusal(ops: Any, traits: frozenset[str]) -> str:
    """Why native layers do not compute these traits together, each of which they know; "" if they do."""
    for trait, companion, missing, why in ops.extension("decoder_refusals"):
        if {trait, companion or trait} <= traits and missing not in traits:
            return why
    return ""


def prepare_layer(ops: Any, kind: str, layer: Layer) -> Any:
    """A layer as the class `kind` of the backend's module has it. Raises NotImplementedError where that lacks
    a part.
    """
    c = layer.config
    rope = c.rope_of(layer.index)
    return ops.extension(kind)(
        layer.weights,
        heads=c.heads,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        norm_eps=c.norm_eps,
        attention_scale=c.attention_scale,
        interleaved=c.rope.interleaved,
        index=layer.index,
        rotation=int(rope is c.local_rope) if rope else -1,
        **_native_arguments(ops, c, "layers", layer.index),
        **({"experts": _experts(layer)} if layer.experts else {}),
    )


def end_arguments(ops: Any, config: ModelConfig) -> dict[str, Any]:
    """What a native step is told of a model before its first layer and after its last."""
    return {"norm_eps": config.norm_eps, **_native_arguments(ops, config, "ends")}


# What a native layer, or step, that knows a trait is told of it, as the argument of the same name (of a
# tuple its item for the layer). Other traits it sees by weights or angles.
_ARGUMENTS: dict[str, Callable[[ModelConfig, int], Any]] = {
    "activation": lambda c, layer: c.activation,
    "attention_softcap": lambda c, layer: c.attention_softcap,
    "experts_used": lambda c, layer: c.experts_used,
    "normalize_experts": lambda c, layer: c.normalize_experts,
    "pre_norms": lambda c, layer: c.pre_norms,
    "qk_norm": lambda c, layer: c.qk_norm,
    "query_temperature": lambda c, layer: c.query_temperature and dataclasses.astuple(c.query_temperature),
    "residual_scale": lambda c, layer: c.residual_scale,
    "windows": lambda c, layer: c.window(layer),
    "embedding_scale": lambda c, layer: c.embedding_scale,
    "logit_scale": lambda c, layer: c.logit_scale,
    "logit_softcap": lambda c, layer: c.logit_softcap,
}


def _native_arguments(ops: Any, config: ModelConfig, part: str, layer: int = 0) -> dict[str, Any]:
    """The values of the traits that the native part knows. NotImplementedError if the model has others."""
    if why_not := why_not_native(ops, config, part):
        raise NotImplementedError(why_not)
    known = {trait.partition("=")[0] for trait in ops.extension("decoder_traits")[part]}
    return {name: value(config, layer) for name, value in _ARGUMENTS.items() if name in known}


def _experts(layer: Layer) -> list[tuple[Stored, Stored, Stored]]:
    """Gate, up and down of each."""
    assert layer.experts
    each = map(layer.experts.look_up, range(layer.config.experts))
    return [(weights["gate"], weights["up"], weights["down"]) for weights in each]
