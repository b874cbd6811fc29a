"""The tiny models as GGUF files, as llama.cpp's converter would write them."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from airllm.formats import FORMATS
from tests.support.models import tiny_nemotron_h
from tests.support.models.stored import scales, with_scales
from tests.support.models.tiny_models import (
    K_CONFIG,
    K_MODEL,
    NORMS_LESS_ONE,
    VOCABULARY,
    random_bits,
    read_folder,
)

_BLOCKS = (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1)
_K_BLOCKS = ("q4_k", "q6_k", "q5_k", "iq4_nl", "q3_k", "q2_k")


def write_gguf(
    name: str, path: Path, stored: str = "float", decoded: bool = False, joined: bool = False, **split: Any
) -> Path:
    """A folder as a GGUF file. Matrices are in float32; if `stored` is "blocks" they are in several block
    formats; if it is "mxfp4" all experts are. `decoded`: the values of those blocks, in float32. `joined`:
    as older converters wrote latent attention and the inputs of Qwen3-Next's delta rule. `split`: options of
    GGUFWriter that split it into parts, which have names of their own.
    """
    if name == K_MODEL:
        return write_k_model(path)
    config, tensors = read_folder(name)
    architecture = architecture_of(config)
    writer = gguf.GGUFWriter(path, architecture, **split)
    _write_config(writer, _text_part(config), joined)
    _write_vocabulary(writer)
    for each, values in _converted(config, tensors, joined):
        of = _IN_ONE.sub("ssm_in.weight", each) if architecture == "qwen3next" else each
        kind = _KINDS[stored](of, values.shape)
        _add_tensor(writer, each, gguf.quants.quantize(values, kind), kind, decoded)
    return _written(writer, path)


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: np.ndarray, kind: Kind, decoded: bool) -> None:
    if decoded:
        data, kind = gguf.quants.dequantize(data, kind), Kind.F32
    writer.add_tensor(name, data, raw_dtype=kind)


def block_kind(name: str, shape: tuple[int, ...]) -> Kind:
    """The format of a tensor: vectors, also those of all experts in one tensor, routers and short
    convolutions stay float32, as llama.cpp leaves them.
    """
    plain = name.endswith((".bias", "conv.weight", "conv1d.weight", "ssm_a", "ssm_d", "norm.weight"))
    plain = plain or "ffn_gate_inp" in name
    if len(shape) == 1 or plain:
        return Kind.F32
    return _BLOCKS[zlib.crc32(name.encode()) % len(_BLOCKS)]


def _kind_of_experts(name: str, shape: tuple[int, ...]) -> Kind:
    return Kind.MXFP4 if name.endswith("_exps.weight") else Kind.F32


_KINDS = {"float": lambda *_: Kind.F32, "blocks": block_kind, "mxfp4": _kind_of_experts}


def architecture_of(config: dict[str, Any]) -> str:
    """general.architecture of the folder's GGUF file."""
    kind = _text_part(config)["model_type"]
    if kind == tiny_nemotron_h.KIND and tiny_nemotron_h.has_experts(config):
        return "nemotron_h_moe"
    return _ARCHITECTURES[kind]


def gguf_name(config: dict[str, Any], name: str) -> str:
    """How a GGUF file calls a tensor of a folder: an expert has the name of its stack."""
    architecture = architecture_of(config)
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(kind, _text_part(config)["num_hidden_layers"])
    plain = _EXPERT.sub(r"\1.\3", name.replace("language_model.", ""))
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


_ARCHITECTURES = {
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
_NEIGHBOURS = (
    "llama",
    "granite",
    "granitehybrid",
    "smollm3",
    "mistral3",
)  # whose rope turns neighbouring values of a head
_SCALES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}  # Gemma 4's
_OF_GRANITE = re.compile(r"\.(shared_mlp|block_sparse_moe)\.(\w+)_linear\.weight$")
_IN_ONE = re.compile(r"attn_(qkv|gate)\.weight$")  # of what folders of Qwen3-Next have as one tensor
_OF_EXPERT = {"1": "gate_proj", "3": "up_proj", "2": "down_proj"}  # LFM2's
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
_IMAGES = ("visual.", "model.visual.", "vision_tower.", "multi_modal_projector.")


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    text = config.get("text_config", {})
    kind = text["model_type"] if text.get("model_type") == "mistral4" else config["model_type"]
    if kind == tiny_nemotron_h.KIND:
        return tiny_nemotron_h.like_others(config)
    return {**config, **text, "model_type": kind}


def is_text(name: str) -> bool:
    """Whether a GGUF file has this tensor of a folder; parts for images are files of their own."""
    return not name.startswith(_IMAGES)


def apart(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors of a folder; of latent attention keys and values apart; of the experts of GPT-OSS and Llama 4
    gate, up and down (experts, rows, columns), as views of what is stored, which has outputs as columns, in
    GPT-OSS those of gate and up by turns.
    """
    if "kv_lora_rank" in _text_part(config):
        return _latent_apart(_text_part(config), tensors)
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


def _converted(
    config: dict[str, Any], tensors: dict[str, np.ndarray], joined: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    config = _text_part(config)
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
        pairs = np.arange(_full_head_dim(config) // 2)
        yield "rope_freqs.weight", np.where(pairs < part * len(pairs), 1, 1e30).astype(np.float32)
    for side in ("long", "short"):
        if factors := rope.get(f"{side}_factor"):
            yield f"rope_factors_{side}.weight", np.array(factors, np.float32)


def _stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts, which lie one by one in folders, as one tensor."""
    whole: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in tensors.items():
        if match := _EXPERT.fullmatch(name):
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


def _write_config(writer: gguf.GGUFWriter, config: dict[str, Any], joined: bool = False) -> None:
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


def _full_head_dim(config: dict[str, Any]) -> int:
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
    return _full_head_dim(config)


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


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    """A byte-level one: the letters from "!" on, and two that are merged of others."""
    letters = [chr(33 + i) for i in range(VOCABULARY - 4)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*letters, "Ġ", "AB", "ABC", "<end>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCABULARY - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["A B", "AB C"])
    writer.add_eos_token_id(VOCABULARY - 1)


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# -------------------------------------------------------------------------------------- blocks of 256 values


def k_tensors(formats: tuple[str, ...] = _K_BLOCKS) -> Iterator[tuple[str, str, np.ndarray]]:
    """Name in a GGUF file, format, and data: the matrices of K_MODEL, or of one in other formats."""
    shapes = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256, "ffn_gate": 256, "ffn_up": 256,
              "ffn_down": 256}  # fmt: skip
    names = {"token_embd.weight": VOCABULARY} | {f"blk.0.{name}.weight": n for name, n in shapes.items()}
    for i, (name, rows) in enumerate(names.items()):
        of = FORMATS[form := formats[i % len(formats)]]
        count = 256 // of.values
        data = random_bits(f"{K_MODEL}.{name}", rows * count * of.bytes).reshape(rows, count, of.bytes)
        ones = np.ones((rows, count, scales(form)))
        spread = gguf.quants.dequantize(
            with_scales(data, form, ones).reshape(rows, -1), Kind(of.ggml_type)
        ).std()
        yield name, form, with_scales(data, form, ones / 12 / spread).reshape(rows, -1)


def write_k_model(path: Path, formats: tuple[str, ...] = _K_BLOCKS, decoded: bool = False) -> Path:
    """A Llama whose matrices are random blocks of these formats by turns. `decoded`: as in write_gguf()."""
    writer = gguf.GGUFWriter(path, "llama")
    _write_config(writer, {**K_CONFIG, "model_type": "llama"})
    _write_vocabulary(writer)
    for name, form, data in k_tensors(formats):
        _add_tensor(writer, name, data, Kind(FORMATS[form].ggml_type), decoded)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(256, np.float32))
    return _written(writer, path)
