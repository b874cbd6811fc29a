"""Nemotron-H in a GGUF file, as llama.cpp's converter writes it. See tiny_gguf.py."""

from __future__ import annotations

import re
from typing import Any

import gguf

KIND = "nemotron_h"
_OF_EXPERTS = ("n_routed_experts", "moe_intermediate_size")


def has_experts(config: dict[str, Any]) -> bool:
    return "moe" in config["layers_block_type"]


def like_others(config: dict[str, Any]) -> dict[str, Any]:
    """Its config.json, with what others have under their names, and without experts that no layer has."""
    mamba = {
        "mamba_d_conv": config["conv_kernel"],
        "mamba_d_state": config["ssm_state_size"],
        "mamba_n_groups": config["n_groups"],
        "mamba_n_heads": config["mamba_num_heads"],
        "mamba_d_head": config["mamba_head_dim"],
    }
    plain = {"rope_type": "default", "rope_theta": 1e4}
    layers = len(config["layers_block_type"])
    less = () if has_experts(config) else _OF_EXPERTS
    some = {key: value for key, value in config.items() if key not in less}
    return {**some, **mamba, "num_hidden_layers": layers, "rope_parameters": plain}


def like_other_names(name: str) -> str:
    """The name of a tensor, as gguf knows it."""
    return re.sub(r"^backbone(\.layers\.\d+)\.mixer\.experts", r"model\1.mlp.experts", name)


def write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Its own keys. Two norms have an epsilon if config.json has both."""
    kinds, moe = config["layers_block_type"], has_experts(config)
    width = config["moe_intermediate_size" if moe else "intermediate_size"]
    writer.add_feed_forward_length([width if each in ("mlp", "moe") else 0 for each in kinds])
    heads = config["num_key_value_heads"]
    writer.add_head_count_kv([heads if each == "full_attention" else 0 for each in kinds])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    if config["rms_norm_eps"] == config["layer_norm_epsilon"]:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_scaling_finetuned(False)
    if moe:
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_group_count(config["n_group"])
        if config["moe_latent_size"]:
            writer.add_moe_latent_size(config["moe_latent_size"])
