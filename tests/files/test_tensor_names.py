"""The names of tensors, in folders and in GGUF files."""

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from airllm.architectures import config_of
from airllm.architectures.tensor_names import NamedTensors, layer_names, shared_names
from airllm.files import ModelFileError, open_weights
from airllm.formats import Quantized
from tests.support.models.config_files import FOLDERS, GGUF_SIZES, GGUFS, folder, gguf_file

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
