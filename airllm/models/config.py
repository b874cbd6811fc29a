"""What a model is made of, read from a GGUF file's metadata or a folder's config.json.

Both say the same in different words; `ModelConfig` has one word for each thing. What differs in the stored
weights is in it too: llama GGUF files have the rows of q and k in an order for the rotation of neighbouring
pairs (`rope.interleaved`), and Gemma's folders store norm weights less one (`norm_offset`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from airllm.models.weights import WeightFile, model_path, open_weights


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
class ModelConfig:
    """A decoder model. Sizes are numbers of values; `windows`, `moe_layers` have an item for each layer.

    `windows`: the last so many keys that a query sees, None for all. `local_rope`: the rotation of layers
    with a window, where it differs. `norm_offset`: added to stored norm weights. `fused`: q, k, v are one
    stored matrix, and so are gate and up. `post_norms`: norms also after attention and feed-forward.
    `normalize_experts`: the weights of the chosen experts are made to sum to one.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    context: int
    rope: Rope
    norm_eps: float
    activation: str
    attention_scale: float
    windows: tuple[int | None, ...]
    local_rope: Rope | None = None
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    fused: bool = False
    tied_embeddings: bool = False
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0
    normalize_experts: bool = True
    moe_layers: tuple[bool, ...] = ()

    @property
    def in_short(self) -> str:
        """What it is, such as "llama, 30 layers of 576"."""
        return f"{self.architecture}, {self.layers} layers of {self.width}"

    def __repr__(self) -> str:
        """What is not the default; of one value in all layers, that one and how often."""
        return f"ModelConfig({', '.join(_shown(self, field) for field in _said(self))})"

    def rope_of(self, layer: int) -> Rope:
        """The rotation in this layer."""
        return self.local_rope if self.local_rope and self.windows[layer] else self.rope

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


def _said(config: ModelConfig) -> list[str]:
    """Fields that must be given, and those that have another value than by default."""
    every = dataclasses.fields(config)
    return [field.name for field in every if getattr(config, field.name) != field.default]


def _shown(config: ModelConfig, name: str) -> str:
    value = getattr(config, name)
    if isinstance(value, tuple) and len(value) > 1:
        runs = [(each, len(list(run))) for each, run in itertools.groupby(value)]
        if len(runs) < len(value):
            return f"{name}=" + " + ".join(f"({each},)" + f" * {n}" * (n > 1) for each, n in runs)
    return f"{name}={value!r}"


def open_config(path: str | PathLike[str]) -> ModelConfig:
    """The configuration of a GGUF file or of a Hugging Face folder. Raises ModelFileError or OSError."""
    from airllm.models.folder_config import folder_config

    path = model_path(path)
    if path.is_dir():
        return folder_config(path)
    with open_weights(path) as weights:
        return config_of(weights)


def config_of(weights: WeightFile) -> ModelConfig:
    """The configuration that belongs to opened weights."""
    from airllm.models.folder_config import folder_config
    from airllm.models.gguf_config import gguf_config
    from airllm.models.gguf_file import GgufFile

    return gguf_config(weights) if isinstance(weights, GgufFile) else folder_config(weights.path)
