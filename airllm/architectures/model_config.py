"""What a model is made of, read from a GGUF file's metadata or a folder's config.json.

Both say the same in different words (`keys.py`); `ModelConfig` has one word for each thing. What differs in
the stored weights is in it too: llama GGUF files have the rows of q and k in an order for the rotation of
neighbouring pairs (`rope.interleaved`), and Gemma's folders store norm weights less one (`norm_offset`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rope:
    """Rotary positions: `dim` of a head's values are turned, in neighbouring pairs if `interleaved`, else
    each with the one half of `dim` further on. `scaling` is as `tensor_ops.rope_table` takes it.
    """

    theta: float
    dim: int
    interleaved: bool = False
    scaling: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class QueryTemperature:
    """Queries beyond `length` positions are scaled by 1 + scale * log(1 + floor(position / length)), so that
    attention stays as sharp in long texts (Llama 4, Ministral 3).
    """

    scale: float
    length: int


def _trait_field(part: str, default: Any = dataclasses.MISSING) -> Any:
    """A field that says something of a `part` of the model: see `ModelConfig.traits`."""
    metadata = {"of": part}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ModelConfig:
    """A decoder model. Sizes are numbers of values; tuples have an item for each layer, or none.

    A field with a default is what a plain Llama does not need: a `trait` of the model where it has another
    value. Fields "of" the size every model has; those of the file concern how weights are stored; those of
    the ends come before the first layer or after the last; all others are of the layers.

    `windows`: the last so many keys that a query sees, None for all. `local_rope`: the rotation of layers
    with a window, where it differs. `nope_layers`: those that rotate nothing. `rope_sections`: pairs that go
    by position in time, height and width, which for text are one. `norm_offset`: added to stored norm
    weights. `fused`: q, k, v are one stored matrix, and so are gate and up. `pre_norms`, `post_norms`: norms
    before, after attention and feed-forward. `qk_norm`: of q and k, of each "head" or of the whole "row".
    `residual_scale`: of what each half of a layer adds; `logit_scale`: of the logits. `normalize_experts`:
    the weights of the chosen experts are made to sum to one. `shared_expert`: the width of an expert that
    every token takes, weighted by a gate of its own. `sinks`: each head has a score that takes its share of
    the softmax and has no value. `activation` "swiglu_clamped" is (up + 1) * gate * sigmoid(`swiglu_alpha` *
    gate), where gate is cut to at most `swiglu_limit` and up to its distance from 0.
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
    sinks: bool = False
    qk_norm: str = ""
    pre_norms: bool = True
    post_norms: bool = False
    fused: bool = _trait_field("file", False)
    tied_embeddings: bool = _trait_field("file", False)
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0
    normalize_experts: bool = True
    shared_expert: int = 0
    router_bias: bool = False
    expert_bias: bool = False
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    moe_layers: tuple[bool, ...] = ()

    @property
    def in_short(self) -> str:
        """What it is, such as "llama, 30 layers of 576"."""
        return f"{self.architecture}, {self.layers} layers of {self.width}"

    def __repr__(self) -> str:
        """What is not the default; of one value in all layers, that one and how often."""
        return f"ModelConfig({', '.join(_format_field(self, field) for field in _distinct_fields(self))})"

    def traits(self, part: str = "layers") -> frozenset[str]:
        """What this part of the model, its "layers" or its "ends", needs beyond a plain Llama: names of
        fields, with the value where that is a word ("qk_norm=head"), or the field of it ("rope.scaling").

        A new field is a trait by itself: who computes layers natively names the traits it knows, and is not
        asked for a model that has another.
        """
        fields = [f for f in dataclasses.fields(self) if f.metadata.get("of", "layers") == part]
        return frozenset(trait for field in fields for trait in _traits_of(self, field))

    def window(self, layer: int) -> int | None:
        """The last so many keys that a query sees in this layer; None for all."""
        return self.windows[layer] if self.windows else None

    def rope_of(self, layer: int) -> Rope | None:
        """The rotation in this layer; None where nothing is rotated."""
        if self.nope_layers and self.nope_layers[layer]:
            return None
        return self.local_rope if self.local_rope and self.window(layer) else self.rope

    @property
    def trained_context(self) -> int:
        """Tokens of the longest text that the model was made for: with a stretched rotation, those it is
        stretched to, which some files say as the length before and a factor.
        """
        scaling = self.rope.scaling or {}
        before, factor = scaling.get("original_max_position_embeddings", 0), scaling.get("factor", 1)
        return max(self.context, int(before * factor))

    def is_moe(self, layer: int) -> bool:
        """Whether this layer's feed-forward part is a choice of experts."""
        return bool(self.moe_layers) and self.moe_layers[layer]


def _traits_of(of: Any, field: dataclasses.Field[Any]) -> Iterator[str]:
    """The trait that a field is, unless it must be given or has the value that it has for a plain Llama; and
    those of its own fields.
    """
    value = getattr(of, field.name)
    plain = not any(value) if isinstance(value, tuple) else value == field.default
    if not plain and field.default is not dataclasses.MISSING:
        yield f"{field.name}={value}" if type(value) is str else field.name
    for inner in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        yield from (f"{field.name}.{trait}" for trait in _traits_of(value, inner))


def _distinct_fields(config: ModelConfig) -> list[str]:
    """Fields that must be given, and those that have another value than by default."""
    every = dataclasses.fields(config)
    return [field.name for field in every if getattr(config, field.name) != field.default]


def _format_field(config: ModelConfig, name: str) -> str:
    value = getattr(config, name)
    if isinstance(value, tuple) and len(value) > 1:
        runs = [(each, len(list(run))) for each, run in itertools.groupby(value)]
        if len(runs) < len(value):
            return f"{name}=" + " + ".join(f"({each},)" + f" * {n}" * (n > 1) for each, n in runs)
    return f"{name}={value!r}"
