"""What models have besides attention whose other layers keep a state: the keys and tensors of LFM2's short
convolutions, and of Qwen 3.5's gated delta rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airllm.files.gguf_writer import ARRAY, INT32, UINT32, Key
from benchmarks.synthetic_families import Sizes, Tensors, feed_forward


@dataclass(frozen=True)
class Convolutions:
    """LFM2's layers, but those of `attention`. Heads of attention have norms."""

    attention: tuple[int, ...]
    head_dim: int
    taps: int = 3
    architecture: str = "lfm2"

    def keys(self, s: Sizes) -> list[Key]:
        heads = [s.kv_heads if layer in self.attention else 0 for layer in range(s.layers)]
        return _keys({"attention.head_count_kv": heads, "shortconv.l_cache": self.taps})

    def shared(self, s: Sizes) -> Tensors:
        return {}

    def layer(self, s: Sizes, layer: int) -> Tensors:
        return _whole(s, self._mixer(layer, s.width, s.heads, s.kv_heads))

    def _mixer(self, layer: int, width: int, heads: int, kv_heads: int) -> Tensors:
        if layer in self.attention:
            return _attention(width, heads, kv_heads, self.head_dim) | {"ffn_norm": (width,)}
        return {
            "shortconv.in_proj": (3 * width, width),
            "shortconv.conv": (width, self.taps),
            "shortconv.out_proj": (width, width),
            "ffn_norm": (width,),
        }


@dataclass(frozen=True)
class DeltaRules:
    """Qwen 3.5's layers, but every `interval`-th: those have attention whose queries have a second half."""

    head_dim: int
    rotated: int
    key_heads: int
    value_heads: int
    dim: int
    interval: int = 4
    taps: int = 4
    architecture: str = "qwen35"

    def shared(self, s: Sizes) -> Tensors:
        return {}

    def keys(self, s: Sizes) -> list[Key]:
        numbers: dict[str, int | list[int]] = {
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "rope.dimension_count": self.rotated,
            "rope.dimension_sections": [self.rotated // 2 - 20, 10, 10, 0],
            "ssm.conv_kernel": self.taps,
            "ssm.state_size": self.dim,
            "ssm.group_count": self.key_heads,
            "ssm.time_step_rank": self.value_heads,
            "ssm.inner_size": self.value_heads * self.dim,
            "full_attention_interval": self.interval,
        }
        return _keys(numbers)

    def layer(self, s: Sizes, layer: int) -> Tensors:
        return _whole(s, self._mixer(layer, s.width, s.heads, s.kv_heads))

    def _mixer(self, layer: int, width: int, heads: int, kv_heads: int) -> Tensors:
        norm: dict[str, tuple[int, ...]] = {"post_attention_norm": (width,)}
        if (layer + 1) % self.interval == 0:
            return _attention(width, heads, kv_heads, self.head_dim, 2) | norm
        values = self.value_heads * self.dim
        channels = 2 * self.key_heads * self.dim + values
        return {
            "attn_qkv": (channels, width),
            "attn_gate": (values, width),
            "ssm_beta": (self.value_heads, width),
            "ssm_alpha": (self.value_heads, width),
            "ssm_conv1d": (channels, self.taps),
            "ssm_a": (self.value_heads,),
            "ssm_dt.bias": (self.value_heads,),
            "ssm_norm": (self.dim,),
            "ssm_out": (width, values),
            **norm,
        }


def _attention(
    width: int, heads: int, kv_heads: int, head_dim: int, halves: int = 1
) -> dict[str, tuple[int, ...]]:
    return {
        "attn_q": (halves * heads * head_dim, width),
        "attn_k": (kv_heads * head_dim, width),
        "attn_v": (kv_heads * head_dim, width),
        "attn_q_norm": (head_dim,),
        "attn_k_norm": (head_dim,),
        "attn_output": (width, heads * head_dim),
    }


def _whole(s: Sizes, mixer: Tensors) -> Tensors:
    return {"attn_norm": (s.width,), **mixer, **feed_forward("", (), s.feed_forward, s.width)}


def _keys(numbers: Mapping[str, int | list[int]]) -> list[Key]:
    return [
        Key(name, number, (*ARRAY, *INT32) if isinstance(number, list) else UINT32)
        for name, number in numbers.items()
    ]
