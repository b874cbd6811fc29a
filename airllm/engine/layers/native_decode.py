"""Decode by native calls: all decoder layers, or a whole step, in one call of the backend, for few rows.

`decoder.decoder_layer` is the definition. `FusedLayers.run` computes the same; its threads stay together over
all layers, instead of one start for each op. `FusedStep.run` goes from tokens to logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.architectures.layer_spec import Attention, Latent
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.recurrent import DeltaRule, Recurrent
from airllm.engine.layers.rows import Angles, Rows
from airllm.files.weight_file import Stored
from airllm.formats import Quantized
from airllm.memory.cache_layout import CacheLayout, divide, places
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer

InputsOf = Callable[[list[int]], np.ndarray | None]  # what `LayerInputs.of` finds for tokens


class FusedLayers:
    """A model's layers, prepared by the backend's module. `why_not` is the reason if there are none, else "";
    the caller may have one.

    `whole`: all weights stay in memory. Otherwise experts must be reported as they are used, which a native
    call does not do.
    """

    def __init__(self, ops: Any, layers: Sequence[Layer], whole: bool = True, why_not: str = ""):
        self.prepared: tuple[Any, ...] = ()
        self.most_rows = 0
        self._run = ops.extension("decoder_layers")
        self.why_not = why_not or why_op_by_op(ops, layers[0].config)
        if not whole and any(layer.experts for layer in layers):
            self.why_not = self.why_not or "experts are loaded and released within a memory budget"
        if self.why_not:
            return
        self.most_rows = ops.extension("decoder_rows")
        try:
            self.prepared = prepare_layers(ops, "DecoderLayer", layers)
        except NotImplementedError as error:
            self.why_not = str(error)

    def supports(self, rows: Sequence[Rows]) -> bool:
        """Whether one call can run the layers for these rows."""
        return not self.why_not and rows[-1].stop <= self.most_rows

    def run(
        self,
        x: np.ndarray,
        angles: Sequence[Angles],
        rows: Sequence[Rows],
        only: slice = slice(None),
        inputs: np.ndarray | None = None,
    ) -> None:
        """Run all layers, or those of `only`, on `x` (rows, width), float32, in place. The rows' keys and
        values are appended to their caches. Many rows take several calls. `inputs` (all layers, rows,
        layer_input), float32, are those of layers that have one of their own.
        """
        for start in range(0, len(x), self.most_rows):
            some = slice(start, min(start + self.most_rows, len(x)))
            own = None if inputs is None else np.ascontiguousarray(inputs[only, some])
            self._run(self.prepared[only], x[some], *_arguments(angles, rows, some), own)


class FusedStep:
    """A whole model, prepared by the backend's module. `why_not` is the reason if it is not, else "".

    `embedding` and `output` are stored (vocabulary, width) matrices; `output` may be a part of its rows.
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
            of_ends = end_arguments(ops, config)
            self._plan = plan(layers.prepared, embedding, output_norm.reshape(-1), output, **of_ends)
        except NotImplementedError as error:
            self.why_not = str(error)

    def supports(self, rows: Sequence[Rows]) -> bool:
        """Whether one call can go from the tokens of these rows to logits."""
        return not self.why_not and self._layers.supports(rows)

    def run(
        self,
        tokens: list[int],
        angles: Sequence[Angles],
        rows: Sequence[Rows],
        reduce: Callable[[np.ndarray], None] | None = None,
        all_rows: bool = False,
        inputs: np.ndarray | None = None,
    ) -> np.ndarray:
        """Logits (sequences, vocabulary), float32, after each sequence's last row, or (rows, vocabulary) if
        `all_rows`. Keys and values are appended to the caches. `reduce` sums an array over the processes that
        share the layers, in place. `inputs` (layers, rows, layer_input), float32: those of the layers.
        """
        return self._run(self._plan, tokens, *_arguments(angles, rows), reduce, all_rows, inputs)

    def bind(
        self, cache: Cache, tables: Sequence[tuple[np.ndarray, np.ndarray]], inputs_of: InputsOf | None = None
    ) -> BoundStep:
        """A `BoundStep` for one sequence, for as many positions as the tables of cosines and sines have.
        `inputs_of` computes the inputs of the layers for a token, if the model has them.
        """
        return BoundStep(self._run, self._plan, cache, tables, inputs_of)


class BoundStep:
    """Decode steps of one sequence, one token each. What does not change between tokens is computed once.

    A step streams the weights through the CPU caches. Python code that runs after it is therefore ten times
    slower than in a benchmark of its own: each line costs microseconds.
    """

    def __init__(
        self,
        run: Any,
        plan: Any,
        cache: Cache,
        tables: Sequence[tuple[np.ndarray, np.ndarray]],
        inputs_of: InputsOf | None = None,
    ):
        self._run, self._plan, self._data, self._long = run, plan, cache.native, cache.long
        self._inputs_of, self._recurrent = inputs_of, bool(cache.layout.recurrent)
        self._from, self._dropped = cache.length, cache.dropped
        self._until = min(cache.until, *(len(cos) for cos, _ in tables))
        self._angles = [
            tuple((cos[at : at + 1, None], sin[at : at + 1, None]) for cos, sin in tables)
            for at in range(self._from, self._until)
        ]

    def run(self, token: int, cache: Cache) -> np.ndarray | None:
        """Logits (vocabulary), float32, after `token`. `cache` must be the one that the step is bound to; it
        grows by the token. None if the step was not prepared for the next position.
        """
        at = len(cache.tokens)
        if not self._from <= at < self._until or (cache.dropped, cache.long) != (self._dropped, self._long):
            return None
        rows: tuple[Any, ...] = (0, 1, self._data, at)
        if self._recurrent:
            rows = (*rows, cache.native_states)
        where = self._angles[at - self._from], (rows,)
        if self._inputs_of:
            logits = self._run(self._plan, token, *where, inputs=self._inputs_of([token]))
        else:
            logits = self._run(self._plan, token, *where)
        cache.extend([token])
        return logits


def _arguments(
    angles: Sequence[Angles], rows: Sequence[Rows], some: slice = slice(None)
) -> tuple[list[Any], list[Any]]:
    """The angles of `some` rows, and for each sequence among them its rows in the call, its cache, and how
    many tokens come before.
    """
    first, stop, _ = some.indices(rows[-1].stop)
    parts = []
    for part in rows:
        begin, end = max(part.start, first), min(part.stop, stop)
        if begin < end:
            before = part.cache.length + begin - part.start
            own = (begin - first, end - first, part.cache.native, before)
            parts.append(own if (states := _states_of(part, begin)) is None else (*own, states))
    return [(each.cos[some], each.sin[some]) for each in angles], parts


def _states_of(part: Rows, begin: int) -> tuple[np.ndarray, int, int] | None:
    """The recurrent states of rows from `begin` on, if the model has any: a pass that takes several calls
    goes on from what the last one wrote.
    """
    states = part.cache.native_states
    if states is None or begin == part.start:
        return states
    array, _, following = states
    return array, following, following


def why_op_by_op(ops: Any, config: ModelConfig) -> str:
    """Why these ops do not run the layers in one native call; "" if they do."""
    if ops.extension("decoder_layers") is None:
        return f"{ops} has no call for whole layers"
    return why_not_native(ops, config, "layers")


def why_not_native(ops: Any, config: ModelConfig, part: str) -> str:
    """Why the backend's native "layers" or "ends" do not compute this model: the traits that they do not
    support, alone or together. "" if they compute all. A model with other traits runs op by op.
    """
    traits = config.traits(part)
    if unknown := sorted(traits - ops.extension("decoder_traits")[part]):
        return f"native {part} of {ops.name()} do not support {', '.join(unknown)}"
    why = _refusal(ops, traits) if part == "layers" else ""
    return f"native layers of {ops.name()}: {why}" if why else ""


def _refusal(ops: Any, traits: frozenset[str]) -> str:
    """Why native layers do not support this combination of supported traits; "" if they do."""
    for trait, companion, missing, why in ops.extension("decoder_refusals"):
        if {trait, companion or trait} <= traits and missing not in traits:
            return why
    return ""


def prepare_layers(ops: Any, kind: str, layers: Sequence[Layer]) -> tuple[Any, ...]:
    """Layers as objects of the class `kind` of the backend's module. Raises NotImplementedError if that class
    does not support one of them.
    """
    config = layers[0].config
    at, states = places(divide(config)), CacheLayout(config, 1, "f32").state_places
    return tuple(_prepare(ops, kind, layer, at, states) for layer in layers)


def _prepare(
    ops: Any, kind: str, layer: Layer, at: Mapping[int, tuple[int, int]], states: Mapping[int, int]
) -> Any:
    """One of these layers. `at`: the part of a cache, and the place in it, of each layer with its own;
    `states`: the place of each layer with a recurrent state.
    """
    c = layer.config
    if isinstance(layer.spec.mixer, Recurrent):
        return _prepare_recurrent(ops, kind, layer, layer.spec.mixer, states[layer.index])
    if isinstance(layer.spec.mixer, Latent):
        return _prepare_latent(ops, kind, layer, layer.spec.mixer, at[layer.index])
    a = layer.spec.attention
    if a.value_dim != a.key_dim:
        widths = f"values of {a.value_dim} beside keys of {a.key_dim} in a head"
        raise NotImplementedError(f"native layers do not support {widths}")
    part, place = at[a.source]
    return ops.extension(kind)(
        _flat(layer.weights) | _expert_biases(layer),
        heads=a.heads,
        kv_heads=a.kv_heads,
        head_dim=a.key_dim,
        norm_eps=c.norm_eps,
        attention_scale=c.attention_scale,
        interleaved=c.rope.interleaved,
        part=part,
        place=place,
        shares=a.source != layer.index,
        keys_as_values=a.keys_as_values,
        rotation=int(a.rope is c.local_rope) if a.rope else -1,
        **_native_arguments(ops, c, "layers", layer.index),
        **({"experts": _experts(layer)} if layer.experts else {}),
    )


def _prepare_recurrent(ops: Any, kind: str, layer: Layer, a: Recurrent, at: int) -> Any:
    """A layer with a recurrent state, which begins `at` floats after that of the first."""
    c, weights = layer.config, dict(layer.weights)
    own = next(iter(a.weights(c.width))).partition(".")[0]  # what the names of its weights begin with
    for name in layer.weights:
        whose, _, part = name.partition(".")
        if whose == own:
            weights[f"recurrent.{'in' if part == 'qkv' else part}"] = weights.pop(name)
    taps: Any = weights["recurrent.filter"]
    weights["recurrent.filter"] = np.ascontiguousarray(taps.T).reshape(-1)
    delta = {"key_heads": a.key_heads, "tiled": a.tiled} if isinstance(a, DeltaRule) else {}
    return ops.extension(kind)(
        _flat(weights) | _expert_biases(layer),
        heads=1,
        kv_heads=1,
        head_dim=1,
        norm_eps=c.norm_eps,
        attention_scale=1.0,
        state_at=at,
        **delta,
        **_native_arguments(ops, c, "layers", layer.index),
        **({"experts": _experts(layer)} if layer.experts else {}),
    )


def _prepare_latent(ops: Any, kind: str, layer: Layer, a: Latent, at: tuple[int, int]) -> Any:
    """A layer with latent attention; its weights say the other sizes."""
    c = layer.config
    return ops.extension(kind)(
        _flat(layer.weights) | _expert_biases(layer),
        heads=a.heads,
        kv_heads=1,
        head_dim=a.query_dim,
        norm_eps=c.norm_eps,
        attention_scale=c.attention_scale,
        interleaved=a.rope.interleaved,
        part=at[0],
        place=at[1],
        rotation=0,
        **_native_arguments(ops, c, "layers", layer.index),
        **({"experts": _experts(layer)} if layer.experts else {}),
    )


def _flat(weights: Mapping[str, Stored]) -> dict[str, Stored]:
    """The weights, those of norms with their biases after them, and those of each head as one matrix."""
    return {name: _flatten(name, each) for name, each in weights.items()}


def _flatten(name: str, weight: Stored) -> Stored:
    if name.endswith("norm") and isinstance(weight, np.ndarray):
        return np.reshape(weight, -1)
    if name not in ("attention.k_b", "attention.v_b"):
        return weight
    if isinstance(weight, Quantized):
        return Quantized(weight.data.reshape(-1, weight.data.shape[-1]), weight.format)
    return weight.reshape(-1, weight.shape[-1])


def end_arguments(ops: Any, config: ModelConfig) -> dict[str, Any]:
    """The arguments of a native step that concern the embedding, the output norm and the output. The norm is
    of the kind of the layers'; those that support only RMS norms do not ask for it.
    """
    kind = {"norm": config.norm, "norm_bias": config.norm_bias} if config.norm else {}
    return {"norm_eps": config.norm_eps, **kind, **_native_arguments(ops, config, "ends")}


# Trait -> the argument of that name for a native layer or step that supports it. For a tuple, it is the item
# of the layer. Native code reads all other traits from the weights or the angles.
_ARGUMENTS: dict[str, Callable[[ModelConfig, int], Any]] = {
    "activation": lambda c, layer: c.activation,
    "gated": lambda c, layer: c.gated,
    "late_qk_norm": lambda c, layer: c.late_qk_norm,
    "output_gate": lambda c, layer: c.output_gate,
    "norm": lambda c, layer: c.norm,
    "norm_bias": lambda c, layer: c.norm_bias,
    "parallel": lambda c, layer: c.parallel,
    "attention_softcap": lambda c, layer: c.attention_softcap,
    "experts_used": lambda c, layer: c.experts_used,
    "normalize_experts": lambda c, layer: c.normalize_experts,
    "pre_norms": lambda c, layer: c.pre_norms,
    "qk_norm": lambda c, layer: c.qk_norm,
    "query_temperature": lambda c, layer: _temperature(c, layer),
    "expert_scores": lambda c, layer: c.expert_scores,
    "expert_scale": lambda c, layer: c.expert_scale,
    "scales_input": lambda c, layer: c.scales_input,
    "expert_groups": lambda c, layer: c.expert_groups,
    "expert_groups_used": lambda c, layer: c.expert_groups_used,
    "expert_group_best": lambda c, layer: c.expert_group_best,
    "swiglu_alpha": lambda c, layer: c.swiglu_alpha,
    "swiglu_limit": lambda c, layer: c.swiglu_limit,
    "residual_scale": lambda c, layer: c.residual_scale,
    "windows": lambda c, layer: c.window(layer),
    "chunked": lambda c, layer: c.chunked,
    "embedding_scale": lambda c, layer: c.embedding_scale,
    "logit_scale": lambda c, layer: c.logit_scale,
    "logit_softcap": lambda c, layer: c.logit_softcap,
}


def _temperature(c: ModelConfig, layer: int) -> tuple[float, int, int] | None:
    """Scale, length and offset of the temperature of a layer that has one."""
    mixer = c.layer(layer).mixer
    of = mixer.temperature if isinstance(mixer, (Attention, Latent)) else None
    return (of.scale, of.length, of.offset) if of else None


def _native_arguments(ops: Any, config: ModelConfig, part: str, layer: int = 0) -> dict[str, Any]:
    """The arguments for the traits that the native part supports. NotImplementedError if it lacks one."""
    if why_not := why_not_native(ops, config, part):
        raise NotImplementedError(why_not)
    known = {trait.partition("=")[0] for trait in ops.extension("decoder_traits")[part]}
    return {name: value(config, layer) for name, value in _ARGUMENTS.items() if name in known}


def _experts(layer: Layer) -> list[tuple[Stored, Stored, Stored]]:
    """Gate, up and down of each expert. Raises NotImplementedError if they are stored by columns: only layers
    that stay in host memory are copied to rows.
    """
    assert layer.experts
    found = [(weights["gate"], weights["up"], weights["down"]) for _, weights in layer.experts.every()]
    for each in itertools.chain(*found):
        if isinstance(each, np.ndarray) and not each.flags.c_contiguous:
            raise NotImplementedError("experts are stored by columns, and some layers are on a device")
    return found


def _expert_biases(layer: Layer) -> dict[str, Stored]:
    """The biases of all experts, if they have any, by name."""
    if not (layer.experts and layer.config.expert_bias):
        return {}
    return {
        f"experts.{number}.{part}": bias
        for number, weights in layer.experts.every()
        for part, bias in weights.items()
        if part.endswith("_bias")
    }
