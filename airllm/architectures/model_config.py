"""The configuration of a model, read from a GGUF file's metadata or a folder's config.json.

The two have different names for the same things (`keys.py`); `ModelConfig` has one. It also describes how
stored weights differ: GGUF files of llama order the rows of q and k for rotating neighbouring pairs
(`rope.interleaved`), and Gemma's folders store norm weights minus one (`norm_offset`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airllm.architectures.layer_spec import (
    Attention,
    Encoding,
    FeedForward,
    Latent,
    LayerSizes,
    LayerSpec,
    QueryTemperature,
    Rope,
)
from airllm.architectures.recurrent import Recurrent

MIXER, FEED_FORWARD = "mixer", "feed_forward"  # the halves of a layer


def _trait_field(part: str, default: Any = dataclasses.MISSING) -> Any:
    """A field that describes a `part` of the model: see `ModelConfig.traits`."""
    metadata = {"of": part}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a decoder model. Sizes count values. Tuples have an item for each layer, or none.

    A field with a default is not needed for a plain Llama. With another value it is a *trait* of the model.
    Each field belongs to a part. "size": every model has it. "file": how weights are stored. "ends": before
    the first layer or after the last. All others belong to the layers.

    `sizes`: if they differ; `heads`, `kv_heads`, `head_dim` and `feed_forward` are then the largest.
    `kv_layers`: the layer whose keys and values each layer reads, if some share them. `recurrent`: the mixer
    of `recurrent_layers`, which have a state instead of keys and values; `beside`: both, and the results of
    attention and of that mixer are added. `halves`: what each layer is, only a MIXER or only a FEED_FORWARD,
    with one norm before it; () if it is both. `keys_as_values`: layers whose values are their keys, before
    norm and rotation. `layer(i)` puts together what layer i computes.

    `windows`: how many of the last keys a query attends to, None for all; `chunked`: those of its chunk,
    which is as wide. `local_rope`: the rotation of layers with a window, if it differs. `nope_layers`: layers
    without rotation. `rope_sections`: pairs that rotate by position in time, height and width, which are
    equal for text. `norm_offset`: added to stored norm weights. `fused`: q, k, v are one stored matrix, and
    so are gate and up. `pre_norms`, `post_norms`: norms before, after attention and feed-forward; `norm`: RMS
    norms, or "layer" norms; `norm_bias`: they add one. `parallel`: attention and feed-forward have the same
    input, and x gets the sum of both. `gated`: a feed-forward has a gate, and so have experts; `mlp_bias`:
    the matrices of a dense one have biases. `qk_norm`: norms of q and k, by "head" or whole "row", or by head
    without a weight in "rotated" layers; `late_qk_norm`: after their rotation. `value_norm`: of each head of
    v, without a weight. `layer_scale`: a weight scales a layer's result. `layer_input`: values of what each
    layer adds to a token by a second embedding and a projection. `residual_scale` multiplies what attention
    and feed-forward add; `logit_scale` the logits. `normalize_experts`: the weights of the chosen experts are
    scaled to sum to one. `dense_and_experts`: layers with experts also have a dense feed-forward. Both have
    norms of their own, and so has the router; each expert has a scale. `shared_expert`: the width of an
    expert that every token uses, weighted by its own gate if `shared_gate`; `shared_experts`: how many a file
    says it is made of. `expert_latent`: if not 0, the other experts get and make as many values, by a product
    before and after. `dense_layers`: the first layers, without experts; `moe_step`: of the others, every n-th
    has them. `expert_scores`: what makes scores of the router's logits, a softmax or "sigmoid". Experts are
    chosen by scores with a `selection_bias`, in the best `expert_groups_used` of `expert_groups`; a group is
    as good as the sum of its `expert_group_best` best experts. `expert_scale` multiplies the weights of the
    chosen; `scales_input`: these multiply the input of experts, not what they add. `experts_by_columns`: a
    column of a stored matrix of experts has the weights of an output, not a row. `kv_rank`: if not 0, all
    layers have latent attention (see `Latent`), with `q_rank` and heads whose values are `value_dim`;
    `joined_kv`: the products that make keys and values are one stored matrix. `sinks`: each head has an extra
    score in the softmax, without a value. `activation` "swiglu_clamped" is (up + 1) * gate *
    sigmoid(`swiglu_alpha` * gate). It clamps gate to at most `swiglu_limit`, and up to +-`swiglu_limit`.
    `output_gate`: what a head attended to is multiplied by the sigmoids of a second half of its query.
    `attended_scale` multiplies attention's result, `gate_scale` and `down_scale` those of a dense
    feed-forward's gate and last product. `encoding`: of a model that does not write. `fused_qkv`: q, k and v
    are one stored matrix, gate and up are not. `fused_up`: gate and up are, also of a shared expert, q, k and
    v are not.
    """

    architecture: str = _trait_field("size")
    layers: int = _trait_field("size")
    width: int = _trait_field("size")
    heads: int = _trait_field("size")
    kv_heads: int = _trait_field("size")
    head_dim: int = _trait_field("size")
    feed_forward: int = _trait_field("size")
    vocabulary: int = _trait_field("size")
    context: int = _trait_field("size")
    rope: Rope = _trait_field("layers")
    norm_eps: float = _trait_field("size")
    attention_scale: float = _trait_field("size")
    activation: str = "silu"
    windows: tuple[int | None, ...] = ()
    chunked: bool = False
    local_rope: Rope | None = None
    nope_layers: tuple[bool, ...] = ()
    query_temperature: QueryTemperature | None = None
    rope_sections: tuple[int, ...] = _trait_field("file", ())
    norm_offset: float = _trait_field("file", 0.0)
    embedding_scale: float = _trait_field("ends", 1.0)
    residual_scale: float = 1.0
    logit_scale: float = _trait_field("ends", 1.0)
    attention_softcap: float | None = None
    logit_softcap: float | None = _trait_field("ends", None)
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    gated: bool = True
    sinks: bool = False
    output_gate: bool = False
    attended_scale: float = 1.0
    gate_scale: float = 1.0
    down_scale: float = 1.0
    qk_norm: str = ""
    late_qk_norm: bool = False
    value_norm: bool = False
    layer_scale: bool = False
    layer_input: int = 0
    pre_norms: bool = True
    post_norms: bool = False
    norm: str = ""
    norm_bias: bool = False
    parallel: bool = False
    fused: bool = _trait_field("file", False)
    fused_qkv: bool = _trait_field("file", False)
    fused_up: bool = _trait_field("file", False)
    encoding: Encoding | None = None
    tied_embeddings: bool = _trait_field("file", False)
    lacks_output: bool = _trait_field("file", False)
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0
    expert_latent: int = 0
    normalize_experts: bool = True
    dense_and_experts: bool = False
    shared_expert: int = 0
    shared_experts: int = _trait_field("file", 0)
    shared_gate: bool = True
    dense_layers: int = _trait_field("file", 0)
    moe_step: int = _trait_field("file", 1)
    expert_scores: str = ""
    expert_scale: float = 1.0
    scales_input: bool = False
    expert_groups: int = 1
    expert_groups_used: int = 1
    expert_group_best: int = 2
    selection_bias: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    experts_by_columns: bool = _trait_field("file", False)
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    moe_layers: tuple[bool, ...] = ()
    sizes: tuple[LayerSizes, ...] = ()
    kv_layers: tuple[int, ...] = ()
    keys_as_values: tuple[bool, ...] = ()
    recurrent: Recurrent | None = None
    recurrent_layers: tuple[bool, ...] = ()
    beside: bool = False
    halves: tuple[str, ...] = ()
    kv_rank: int = 0
    q_rank: int = 0
    value_dim: int = 0
    joined_kv: bool = _trait_field("file", False)

    @property
    def generates(self) -> bool:
        """Whether the model writes texts; otherwise it only makes vectors of them."""
        return self.encoding is None and not self.lacks_output

    @property
    def in_short(self) -> str:
        """A short description, such as "llama, 30 layers of 576"."""
        return f"{self.architecture}, {self.layers} layers of {self.width}"

    def __repr__(self) -> str:
        """The fields that differ from their default. Repeated values are shown once, with their count."""
        return f"ModelConfig({', '.join(_format_field(self, field) for field in _distinct_fields(self))})"

    def traits(self, part: str = "layers") -> frozenset[str]:
        """What a part of the model, "layers" or "ends", needs beyond a plain Llama: names of fields, with the
        value if it is a word ("qk_norm=head") or with an inner field ("rope.scaling").

        A new field is a trait automatically. Native layers list the traits that they support, and are not
        used for a model with any other.
        """
        fields = [f for f in dataclasses.fields(self) if f.metadata.get("of", "layers") == part]
        return frozenset(trait for field in fields for trait in _traits_of(self, field))

    @cached_property
    def all_layers(self) -> tuple[LayerSpec, ...]:
        """What each layer computes."""
        return tuple(map(self._layer, range(self.layers)))

    def layer(self, layer: int) -> LayerSpec:
        """What this layer computes, with its own sizes."""
        return self.all_layers[layer]

    def _layer(self, layer: int) -> LayerSpec:
        sizes, moe = self.sizes_of(layer), self.is_moe(layer)
        dense = self.has_feed_forward(layer) and (self.dense_and_experts or not moe)
        feed_forward = FeedForward(sizes.feed_forward if dense else 0, moe)
        if not self.has_mixer(layer):
            return LayerSpec(None, feed_forward)
        recurrent = self.recurrent if self.is_recurrent(layer) else None
        if recurrent and not self.beside:
            return LayerSpec(recurrent, feed_forward)
        if self.kv_rank:
            return LayerSpec(self._latent(), feed_forward)
        attention = Attention(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            key_dim=sizes.head_dim,
            value_dim=sizes.value_dim,
            rope=self.rope_of(layer),
            window=self.window(layer),
            source=self.kv_layers[layer] if self.kv_layers else layer,
            keys_as_values=bool(self.keys_as_values) and self.keys_as_values[layer],
            temperature=self._temperature(layer),
            beside=recurrent,
        )
        return LayerSpec(attention, feed_forward)

    def _latent(self) -> Latent:
        plain, temperature = self.head_dim - self.rope.dim, self.query_temperature
        sizes = self.heads, self.q_rank, self.kv_rank, plain, self.value_dim
        return Latent(*sizes, rope=self.rope, temperature=temperature)

    def _temperature(self, layer: int) -> QueryTemperature | None:
        of = self.query_temperature
        return None if of and of.nope_only and self.rope_of(layer) else of

    def sizes_of(self, layer: int) -> LayerSizes:
        """The sizes of this layer."""
        if self.sizes:
            return self.sizes[layer]
        value_dim = self.value_dim or self.head_dim
        return LayerSizes(self.heads, self.kv_heads, self.head_dim, value_dim, self.feed_forward)

    def window(self, layer: int) -> int | None:
        """How many of the last keys a query attends to in this layer; None for all."""
        return self.windows[layer] if self.windows else None

    def rope_of(self, layer: int) -> Rope | None:
        """The rotation in this layer; None if there is none."""
        if self.nope_layers and self.nope_layers[layer]:
            return None
        return self.local_rope if self.local_rope and self.window(layer) else self.rope

    @property
    def trained_context(self) -> int:
        """The longest text, in tokens, that the model was trained for. With a scaled rotation, it is the
        length after scaling; some files give the length before it and a factor.
        """
        scaling = self.rope.scaling or {}
        before, factor = scaling.get("original_max_position_embeddings", 0), scaling.get("factor", 1)
        return max(self.context, int(before * factor))

    @property
    def final_norm(self) -> bool:
        """Whether a norm follows the last layer. The layers of a post-norm encoder end with one."""
        return self.pre_norms or not self.encoding

    def norm_before_attention(self, layer: int) -> bool:
        """Whether this layer has a norm before attention."""
        return self.pre_norms and not (self.encoding and self.encoding.bare_first and layer == 0)

    def has_mixer(self, layer: int) -> bool:
        """Whether this layer mixes tokens."""
        return not self.halves or self.halves[layer] == MIXER

    def has_feed_forward(self, layer: int) -> bool:
        """Whether this layer has a feed-forward, dense or of experts."""
        return not self.halves or self.halves[layer] == FEED_FORWARD

    def is_recurrent(self, layer: int) -> bool:
        """Whether this layer has a state instead of keys and values."""
        return bool(self.recurrent_layers) and self.recurrent_layers[layer]

    def is_moe(self, layer: int) -> bool:
        """Whether this layer has experts."""
        return bool(self.moe_layers) and self.moe_layers[layer]


def _traits_of(of: Any, field: dataclasses.Field[Any]) -> Iterator[str]:
    """The traits of a field: itself, unless it is required or has its default, and those of inner fields."""
    value = getattr(of, field.name)
    plain = all(map(_is_absent, value)) if isinstance(value, tuple) else value == field.default
    if not plain and field.default is not dataclasses.MISSING:
        kind = value.kind if isinstance(value, Recurrent) else value
        yield f"{field.name}={kind}" if type(kind) is str else field.name
    for inner in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        yield from (f"{field.name}.{trait}" for trait in _traits_of(value, inner))


def _is_absent(item: Any) -> bool:
    """Whether a layer lacks what a tuple has for each layer. The number 0 may be the first layer's."""
    return item is None or item is False or item == ()


def _distinct_fields(config: ModelConfig) -> list[str]:
    """Required fields, and fields that differ from their default."""
    every = dataclasses.fields(config)
    return [field.name for field in every if getattr(config, field.name) != field.default]


def _format_field(config: ModelConfig, name: str) -> str:
    value = getattr(config, name)
    if isinstance(value, tuple) and len(value) > 1:
        runs = [(each, len(list(run))) for each, run in itertools.groupby(value)]
        if len(runs) < len(value):
            return f"{name}=" + " + ".join(f"({each},)" + f" * {n}" * (n > 1) for each, n in runs)
    return f"{name}={value!r}"
