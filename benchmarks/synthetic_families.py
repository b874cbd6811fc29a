"""What models of other families than Llama have: keys of their GGUF files, and the tensors of their layers.

For `synthetic_models.py`. Names of tensors lack "blk.N." and, if they end in none, ".weight".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from airllm.files.gguf_writer import ARRAY, BOOL, FLOAT32, INT32, STRING, UINT32, Key

Tensors = Mapping[str, tuple[int, ...]]


class Sizes(Protocol):
    """What a family reads of `synthetic_models.Shape`."""

    @property
    def width(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def feed_forward(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def experts(self) -> int: ...


class Family(Protocol):
    """A family of models: `architecture` as GGUF files name it."""

    @property
    def architecture(self) -> str: ...

    def keys(self, s: Sizes) -> list[Key]:
        """Keys besides those of a Llama, or instead of them, without the architecture's prefix."""

    def layer(self, s: Sizes, layer: int) -> Tensors:
        """The tensors of a layer."""

    def shared(self, s: Sizes) -> Tensors:
        """Those outside the layers, besides the embedding, the output and its norm."""


@dataclass(frozen=True)
class DeepSeek:
    """What DeepSeek-V2-Lite has besides: latent attention, and small experts after the first layer. A query
    has `plain` and `rotated` values. The shared expert has the width of `shared` others.
    """

    kv_rank: int
    plain: int
    rotated: int
    value: int
    expert_width: int
    shared_experts: int
    architecture: str = "deepseek2"

    def keys(self, s: Sizes) -> list[Key]:
        numbers = {
            "attention.kv_lora_rank": self.kv_rank,
            "attention.key_length": self.kv_rank + self.rotated,
            "attention.value_length": self.kv_rank,
            "attention.key_length_mla": self.plain + self.rotated,
            "attention.value_length_mla": self.value,
            "rope.dimension_count": self.rotated,
            "leading_dense_block_count": 1,
            "expert_feed_forward_length": self.expert_width,
            "expert_shared_count": self.shared_experts,
        }
        return [*_whole(numbers), Key("expert_weights_scale", 1.0, FLOAT32)]

    def layer(self, s: Sizes, layer: int) -> Tensors:
        attention: Tensors = {
            "attn_norm": (s.width,),
            "attn_q": (s.heads * (self.plain + self.rotated), s.width),
            "attn_kv_a_mqa": (self.kv_rank + self.rotated, s.width),
            "attn_kv_a_norm": (self.kv_rank,),
            "attn_k_b": (s.heads, self.kv_rank, self.plain),
            "attn_v_b": (s.heads, self.value, self.kv_rank),
            "attn_output": (s.width, s.heads * self.value),
            "ffn_norm": (s.width,),
        }
        if layer == 0:
            return {**attention, **feed_forward("", (), s.feed_forward, s.width)}
        return {
            **attention,
            "ffn_gate_inp": (s.experts, s.width),
            **feed_forward("_exps", (s.experts,), self.expert_width, s.width),
            **feed_forward("_shexp", (), self.shared_experts * self.expert_width, s.width),
        }

    def shared(self, s: Sizes) -> Tensors:
        return {}


@dataclass(frozen=True)
class GptOss:
    """What gpt-oss has besides: heads of `head_dim` with sinks, biases everywhere, a window in every other
    layer, a stretched rotation.
    """

    head_dim: int
    window: int
    architecture: str = "gpt-oss"

    def keys(self, s: Sizes) -> list[Key]:
        numbers = {
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.sliding_window": self.window,
            "rope.dimension_count": self.head_dim,
            "expert_feed_forward_length": s.feed_forward,
            "rope.scaling.original_context_length": 4096,
        }
        return [
            *_whole(numbers),
            Key("rope.scaling.type", "yarn", STRING),
            Key("rope.scaling.factor", 32.0, FLOAT32),
        ]

    def layer(self, s: Sizes, layer: int) -> Tensors:
        q, kv = s.heads * self.head_dim, s.kv_heads * self.head_dim
        return {
            "attn_norm": (s.width,),
            **_with_bias("attn_q", q, s.width),
            **_with_bias("attn_k", kv, s.width),
            **_with_bias("attn_v", kv, s.width),
            **_with_bias("attn_output", s.width, q),
            "attn_sinks": (s.heads,),
            "post_attention_norm": (s.width,),
            **_with_bias("ffn_gate_inp", s.experts, s.width),
            **feed_forward("_exps", (s.experts,), s.feed_forward, s.width),
            "ffn_gate_exps.bias": (s.experts, s.feed_forward),
            "ffn_up_exps.bias": (s.experts, s.feed_forward),
            "ffn_down_exps.bias": (s.experts, s.width),
        }

    def shared(self, s: Sizes) -> Tensors:
        return {}


@dataclass(frozen=True)
class Gemma4:
    """What Gemma 4 has besides: layers with a window, and every `full_every`-th without one, which has larger
    heads; the last `sharing` layers read earlier keys and values and have a feed-forward twice as wide; each
    layer has an input of `layer_input` values of its own.
    """

    head_dim: int
    full_head_dim: int
    window: int
    full_every: int
    sharing: int
    layer_input: int
    softcap: float = 30.0
    architecture: str = "gemma4"

    def keys(self, s: Sizes) -> list[Key]:
        numbers = {
            "attention.key_length": self.full_head_dim,
            "attention.value_length": self.full_head_dim,
            "attention.key_length_swa": self.head_dim,
            "attention.value_length_swa": self.head_dim,
            "attention.sliding_window": self.window,
            "attention.shared_kv_layers": self._sharing(s),
            "rope.dimension_count": self.full_head_dim,
            "rope.dimension_count_swa": self.head_dim,
            "embedding_length_per_layer_input": self.layer_input,
        }
        windows = [not self._is_full(i) for i in range(s.layers)]
        widths = [self._feed_forward(s, i) for i in range(s.layers)]
        return [
            *_whole(numbers),
            Key("attention.sliding_window_pattern", windows, (*ARRAY, *BOOL)),
            Key("feed_forward_length", widths, (*ARRAY, *INT32)),
            Key("final_logit_softcapping", self.softcap, FLOAT32),
            Key("rope.freq_base_swa", 1e4, FLOAT32),
        ]

    def _is_full(self, layer: int) -> bool:
        return (layer + 1) % self.full_every == 0

    def _sharing(self, s: Sizes) -> int:
        """Layers that share: those before them end with a full layer, as llama.cpp expects."""
        own = max(s.layers - self.sharing, self.full_every)
        return max(0, s.layers - -(-own // self.full_every) * self.full_every)

    def _shares(self, s: Sizes, layer: int) -> bool:
        return layer >= s.layers - self._sharing(s)

    def _feed_forward(self, s: Sizes, layer: int) -> int:
        return s.feed_forward * (2 if self._shares(s, layer) else 1)

    def layer(self, s: Sizes, layer: int) -> Tensors:
        dim = self.full_head_dim if self._is_full(layer) else self.head_dim
        return {
            "attn_norm": (s.width,),
            "attn_q": (s.heads * dim, s.width),
            "attn_q_norm": (dim,),
            "attn_k": (s.kv_heads * dim, s.width),  # ik_llama.cpp expects them of layers that share, too
            "attn_v": (s.kv_heads * dim, s.width),
            "attn_k_norm": (dim,),
            "attn_output": (s.width, s.heads * dim),
            "post_attention_norm": (s.width,),
            "ffn_norm": (s.width,),
            **feed_forward("", (), self._feed_forward(s, layer), s.width),
            "post_ffw_norm": (s.width,),
            "inp_gate": (self.layer_input, s.width),
            "proj": (s.width, self.layer_input),
            "post_norm": (s.width,),
            "layer_output_scale": (1,),
        }

    def shared(self, s: Sizes) -> Tensors:
        values = s.layers * self.layer_input
        return {
            "per_layer_token_embd": (s.vocabulary, values),
            "per_layer_model_proj": (values, s.width),
            "per_layer_proj_norm": (self.layer_input,),
            "rope_freqs": (self.full_head_dim // 2,),
        }


def feed_forward(suffix: str, lead: tuple[int, ...], wide: int, width: int) -> Tensors:
    """Gate, up and down of `lead` experts, or of a dense feed-forward."""
    return {
        f"ffn_gate{suffix}": (*lead, wide, width),
        f"ffn_up{suffix}": (*lead, wide, width),
        f"ffn_down{suffix}": (*lead, width, wide),
    }


def _with_bias(name: str, rows: int, columns: int) -> Tensors:
    return {name: (rows, columns), f"{name}.bias": (rows,)}


def _whole(numbers: Mapping[str, int]) -> list[Key]:
    return [Key(name, number, UINT32) for name, number in numbers.items()]
