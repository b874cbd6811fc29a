"""What says how a small model is made, config.json or a GGUF file, by architecture; and what it means."""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from airllm.architectures.layer_spec import Rope
from airllm.architectures.model_config import ModelConfig

# A small model in the words of both kinds of file; each architecture adds its own below.
SIZES = {
    "num_hidden_layers": 7,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 50,
    "max_position_embeddings": 512,
    "rms_norm_eps": 0.5,
}
GGUF_SIZES = {
    "block_count": 7,
    "embedding_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "feed_forward_length": 96,
    "context_length": 512,
    "attention.layer_norm_rms_epsilon": 0.5,
}
BASE = ModelConfig(
    architecture="llama",
    layers=7,
    width=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    feed_forward=96,
    vocabulary=50,
    context=512,
    rope=Rope(1e4, 16),
    norm_eps=0.5,
    activation="silu",
    attention_scale=0.25,
    windows=(None,) * 7,
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA = {
    "activation": "gelu_tanh",
    "norm_offset": 1.0,
    "embedding_scale": 8.0,
    "post_norms": True,
    "tied_embeddings": True,
}
GEMMA2 = {**GEMMA, "architecture": "gemma2", "attention_softcap": 50.0, "logit_softcap": 30.0}
GEMMA3 = {**GEMMA, "architecture": "gemma3", "qk_norm": "head", "attention_scale": 1 / 16}
EXPERTS = {"experts": 8, "experts_used": 2, "moe_layers": (True,) * 7}
FOLDERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({"model_type": "llama"}, {}),
    "llama 3": (
        {"model_type": "llama", "rope_theta": 500000.0, "rope_scaling": LLAMA3, "tie_word_embeddings": True},
        {"rope": Rope(5e5, 16, scaling=LLAMA3), "tied_embeddings": True},
    ),
    "llama, new words": (
        {"model_type": "llama", "head_dim": None,
         "rope_parameters": {"rope_theta": 7, "rope_type": "default"}},
        {"rope": Rope(7.0, 16)},
    ),
    "llama, wide heads and biases": (
        {"model_type": "llama", "head_dim": 32, "attention_bias": True, "num_key_value_heads": None},
        {"head_dim": 32, "kv_heads": 4, "rope": Rope(1e4, 32), "attention_scale": 1 / sqrt(32),
         "qkv_bias": True, "output_bias": True},
    ),
    "mistral": ({"model_type": "mistral", "sliding_window": 99}, {"windows": (99,) * 7}),
    "mistral, no window": ({"model_type": "mistral", "sliding_window": None}, {}),
    "mixtral": (
        {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6},
        {**EXPERTS, "rope": Rope(1e6, 16), "expert_feed_forward": 96},
    ),
    "qwen2": (
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 99, "rope_theta": 1e6},
        {"architecture": "qwen2", "qkv_bias": True, "rope": Rope(1e6, 16)},
    ),
    "qwen2, window": (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 99, "max_window_layers": 5,
         "rope_scaling": {**YARN, "type": "yarn"}},
        {"architecture": "qwen2", "qkv_bias": True, "windows": (None,) * 5 + (99,) * 2,
         "rope": Rope(1e4, 16, scaling=YARN)},
    ),
    "qwen3": (
        {"model_type": "qwen3", "head_dim": 32, "layer_types": ["full_attention"] * 7},
        {"architecture": "qwen3", "qk_norm": "head", "head_dim": 32, "rope": Rope(1e4, 32),
         "attention_scale": 1 / sqrt(32)},
    ),
    "qwen3_moe": (
        {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "norm_topk_prob": True, "mlp_only_layers": []},
        {**EXPERTS, "architecture": "qwen3moe", "qk_norm": "head", "expert_feed_forward": 48},
    ),
    "qwen3_moe, some layers": (
        {"model_type": "qwen3_moe", "num_local_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 48, "mlp_only_layers": [1], "decoder_sparse_step": 2},
        {**EXPERTS, "architecture": "qwen3moe", "qk_norm": "head", "expert_feed_forward": 48,
         "normalize_experts": False, "moe_layers": (False, False, False, True, False, True, False)},
    ),
    "gemma2": (
        {"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 144, "sliding_window": 99,
         "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "hidden_act": "wrong for old files",
         "hidden_activation": "gelu_pytorch_tanh"},
        {**GEMMA2, "attention_scale": 1 / 12, "windows": (99, None, 99, None, 99, None, 99)},
    ),
    "gemma3_text": (
        {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 99, "query_pre_attn_scalar": 256,
         "rope_theta": 1e6, "rope_local_base_freq": 1e4,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {**GEMMA3, "windows": (99,) * 5 + (None, 99), "local_rope": Rope(1e4, 16),
         "rope": Rope(1e6, 16, scaling={"rope_type": "linear", "factor": 8.0})},
    ),
    "gemma3_text, new words": (
        {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 99,
         "layer_types": ["sliding_attention"] * 7,
         "rope_parameters": {"full_attention": {"rope_theta": 5, "rope_type": "default"},
                             "sliding_attention": {"rope_theta": 3, "rope_type": "default"}}},
        {**GEMMA3, "windows": (99,) * 7, "local_rope": Rope(3.0, 16), "rope": Rope(5.0, 16)},
    ),
    "phi3": (
        {"model_type": "phi3", "sliding_window": 99, "partial_rotary_factor": 0.75, "attention_bias": False},
        {"architecture": "phi3", "fused": True, "windows": (99,) * 7, "rope": Rope(1e4, 12)},
    ),
    "phi3, long": (
        {"model_type": "phi3", "original_max_position_embeddings": 128, "rope_scaling": {
            "type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}},
        {"architecture": "phi3", "fused": True, "rope": Rope(1e4, 16, scaling={
            "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 128})},
    ),
}  # fmt: skip
GGUFS: dict[str, tuple[str, dict[str, Any], list[str], dict[str, Any]]] = {
    "llama": ("llama", {"vocab_size": 50}, ["output.weight"], {"rope": Rope(1e4, 16, interleaved=True)}),
    "llama, tied": (
        "llama", {"rope.freq_base": 2.0, "rope.dimension_count": 8, "attention.sliding_window": 99}, [],
        {"rope": Rope(2.0, 8, interleaved=True), "tied_embeddings": True, "windows": (99,) * 7},
    ),
    "mixtral": (
        "llama", {"expert_count": 8, "expert_used_count": 2}, ["output.weight"],
        {**EXPERTS, "expert_feed_forward": 96, "rope": Rope(1e4, 16, interleaved=True)},
    ),
    "qwen2": (
        "qwen2", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                  "rope.scaling.original_context_length": 128}, ["output.weight", "blk.0.attn_q.bias"],
        {"architecture": "qwen2", "qkv_bias": True, "rope": Rope(1e4, 16, scaling=YARN)},
    ),
    "qwen3": (
        "qwen3", {"attention.key_length": 32, "attention.value_length": 32}, ["output.weight"],
        {"architecture": "qwen3", "qk_norm": "head", "head_dim": 32, "rope": Rope(1e4, 32),
         "attention_scale": 1 / sqrt(32)},
    ),
    "qwen3moe": (
        "qwen3moe", {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 48},
        ["output.weight"],
        {**EXPERTS, "architecture": "qwen3moe", "qk_norm": "head", "expert_feed_forward": 48},
    ),
    "gemma2": (
        "gemma2", {"attention.sliding_window": 99, "attn_logit_softcapping": 50.0,
                   "final_logit_softcapping": 30.0}, [],
        {**GEMMA2, "norm_offset": 0.0, "windows": (99, None, 99, None, 99, None, 99)},
    ),
    "gemma3": (
        "gemma3", {"attention.sliding_window": 99, "rope.freq_base": 1e6}, [],
        {**GEMMA3, "norm_offset": 0.0, "attention_scale": 0.25, "rope": Rope(1e6, 16),
         "windows": (99,) * 5 + (None, 99), "local_rope": Rope(1e4, 16)},
    ),
    "gemma3, pattern": (
        "gemma3", {"attention.sliding_window": 99, "attention.scale": 0.125,
                   "attention.sliding_window_pattern": [True, False] * 3 + [True]}, [],
        {**GEMMA3, "norm_offset": 0.0, "attention_scale": 0.125, "rope": Rope(1e6, 16),
         "windows": (99, None) * 3 + (99,), "local_rope": Rope(1e4, 16)},
    ),
    "phi3": (
        "phi3", {"rope.dimension_count": 12, "attention.sliding_window": 0}, ["output.weight"],
        {"architecture": "phi3", "fused": True, "rope": Rope(1e4, 12)},
    ),
}  # fmt: skip


def folder(path: Path, **values: Any) -> Path:
    """A folder with a config.json of SIZES and `values`; one that is "left out" is not in it."""
    kept = {key: value for key, value in {**SIZES, **values}.items() if value != "left out"}
    (path / "config.json").write_text(json.dumps(kept))
    return path


def gguf_file(path: Path, name: str, values: dict[str, Any], tensors: list[str]) -> Path:
    """A GGUF file of the architecture `name`, of GGUF_SIZES and `values`, with these tensors."""
    writer = gguf.GGUFWriter(path / "model.gguf", name)
    for key, value in {**GGUF_SIZES, **values}.items():
        if value == "left out":
            continue
        kinds = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float64,
            str: writer.add_string,
        }
        kinds.get(type(value), writer.add_array)(f"{name}.{key}", value)
    for tensor in ["token_embd.weight", *tensors]:
        writer.add_tensor(tensor, np.zeros((50, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path / "model.gguf"
