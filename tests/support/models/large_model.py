"""A model of some hundred megabytes, written in a second: random tiles of weights, over and over."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from airllm import tensor_ops

WIDTH, WIDE, HEADS, KV_HEADS, LAYERS, VOCABULARY, CONTEXT = 768, 2048, 12, 4, 18, 4096, 512
HEAD = WIDTH // HEADS
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": WIDE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_ATTENTION = {
    "q": (WIDTH, WIDTH),
    "k": (KV_HEADS * HEAD, WIDTH),
    "v": (KV_HEADS * HEAD, WIDTH),
    "o": (WIDTH, WIDTH),
}
_MLP = {"gate": (WIDE, WIDTH), "up": (WIDE, WIDTH), "down": (WIDTH, WIDE)}


def _tile(rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(rows * columns)
    some = rng.standard_normal((64, columns)).astype(np.float32) / np.sqrt(columns)
    return np.tile(some, (rows // 64, 1))


def write_folder(path: Path) -> Path:
    """float16, in two shards: 270 MB."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    tiles = {shape: _tile(*shape).astype(np.float16) for shape in {*_ATTENTION.values(), *_MLP.values()}}
    norm = np.ones(WIDTH, np.float16)
    shards: list[dict] = [{}, {}]
    for i in range(LAYERS):
        layer, shard = f"model.layers.{i}.", shards[i % 2]
        shard |= {f"{layer}self_attn.{name}_proj.weight": tiles[shape] for name, shape in _ATTENTION.items()}
        shard |= {f"{layer}mlp.{name}_proj.weight": tiles[shape] for name, shape in _MLP.items()}
        shard |= {f"{layer}{name}_layernorm.weight": norm for name in ("input", "post_attention")}
    table = _tile(VOCABULARY, WIDTH).astype(np.float16)
    shards[0] |= {"model.embed_tokens.weight": table * np.float16(30), "model.norm.weight": norm}
    shards[1]["lm_head.weight"] = table[::-1].copy()
    names = [f"model-{i}.safetensors" for i in range(2)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, path / name)
    index = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return path


def write_parts(folder: Path) -> Path:
    """The GGUF file in five parts, of which the first has no tensors."""
    folder.mkdir()
    write_gguf(folder / "model.gguf", split_max_size=40_000_000, small_first_shard=True)
    return folder


def write_gguf(path: Path, format: str = "q8_0", experts: int = 0, **split: Any) -> Path:
    """Output and embedding in one: 140 MB in q8_0. `experts`: so many divide the feed-forward, and a token
    uses two. `split`: those options of GGUFWriter.
    """
    writer = gguf.GGUFWriter(path, "llama", **split)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(WIDE // experts)
    stored = {}

    def add(name: str, shape: tuple[int, int], parts: int = 0) -> None:
        if (shape, parts) not in stored:
            blocks = tensor_ops.quantize(_tile(*shape), format).data
            stored[shape, parts] = np.stack([blocks] * parts) if parts else blocks
        writer.add_tensor(name, stored[shape, parts], raw_dtype=gguf.GGMLQuantizationType[format.upper()])

    add("token_embd.weight", (VOCABULARY, WIDTH))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    attention = dict(zip(("attn_q", "attn_k", "attn_v", "attn_output"), _ATTENTION.values(), strict=True))
    for i in range(LAYERS):
        for name, shape in attention.items():
            add(f"blk.{i}.{name}.weight", shape)
        for name, shape in _MLP.items():
            if experts:
                part = tuple(n // experts if n == WIDE else n for n in shape)
                add(f"blk.{i}.ffn_{name}_exps.weight", part, experts)
            else:
                add(f"blk.{i}.ffn_{name}.weight", shape)
        if experts:
            writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", _tile(64, WIDTH)[:experts].astype(np.float32))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
