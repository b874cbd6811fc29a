"""The names of the tiny models' tensors and architectures in GGUF files. See tiny_gguf.py."""

from __future__ import annotations

import re
from typing import Any

import gguf

from tests.support.models import tiny_nemotron_h

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3",
    "granite": "granite", "smollm3": "smollm3", "olmo2": "olmo2", "olmo3": "olmo2", "qwen2_moe": "qwen2moe",
    "qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl", "seed_oss": "seed_oss", "ministral3": "mistral3",
    "mistral3": "mistral3", "gemma": "gemma", "gpt_oss": "gpt-oss",
    "minimax_m2": "minimax-m2", "glm4_moe": "glm4moe", "gemma4_text": "gemma4",
    "cohere2": "cohere2", "starcoder2": "starcoder2", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe",
    "llama4_text": "llama4", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2", "mistral4": "mistral4", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
    "qwen3_next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "granitemoehybrid": "granitehybrid", "falcon_h1": "falcon-h1", "nemotron_h": "nemotron_h",
}  # fmt: skip
_SCALES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}  # Gemma 4's
_OF_GRANITE = re.compile(r"\.(shared_mlp|block_sparse_moe)\.(\w+)_linear\.weight$")
_OF_EXPERT = {"1": "gate_proj", "3": "up_proj", "2": "down_proj"}  # LFM2's
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
_IMAGES = ("visual.", "model.visual.", "vision_tower.", "multi_modal_projector.")


def architecture_of(config: dict[str, Any]) -> str:
    """general.architecture of the folder's GGUF file."""
    kind = text_part(config)["model_type"]
    if kind == tiny_nemotron_h.KIND and tiny_nemotron_h.has_experts(config):
        return "nemotron_h_moe"
    return ARCHITECTURES[kind]


def gguf_name(config: dict[str, Any], name: str) -> str:
    """How a GGUF file calls a tensor of a folder: an expert has the name of its stack."""
    architecture = architecture_of(config)
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(kind, text_part(config)["num_hidden_layers"])
    plain = EXPERT.sub(r"\1.\3", name.replace("language_model.", ""))
    plain = tiny_nemotron_h.like_other_names(plain)
    plain = plain.replace("e_score_correction_bias", "e_score_correction.bias")
    plain = re.sub(r"(\.sinks|layer_scalar|experts\.\w+_proj)$", r"\1.weight", plain)
    plain = re.sub(r"(\.expert_bias)$", r"\1.bias", plain).replace(".dt_bias", ".dt_proj.bias")
    if plain.endswith(("A_log", ".mamba.D", ".mixer.D")):
        return names.get_name(plain)
    if match := _OF_GRANITE.search(plain):
        shared = "_shexp" if config["num_local_experts"] else ""
        kind = "_exps" if match[1] == "block_sparse_moe" else shared
        return f"blk.{plain.split('.')[2]}.ffn_{match[2].replace('output', 'down')}{kind}.weight"
    plain = re.sub(r"(feed_forward\.experts)\.w(\d)", lambda m: f"{m[1]}.{_OF_EXPERT[m[2]]}", plain)
    for theirs, ours in _SCALES.items():
        if plain.endswith(theirs):
            return f"blk.{plain.split('.')[2]}.{ours}"
    found = names.get_name(plain, try_suffixes=(".weight", ".bias"))
    assert found, name
    return found


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    text = config.get("text_config", {})
    kind = text["model_type"] if text.get("model_type") == "mistral4" else config["model_type"]
    if kind == tiny_nemotron_h.KIND:
        return tiny_nemotron_h.like_others(config)
    return {**config, **text, "model_type": kind}


def is_text(name: str) -> bool:
    """Whether a GGUF file has this tensor of a folder; parts for images are files of their own."""
    return not name.startswith(_IMAGES)
