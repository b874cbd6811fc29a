"""The keys of the tiny models' GGUF files: sizes, rotations, experts, the vocabulary. See tiny_gguf.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf

from tests.support.models import tiny_nemotron_h
from tests.support.models.tiny_models import VOCABULARY


def write_config(writer: gguf.GGUFWriter, config: dict[str, Any], joined: bool = False) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kind = config["model_type"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(heads)
    if kind == "gemma4_text":
        head_dim = _write_gemma4(writer, config)
    elif "kv_lora_rank" in config:
        head_dim = _write_latent(writer, config, joined)
    elif "conv_L_cache" in config:
        _write_lfm2(writer, config)
    elif "linear_num_key_heads" in config:
        _write_delta_rule(writer, config)
    elif kind == "falcon_h1":
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        _write_mamba(writer, config)
    elif kind == tiny_nemotron_h.KIND:
        tiny_nemotron_h.write_config(writer, config)
        _write_mamba(writer, config)
    elif kind == "granitemoehybrid":
        _write_granite_hybrid(writer, config)
    else:
        writer.add_feed_forward_length(config.get("intermediate_size_mlp", config["intermediate_size"]))
        writer.add_head_count_kv(config["num_key_value_heads"])
    layer_norm = config.get("layer_norm_eps", config.get("norm_epsilon"))
    if kind == tiny_nemotron_h.KIND:
        pass  # it has both
    elif layer_norm:
        writer.add_layer_norm_eps(layer_norm)
    else:
        writer.add_layer_norm_rms_eps(config.get("norm_eps", config["rms_norm_eps"]))
    writer.add_vocab_size(VOCABULARY)
    if "head_dim" in config and "kv_lora_rank" not in config:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if kind != "mixtral" and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if kind == "olmo3":
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config["layer_types"]])
    if kind == "cohere2":
        writer.add_logit_scale(config["logit_scale"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if kind in ("granite", "granitemoehybrid"):
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if kind == "gemma4_text" and config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    _write_experts(writer, config)
    if kind in ("glm4_moe", "minimax_m2", "deepseek_v3", "glm4_moe_lite", "lfm2_moe"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind == "lfm2_moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if kind in ("deepseek_v2", "mistral4"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    if kind == "glm4_moe" or "kv_lora_rank" in config:
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        if config["norm_topk_prob"] or kind == "glm4_moe":
            writer.add_expert_weights_norm(config["norm_topk_prob"])
        if config["n_group"]:
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])
    if kind in ("gpt_oss", "minimax_m2", "hunyuan_v1_moe", "llama4_text"):
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if kind == "hunyuan_v1_moe":
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
        writer.add_expert_shared_count(1)
    if kind == "llama4_text":
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    if kind == "ernie4_5_moe":
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        shared = config["intermediate_size"] // config["num_key_value_heads"]  # as the converter computes it
        writer.add_expert_shared_feed_forward_length(shared)
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if kind == "qwen3_vl":
        writer.add_num_deepstack_layers(len(config["vision_config"]["deepstack_visual_indexes"]))
    _write_rope(writer, config, head_dim)


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_USED = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k")


def _write_experts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    if experts := next((config[key] for key in _EXPERTS if config.get(key)), None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(next(config[key] for key in _EXPERTS_USED if key in config))


def full_head_dim(config: dict[str, Any]) -> int:
    return max(each["head_dim"] for each in config["per_layer_config"].values())


def _write_gemma4(writer: gguf.GGUFWriter, config: dict[str, Any]) -> int:
    """The sizes that its layers do not share. Returns the size of a head without a window."""
    windowed = [each == "sliding_attention" for each in config["layer_types"]]
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    near, full = config["num_key_value_heads"], config["per_layer_config"]
    writer.add_head_count_kv(
        [near if each else full[str(i)].get("num_key_value_heads", near) for i, each in enumerate(windowed)]
    )
    wide = config["intermediate_size"]
    twice = config["use_double_wide_mlp"] and shared
    writer.add_feed_forward_length(
        [wide * 2 if i >= layers - shared else wide for i in range(layers)] if twice else wide
    )
    writer.add_shared_kv_layers(shared)
    writer.add_sliding_window_pattern(windowed)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count_swa(config["head_dim"])
    return full_head_dim(config)


def _write_lfm2(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The sizes that its layers do not share, and the width of the feed-forward, which the folder rounds."""
    wide, heads = config["intermediate_size"], config["num_key_value_heads"]
    if config.get("block_auto_adjust_ff_dim"):
        step = config["block_multiple_of"]
        wide = -(-int(config["block_ffn_dim_multiplier"] * int(2 * wide / 3)) // step) * step
    writer.add_feed_forward_length(wide)
    writer.add_head_count_kv([heads if each == "full_attention" else 0 for each in config["layer_types"]])
    writer.add_shortconv_l_cache(config["conv_L_cache"])


def _write_granite_hybrid(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    heads = config["num_key_value_heads"]
    writer.add_head_count_kv([heads if each == "full_attention" else 0 for each in config["layer_types"]])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
    _write_mamba(writer, config)


def _write_mamba(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_ssm_inner_size(config["mamba_n_heads"] * config["mamba_d_head"])


def _write_delta_rule(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)


def _write_latent(writer: gguf.GGUFWriter, config: dict[str, Any], joined: bool) -> int:
    """The sizes of latent attention. Returns how many values of a head rotate."""
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + rotated, config["v_head_dim"]
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv(config["num_attention_heads"] if joined else 1)
    writer.add_kv_lora_rank(rank)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_key_length(key if joined else rank + rotated)
    writer.add_value_length(value if joined else rank)
    if not joined:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
    return rotated


def _write_rope(writer: gguf.GGUFWriter, config: dict[str, Any], head_dim: int) -> None:
    rope = config["rope_parameters"]
    if near := rope.get("sliding_attention"):
        writer.add_rope_freq_base_swa(near["rope_theta"])
    rope = rope.get("full_attention", rope)
    kind, theta = rope["rope_type"], rope["rope_theta"]
    if kind == "dynamic":  # Hunyuan's
        theta *= rope["alpha"] ** (head_dim / (head_dim - 2))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
    writer.add_rope_freq_base(theta)
    whole = kind == "proportional" or "kv_lora_rank" in config
    part = 1.0 if whole else rope.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(head_dim * part))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if sections := rope.get("mrope_section"):
        writer.add_rope_dimension_sections([*sections, 0])
    if "llama_4_scaling_beta" in rope and "kv_lora_rank" not in config:
        for write, key in ((writer.add_rope_scaling_yarn_beta_fast, "beta_fast"),
                           (writer.add_rope_scaling_yarn_beta_slow, "beta_slow"),
                           (writer.add_rope_scaling_yarn_log_mul, "mscale_all_dim"),
                           (writer.add_attn_temperature_scale, "llama_4_scaling_beta")):  # fmt: skip
            write(rope[key])
    if "kv_lora_rank" in config and "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if "kv_lora_rank" in config and "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        writer.add_attn_temperature_length(rope["original_max_position_embeddings"])
    if config["model_type"] == "phi3" or kind == "yarn":
        before = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        writer.add_rope_scaling_orig_ctx_len(before)
    if kind == "longrope":  # the converter writes no type for these
        stretch = config["max_position_embeddings"] / before
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(before)))


def write_vocabulary(writer: gguf.GGUFWriter) -> None:
    """A byte-level one: the letters from "!" on, and two that are merged of others."""
    letters = [chr(33 + i) for i in range(VOCABULARY - 4)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*letters, "Ġ", "AB", "ABC", "<end>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCABULARY - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["A B", "AB C"])
    writer.add_eos_token_id(VOCABULARY - 1)


def close_file(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
