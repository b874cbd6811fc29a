"""Configurations of GGUF files and of folders, and the names of their tensors."""

import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from airllm.formats import Quantized
from airllm.models import ModelFileError, open_weights
from airllm.models.config import ModelConfig, Rope, config_of, open_config
from airllm.models.tensor_names import NamedTensors, layer_names, shared_names

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
GEMMA3 = {**GEMMA, "architecture": "gemma3", "qk_norm": True, "attention_scale": 1 / 16}
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
        {"architecture": "qwen3", "qk_norm": True, "head_dim": 32, "rope": Rope(1e4, 32),
         "attention_scale": 1 / sqrt(32)},
    ),
    "qwen3_moe": (
        {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "norm_topk_prob": True, "mlp_only_layers": []},
        {**EXPERTS, "architecture": "qwen3moe", "qk_norm": True, "expert_feed_forward": 48},
    ),
    "qwen3_moe, some layers": (
        {"model_type": "qwen3_moe", "num_local_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 48, "mlp_only_layers": [1], "decoder_sparse_step": 2},
        {**EXPERTS, "architecture": "qwen3moe", "qk_norm": True, "expert_feed_forward": 48,
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
        {"architecture": "qwen3", "qk_norm": True, "head_dim": 32, "rope": Rope(1e4, 32),
         "attention_scale": 1 / sqrt(32)},
    ),
    "qwen3moe": (
        "qwen3moe", {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 48},
        ["output.weight"],
        {**EXPERTS, "architecture": "qwen3moe", "qk_norm": True, "expert_feed_forward": 48},
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
    kept = {key: value for key, value in {**SIZES, **values}.items() if value != "left out"}
    (path / "config.json").write_text(json.dumps(kept))
    return path


def gguf_file(path: Path, name: str, values: dict[str, Any], tensors: list[str]) -> Path:
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


@pytest.mark.parametrize("what", FOLDERS)
def test_folders(tmp_path, what):
    values, expected = FOLDERS[what]
    assert open_config(folder(tmp_path, **values)) == replace(BASE, **expected)


@pytest.mark.parametrize("what", GGUFS)
def test_gguf_files(tmp_path, what):
    name, values, tensors, expected = GGUFS[what]
    assert open_config(gguf_file(tmp_path, name, values, tensors)) == replace(BASE, **expected)


def test_the_text_part_of_a_model_that_also_sees(tmp_path):
    values, expected = FOLDERS["gemma3_text"]
    whole = {"model_type": "gemma3", "text_config": {**SIZES, **values}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert open_config(tmp_path) == replace(BASE, **expected)


def test_null_switches_off_what_a_missing_key_leaves_on(tmp_path):
    plain = {"model_type": "gemma2", "head_dim": 16}
    config = open_config(folder(tmp_path, **plain))
    assert (config.attention_softcap, config.logit_softcap, config.windows[0]) == (50.0, 30.0, 4096)
    keys = ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window")
    config = open_config(folder(tmp_path, **plain, **dict.fromkeys(keys)))
    assert (config.attention_softcap, config.logit_softcap, config.windows) == (None, None, (None,) * 7)


def test_what_published_gemma3_files_leave_out(tmp_path):
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    config = open_config(tmp_path)
    assert (config.heads, config.kv_heads, config.head_dim, config.vocabulary) == (8, 4, 256, 262208)
    assert config.windows.count(None) == 5 and config.norm_eps == 1e-6 and config.tied_embeddings
    assert config.rope == Rope(1e6, 256, scaling=text["rope_scaling"]) and config.local_rope == Rope(1e4, 256)


def test_the_real_model(real_file):
    with open_weights(real_file) as weights:
        config = config_of(weights)
        assert config == ModelConfig(
            architecture="llama",
            layers=30,
            width=576,
            heads=9,
            kv_heads=3,
            head_dim=64,
            feed_forward=1536,
            vocabulary=49152,
            context=8192,
            rope=Rope(1e5, 64, interleaved=True),
            norm_eps=float(np.float32(1e-5)),
            activation="silu",
            attention_scale=0.125,
            windows=(None,) * 30,
            tied_embeddings=True,
        )
        named = NamedTensors(weights, config)
        ours = [*shared_names(config), *(name for i in range(30) for name in layer_names(config, i))]
        assert sorted(map(named.file_name, ours)) == sorted(weights.names())
        assert named.tensor("layers.29.attention.k").shape == (192, 576)
        assert named.span("output_norm") == weights.span("output_norm.weight")
    assert config.rope_of(3) is config.rope and not config.is_moe(3)


def test_rotations_of_gemma3(tmp_path):
    config = open_config(folder(tmp_path, **FOLDERS["gemma3_text"][0]))
    assert [config.rope_of(i).theta for i in range(7)] == [1e4] * 5 + [1e6, 1e4]


# ------------------------------------------------------------------------------------------- tensor names

_ATTENTION = ["input_layernorm", *(f"self_attn.{part}_proj" for part in "qkvo")]
_LLAMA = [*_ATTENTION, "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
_NORMS = ["self_attn.q_norm", "self_attn.k_norm"]
_GEMMA_NORMS = ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
# What transformers 5.23 stores for one layer of each kind of model.
STORED = {
    "llama": _LLAMA,
    "qwen3": [*_LLAMA, *_NORMS],
    "gemma2": [*_LLAMA, *_GEMMA_NORMS],
    "gemma3_text": [*_LLAMA, *_GEMMA_NORMS, *_NORMS],
    "phi3": ["input_layernorm", "self_attn.qkv_proj", "self_attn.o_proj", "post_attention_layernorm",
             "mlp.gate_up_proj", "mlp.down_proj"],
    "mixtral": [*_ATTENTION, "post_attention_layernorm", "block_sparse_moe.gate",
                *(f"block_sparse_moe.experts.{i}.w{j}" for i in range(8) for j in (1, 2, 3))],
    "qwen3_moe": [*_ATTENTION, *_NORMS, "post_attention_layernorm", "mlp.gate",
                  *(f"mlp.experts.{i}.{part}_proj" for i in range(8) for part in ("gate", "up", "down"))],
}  # fmt: skip


@pytest.mark.parametrize("prefix", ("model.", "language_model.model.", "model.language_model."))
@pytest.mark.parametrize("what", STORED)
def test_names_in_folders(tmp_path, what, prefix):
    names = [f"layers.3.{name}.weight" for name in STORED[what]]
    every = [f"{prefix}{name}" for name in ("embed_tokens.weight", "norm.weight", *names)]
    save_file({name: np.zeros(1, np.float32) for name in every}, tmp_path / "model.safetensors")
    with open_weights(folder(tmp_path, **{**FOLDERS[what][0], "tie_word_embeddings": True})) as weights:
        config = config_of(weights)
        named = NamedTensors(weights, config)
        ours = [*shared_names(config), *layer_names(config, 3)]
        assert sorted(map(named.file_name, ours)) == sorted(every)
        assert all(name in named for name in ours) and "layers.4.attention.norm" not in named
        head = {"language_model.model.": "language_model.lm_head.weight"}.get(prefix, "lm_head.weight")
        assert named.file_name("output") == head


def test_biases_in_folders(tmp_path):
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    weights = open_weights(folder(tmp_path, **FOLDERS["qwen2"][0]))
    config = config_of(weights)
    biases = [name for name in layer_names(config, 0) if name.endswith("_bias")]
    found = [NamedTensors(weights, config).file_name(name) for name in biases]
    assert found == [f"model.layers.0.self_attn.{part}_proj.bias" for part in "qkv"]


@pytest.mark.parametrize("what", GGUFS)
def test_names_in_gguf_files_are_known_to_its_package(tmp_path, what):
    name, values, tensors, _ = GGUFS[what]
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    known = {gguf.TENSOR_NAMES[tensor].format(bid=2) for tensor in gguf.MODEL_TENSORS[kind]}
    with open_weights(gguf_file(tmp_path, name, values, tensors)) as weights:
        config = config_of(weights)
        named = NamedTensors(weights, config)
        found = {named.file_name(each).rsplit(".", 1)[0] for each in layer_names(config, 2)}
        found |= {named.file_name(each).rsplit(".", 1)[0] for each in shared_names(config)}
    dense = {f"blk.2.{part}" for part in ("ffn_gate", "ffn_up", "ffn_down")}
    stacks = {f"{each}_exps" for each in dense} | {"blk.2.ffn_gate_inp"}
    unused = {"rope_freqs", "rope_factors_long", "rope_factors_short", "blk.2.attn_rot_embd", "output"}
    unused |= dense if config.experts else stacks
    unused |= {"blk.2.attn_q", "blk.2.attn_k", "blk.2.attn_v"} if config.fused else {"blk.2.attn_qkv"}
    assert found <= known and known - found <= unused


def test_an_expert_is_a_part_of_its_stack(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for key, value in {**GGUF_SIZES, "expert_count": 3, "expert_used_count": 2}.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"llama.{key}", value)
    stack = np.random.default_rng(1).integers(0, 50, (3, 4, 68), dtype=np.uint8)
    writer.add_tensor("token_embd.weight", np.zeros((50, 64), np.float32))
    writer.add_tensor("blk.0.ffn_up_exps.weight", stack, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_down_exps.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = open_weights(tmp_path / "model.gguf")
    named = NamedTensors(weights, config_of(weights))
    for i in range(3):
        found, span = named.tensor(f"layers.0.experts.{i}.up"), named.span(f"layers.0.experts.{i}.up")
        assert isinstance(found, Quantized) and np.array_equal(found.data, stack[i])
        whole = weights.tensor("blk.0.ffn_up_exps.weight")
        assert isinstance(whole, Quantized) and np.shares_memory(found.data, whole.data)
        assert span.map[span.start : span.start + span.nbytes] == stack[i].tobytes()
    for name, message in {
        "layers.0.experts.3.up": r"tensor blk.0.ffn_up_exps.weight has shape \(3, 4, 64\), expected \(3, r",
        "layers.0.experts.0.down": r"tensor blk.0.ffn_down_exps.weight has shape \(4, 4\), expected \(3, r",
        "layers.1.attention.q": "tensor blk.1.attn_q.weight is missing, expected one of token_embd.weight",
    }.items():
        with pytest.raises(ModelFileError, match=message):
            named.tensor(name)
    for name in ("layers.0.attention.z", "layers.x.attention.q", "nothing"):
        with pytest.raises(KeyError):
            named.tensor(name)


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("values", "message"),
    (
        (
            {"model_type": "mamba"},
            "key model_type has value 'mamba', expected one of llama, mistral, mixtral",
        ),
        ({"model_type": "left out"}, "key model_type is missing, expected a text"),
        ({"model_type": ["llama"]}, r"key model_type has value \['llama'\], expected a text"),
        (
            {"hidden_size": "left out"},
            "key hidden_size is missing, expected a whole number from 1 to 16777216",
        ),
        ({"hidden_size": "64"}, "key hidden_size has value '64', expected a whole number"),
        ({"hidden_size": 64.0}, "key hidden_size has value 64.0, expected a whole number"),
        ({"hidden_size": True}, "key hidden_size has value True, expected a whole number"),
        ({"hidden_size": 0}, "key hidden_size has value 0, expected a whole number"),
        ({"num_hidden_layers": 1 << 40}, "key num_hidden_layers has value 1099511627776, .* from 1 to 4096"),
        (
            {"num_key_value_heads": 3},
            "key num_key_value_heads has value 3, expected a divisor of the 4 heads",
        ),
        ({"head_dim": 15}, "key head_dim has value 15, expected an even number"),
        ({"rms_norm_eps": -1.0}, "key rms_norm_eps has value -1.0, expected a number above 0"),
        ({"rms_norm_eps": float("nan")}, "key rms_norm_eps has value nan, expected a number above 0"),
        ({"rope_theta": float("inf")}, "key rope_theta has value inf, expected a number above 0"),
        ({"hidden_act": "relu"}, "key hidden_act has value 'relu', expected one of silu, swish, gelu_py"),
        ({"mlp_bias": True}, "key mlp_bias is true, expected false"),
        ({"tie_word_embeddings": 1}, "key tie_word_embeddings has value 1, expected true or false"),
        ({"rope_scaling": "linear"}, "key rope_scaling has value 'linear', expected an object"),
        (
            {"rope_scaling": {"type": "ntk"}},
            "key rope_scaling.rope_type has value 'ntk', expected one of def",
        ),
        (
            {"rope_parameters": {"rope_theta": "x"}},
            "key rope_parameters.rope_theta has value 'x', expected a nu",
        ),
        (
            {"partial_rotary_factor": 2},
            "key partial_rotary_factor makes 32 values turn, expected an even number",
        ),
        ({"model_type": "mixtral"}, "key num_local_experts is missing, expected a whole number"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "key num_experts_per_tok has value 3, expected at most the 2 experts",
        ),
        (
            {"model_type": "gemma2", "layer_types": ["full_attention"]},
            r"key layer_types has 1 items \['full_attention'\], expected 7 of full_attention, sl",
        ),
        (
            {"model_type": "gemma2", "layer_types": [3] * 7},
            r"key layer_types has 7 items \['3'\], expected 7 of",
        ),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": 3}},
            "key rope_parameters.full_attention has value 3, expected an object",
        ),
    ),
)
def test_a_broken_folder_names_file_and_key(tmp_path, values, message):
    with pytest.raises(ModelFileError, match=f"config.json: {message}"):
        open_config(folder(tmp_path, **{"model_type": "llama", **values}))


def test_a_folder_without_configuration(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json"):
        open_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    (
        (
            "mamba",
            {},
            "general.architecture has value 'mamba', expected one of llama, qwen2, qwen3, qwen3moe",
        ),
        ("llama", {"block_count": "left out"}, "llama.block_count is missing, expected a whole number"),
        (
            "llama",
            {"block_count": 0},
            "llama.block_count has value 0, expected a whole number from 1 to 4096",
        ),
        (
            "llama",
            {"attention.head_count": [4] * 7},
            "llama.attention.head_count has value .*expected a whole",
        ),
        (
            "llama",
            {"attention.head_count_kv": 3},
            "llama.attention.head_count_kv has value 3, expected a div",
        ),
        ("llama", {"attention.value_length": 8}, "llama.attention.value_length differs from key_length, exp"),
        ("llama", {"rope.dimension_count": 18}, "llama.rope.dimension_count makes 18 values turn, expected"),
        (
            "llama",
            {"rope.scaling.type": "ntk"},
            "llama.rope.scaling.type has value 'ntk', expected one of none",
        ),
        ("llama", {"rope.scaling.type": "linear"}, "llama.rope.scaling.factor is missing, expected a number"),
        ("llama", {"expert_count": 8}, "llama.expert_used_count is missing, expected a whole number"),
        (
            "gemma3",
            {"attention.sliding_window_pattern": [True]},
            "sliding_window_pattern has 1 items, expected 7",
        ),
    ),
)
def test_a_broken_gguf_file_names_file_and_key(tmp_path, name, values, message):
    with pytest.raises(ModelFileError, match=f"model.gguf: key {message}|model.gguf: key .*{message}"):
        open_config(gguf_file(tmp_path, name, values, []))


def test_an_embedding_of_another_width(tmp_path):
    path = gguf_file(tmp_path, "llama", {"embedding_length": 32}, [])
    with pytest.raises(
        ModelFileError, match=r"token_embd.weight has shape \(50, 64\), expected \(tokens, 32\)"
    ):
        open_config(path)
