"""A GGUF file of a model whose layers differ in their numbers of heads and the width of feed-forward."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.support.models.tiny_gguf_keys import close_file, write_vocabulary
from tests.support.models.tiny_models import VOCABULARY

WIDTH, HEAD_DIM, CONTEXT = 64, 32, 600
HEADS, KV_HEADS, WIDE = (4, 6, 2), (2, 1, 2), (96, 64, 160)


def write_uneven(path: Path, **lists: list[int]) -> Path:
    """A file with random weights in float32. `lists`: other numbers of heads than it has."""
    sizes = {"heads": list(HEADS), "kv_heads": list(KV_HEADS)} | lists
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(len(HEADS))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(list(WIDE))
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["kv_heads"])
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    write_vocabulary(writer)
    rng = np.random.default_rng(2)
    for name, shape in _shapes().items():
        spread = 0.5 + rng.random(shape) if "norm" in name else rng.standard_normal(shape) / shape[-1] ** 0.5
        writer.add_tensor(name, spread.astype(np.float32))
    return close_file(writer, path)


def _shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,),
        "output.weight": (VOCABULARY, WIDTH),
    }  # fmt: skip
    for layer, (heads, kv_heads, wide) in enumerate(zip(HEADS, KV_HEADS, WIDE, strict=True)):
        q, kv = heads * HEAD_DIM, kv_heads * HEAD_DIM
        of_layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (WIDTH,), "attn_q": (q, WIDTH), "attn_k": (kv, WIDTH), "attn_v": (kv, WIDTH),
            "attn_output": (WIDTH, q), "ffn_norm": (WIDTH,), "ffn_gate": (wide, WIDTH),
            "ffn_up": (wide, WIDTH), "ffn_down": (WIDTH, wide),
        }  # fmt: skip
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found
