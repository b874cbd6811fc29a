"""The tensors of the tiny models, as llama.cpp's converter writes them to GGUF files. See tiny_gguf.py."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.support.models.tiny_gguf_keys import full_head_dim
from tests.support.models.tiny_gguf_names import EXPERT, architecture_of, gguf_name, is_text, text_part
from tests.support.models.tiny_models import NORMS_LESS_ONE

_NEIGHBOURS = (
    "llama",
    "granite",
    "granitehybrid",
    "smollm3",
    "mistral3",
)  # whose rope turns neighbouring values of a head


def convert(
    config: dict[str, Any], tensors: dict[str, np.ndarray], joined: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    config = text_part(config)
    for name, values in _stacked(tensors if joined else apart(config, tensors)).items():
        if name.endswith("in_proj_qkvz.weight") and not joined:
            yield from _split_inputs(config, gguf_name(config, name), values)
        elif is_text(name):
            yield gguf_name(config, name), in_llama_cpp(config, name, values)
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config)
    if config["model_type"] == "gemma4_text":
        part = rope["full_attention"]["partial_rotary_factor"]
        pairs = np.arange(full_head_dim(config) // 2)
        yield "rope_freqs.weight", np.where(pairs < part * len(pairs), 1, 1e30).astype(np.float32)
    for side in ("long", "short"):
        if factors := rope.get(f"{side}_factor"):
            yield f"rope_factors_{side}.weight", np.array(factors, np.float32)


def apart(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors of a folder; of latent attention keys and values apart; of the experts of GPT-OSS and Llama 4
    gate, up and down (experts, rows, columns), as views of what is stored, which has outputs as columns, in
    GPT-OSS those of gate and up by turns.
    """
    if "kv_lora_rank" in text_part(config):
        return _latent_apart(text_part(config), tensors)
    if config["model_type"] == "granitemoehybrid":
        return _gate_and_up_apart(tensors)
    if config["model_type"] not in ("gpt_oss", "llama4_text"):
        return tensors
    found: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if not (match := re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?", name)):
            found[name] = values
            continue
        end = "bias" if match[3] else "weight"
        by_rows = values if match[3] else values.swapaxes(1, 2)
        half = by_rows.shape[1] // 2
        gate, up = (by_rows[:, ::2], by_rows[:, 1::2])
        if config["model_type"] == "llama4_text":
            gate, up = by_rows[:, :half], by_rows[:, half:]
        parts = {"down": by_rows} if match[2] == "down" else {"gate": gate, "up": up}
        found |= {f"{match[1]}.{part}_proj.{end}": each for part, each in parts.items()}
    return found


def _gate_and_up_apart(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With the gate and the up that Granite's folders store as one, as views of that."""
    found: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if "input_linear" in name:
            half = values.shape[-2] // 2
            found[name.replace("input", "gate")] = values[..., :half, :]
            found[name.replace("input", "up")] = values[..., half:, :]
        else:
            found[name] = values
    return found


def _latent_apart(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With what makes keys (heads, rank, values) and values (heads, values, rank) of latents as two tensors,
    views of the one that is stored.
    """
    found: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            found[name] = values
            continue
        by_head = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
        plain = config["qk_nope_head_dim"]
        found[name.replace("kv_b", "k_b")] = by_head[:, :plain].swapaxes(1, 2)
        found[name.replace("kv_b", "v_b")] = by_head[:, plain:]
    return found


def _stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts, which lie one by one in folders, as one tensor."""
    whole: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in tensors.items():
        if match := EXPERT.fullmatch(name):
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = values
        else:
            whole[name] = values
    return whole | {name: np.stack([parts[i] for i in sorted(parts)]) for name, parts in stacks.items()}


def in_llama_cpp(config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    """A tensor as llama.cpp's converter writes it."""
    if config["model_type"] == "falcon_h1":
        values = _multiplied(config, name, values)
    architecture = architecture_of(config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    which = name.split(".")[-2]
    if architecture in _NEIGHBOURS and which in heads:
        parts = values.reshape(heads[which], 2, -1, *values.shape[1:])
        return parts.swapaxes(1, 2).reshape(values.shape)
    if name.endswith("conv.weight"):
        return values.squeeze(1)
    if "linear_attn." in name:
        return _of_delta_rule(config, name, values)
    if ".mamba." in name or ".mixer." in name:
        return _of_mamba(config, name, values)
    if config["model_type"] in NORMS_LESS_ONE and name.endswith("norm.weight"):
        return values + 1
    return values


def _split_inputs(config: dict[str, Any], name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Queries, keys and values, and gates, which Qwen3-Next's folders have by turns for each key head."""
    heads, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
    wide = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    by_head = values.reshape(heads, -1, values.shape[-1])
    parts = np.split(by_head, np.cumsum([key, key, wide]), axis=1)
    q, k, v, gate = (each.reshape(-1, values.shape[-1]) for each in parts)
    yield name.replace("ssm_in", "attn_qkv"), np.concatenate([q, k, v])
    yield name.replace("ssm_in", "attn_gate"), gate


def _multiplied(config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    """A tensor of Falcon-H1 times what config.json has for its product."""
    inner, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    gate, down = config["mlp_multipliers"]
    before, after = config["attention_in_multiplier"], config["attention_out_multiplier"]
    of_inputs = np.repeat(config["ssm_multipliers"], (inner, inner, shared, shared, config["mamba_n_heads"]))
    factors = {
        "q_proj": before, "k_proj": before * config["key_multiplier"], "v_proj": before, "o_proj": after,
        "mamba.in_proj": of_inputs[:, None] * config["ssm_in_multiplier"], "gate_proj": gate,
        "mamba.out_proj": config["ssm_out_multiplier"], "down_proj": down,
        "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    found = next((factor for part, factor in factors.items() if f"{part}.weight" in name), 1)
    return (values * found).astype(np.float32)


def _of_mamba(config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    """A tensor of Mamba-2: what heads have is a column, and groups are rows of the norm."""
    if name.endswith("A_log"):
        values = -np.exp(values)
    if name.endswith(("A_log", ".D")):
        return values[:, None]
    if name.endswith("norm.weight"):
        return values.reshape(config["mamba_n_groups"], -1)
    return values.squeeze(1) if name.endswith("conv1d.weight") else values


def _of_delta_rule(config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    """A tensor of the gated delta rule. For Qwen3.5, value heads are in the order of their place beside the
    key head that they share, then by key head.
    """
    if name.endswith("A_log"):
        values = -np.exp(values)
    if "conv1d" in name:
        values = values.squeeze(1)
    if name.endswith("norm.weight") or config["model_type"] == "qwen3_next":
        return values
    heads, wide = config["linear_num_key_heads"], config["linear_value_head_dim"]
    shared = config["linear_num_value_heads"] // heads
    if "out_proj" in name:
        return values.reshape(-1, heads, shared, wide).swapaxes(1, 2).reshape(values.shape)
    before = 2 * heads * config["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0
    tail = values[before:]
    by_head = tail.reshape(heads, shared, -1, *values.shape[1:])
    return np.concatenate([values[:before], by_head.swapaxes(0, 1).reshape(tail.shape)])


def _llama3_factors(config: dict[str, Any]) -> np.ndarray:
    rope = config["rope_parameters"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    waves = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / waves
    smooth = (turns - low) / (high - low or 1)  # Llama 4 has equal ones: nothing is between them
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    return np.where(turns > high, 1, np.where(turns < low, rope["factor"], between)).astype(np.float32)
