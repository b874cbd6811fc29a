"""Nemotron-H: which layer is what, by config.json and by GGUF files, and models that lack a kind of layer."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from airllm.architectures import config_of, open_config
from airllm.architectures.model_config import FEED_FORWARD, MIXER, ModelConfig
from airllm.convert.quantize import quantize
from airllm.engine.parallel.tensor_parallel import Shard
from airllm.files import ModelFileError, open_weights
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.files.test_quantize import with_tokenizer
from tests.support.engines import device_models
from tests.support.models import config_files
from tests.support.models.tiny_models import read_folder, texts

NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"  # Nemotron 3 Nano, as its makers have it
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4}
DENSE = {**MAMBA, "model_type": "nemotron_h", "layer_norm_epsilon": 0.5, "mlp_hidden_act": "relu2"}
EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "n_shared_experts": 1,
}
IN_GGUF = {
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.conv_kernel": 4,
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 48,
}


def kinds(c: ModelConfig) -> str:
    """The letters of the layers."""
    letters = ""
    for layer in range(c.layers):
        of = "M" if c.is_recurrent(layer) else "*"
        letters += of if c.has_mixer(layer) else "E" if c.is_moe(layer) else "-"
        assert (c.layer(layer).mixer is None) == (c.halves[layer] == FEED_FORWARD)
    return letters


def gguf_of(tmp_path, pattern, heads=2, **values):
    count = {
        "block_count": len(pattern),
        "feed_forward_length": [32 * (each in "E-") for each in pattern],
        "attention.head_count_kv": [heads * (each == "*") for each in pattern],
    }
    having = [f"blk.{i}.ssm_in.weight" for i, each in enumerate(pattern) if each == "M"]
    return config_files.gguf_file(tmp_path, "nemotron_h_moe", {**IN_GGUF, **count, **values}, having)


def test_layers_are_those_of_the_pattern_and_of_the_file(tmp_path):
    values = {**DENSE, **EXPERTS, "hybrid_override_pattern": NANO, "num_hidden_layers": 52}
    folder = open_config(config_files.folder(tmp_path, **values))
    with open_weights(gguf_of(tmp_path, NANO)) as weights:
        file = config_of(weights)
    assert kinds(folder) == kinds(file) == NANO
    assert folder.architecture == file.architecture == "nemotron_h_moe"
    for c in (folder, file):
        assert (c.expert_scores, c.shared_expert, c.shared_gate, c.gated) == ("sigmoid", 48, False, False)
        assert (c.norm_eps, c.feed_forward, c.expert_feed_forward, c.activation) == (0.5, 32, 32, "relu2")
        assert all(c.nope_layers) and c.expert_latent == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    (
        ({"hybrid_override_pattern": "M-*"}, "M-*"),
        ({"layers_block_type": ["mamba", "mlp", "attention"]}, "M-*"),  # as files were written in 2025
        ({"layers_block_type": ["linear_attention", "moe", "mlp", "full_attention"], **EXPERTS}, "ME-*"),
    ),
)
def test_names_of_kinds(tmp_path, values, expected):
    """Their number is that of the layers, as in transformers; num_hidden_layers is 7 here."""
    found = open_config(config_files.folder(tmp_path, **DENSE, **values, attention_head_dim=32))
    assert kinds(found) == expected and found.head_dim == 32
    assert found.feed_forward == 96


@pytest.mark.parametrize(
    ("values", "message"),
    (
        ({}, "key hybrid_override_pattern is missing, expected a text"),
        ({"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern has 3 items M-X, expected some of the"),
        ({"hybrid_override_pattern": ""}, "hybrid_override_pattern has 0 items"),
        (
            {"layers_block_type": ["mlp", {}]},
            "layers_block_type has 2 items .*, expected some of linear_a",
        ),
        (
            {"layers_block_type": "mlp"},
            "layers_block_type has value 'mlp', expected some of linear_att",
        ),
        ({"hybrid_override_pattern": "M-", "mlp_hidden_act": "silu"}, "mlp_hidden_act has value 'silu', exp"),
        ({"hybrid_override_pattern": "M-", "mamba_hidden_act": "relu"}, "mamba_hidden_act has value 'relu'"),
        ({"hybrid_override_pattern": "M-", "use_bias": True}, "key use_bias is true, expected false"),
        ({"hybrid_override_pattern": "M-", "n_groups": 3}, "n_groups has value 3, expected a divisor of the"),
    ),
)
def test_what_is_refused(tmp_path, values, message):
    with pytest.raises(ModelFileError, match=message):
        open_config(config_files.folder(tmp_path, **{**DENSE, **values}))


def test_layers_that_guess_further_tokens_are_not_used(tmp_path):
    """The last layer of such a file has attention and experts; the lists count it."""
    widths = [32 * (each == "E") for each in "ME*"] + [32]
    values = {
        "block_count": 4,
        "nextn_predict_layers": 1,
        "feed_forward_length": widths,
        "attention.head_count_kv": [0, 0, 2, 2],
        "attention.layer_norm_rms_epsilon": "left out",
        "attention.layer_norm_epsilon": 0.25,  # which files have without the other, or beside it
    }
    with open_weights(gguf_of(tmp_path, "ME*", **values)) as weights:
        found = config_of(weights)
    assert (kinds(found), found.kv_heads, found.norm_eps) == ("ME*", 2, 0.25)


def test_a_file_must_list_the_widths(tmp_path):
    message = r"nemotron_h_moe.feed_forward_length has value 32, expected a list"
    weights = open_weights(gguf_of(tmp_path, "ME*", feed_forward_length=32))
    with weights, pytest.raises(ModelFileError, match=message):
        config_of(weights)


def test_a_file_cannot_have_dense_feed_forwards_beside_experts(tmp_path):
    folder = with_tokenizer("nemotron_h_mixed", tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"the model's moe_layers, .* cannot be stored in a GGUF file"):
        quantize(folder, tmp_path / "model.gguf", "f32")


# ----------------------------------------------------------------------------- models without a kind of layer


def some_layers(name, layers, path):
    """A folder that has some layers of a tiny model."""
    config, tensors = read_folder(name)
    config["layers_block_type"] = [config["layers_block_type"][layer] for layer in layers]
    places = {f"backbone.layers.{layer}.": f"backbone.layers.{i}." for i, layer in enumerate(layers)}
    found = {}
    for each, values in tensors.items():
        before, after = next(((a, b) for a, b in places.items() if each.startswith(a)), ("", ""))
        if before or "layers" not in each:
            found[after + each.removeprefix(before)] = values
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(found, path / "model.safetensors")
    return path, {each: values.astype(np.float64) for each, values in found.items()}


def rms(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-4) * weight


def attended(x, t):
    q, k, v = (x @ t[f"backbone.layers.0.mixer.{part}_proj.weight"].T for part in "qkv")
    q, k, v = (each.reshape(len(x), -1, 16).swapaxes(0, 1) for each in (q, k, v))
    scores = q @ k.repeat(2, axis=0).swapaxes(1, 2) / 4
    scores = np.where(np.tril(np.ones(scores.shape[1:])), np.exp(scores), 0)
    found = scores / scores.sum(axis=-1, keepdims=True) @ v.repeat(2, axis=0)
    return found.swapaxes(0, 1).reshape(len(x), -1) @ t["backbone.layers.0.mixer.o_proj.weight"].T


@pytest.mark.parametrize("backend", ("cpp", *device_models.BACKENDS))
def test_without_mamba(backend, tmp_path):
    """In float64: attention that knows no positions, then a feed-forward of squared ReLUs."""
    path, t = some_layers("nemotron_h_mixed", [0, 1], tmp_path / "model")
    text = texts()[0]
    x = t["backbone.embeddings.weight"][text]
    x = x + attended(rms(x, t["backbone.layers.0.norm.weight"]), t)
    up = rms(x, t["backbone.layers.1.norm.weight"]) @ t["backbone.layers.1.mixer.up_proj.weight"].T
    x = x + np.maximum(up, 0) ** 2 @ t["backbone.layers.1.mixer.down_proj.weight"].T
    wanted = rms(x, t["backbone.norm_f.weight"]) @ t["lm_head.weight"].T
    with LayerWiseInferenceEngine(path, backend=device_models.running(backend), cache_dtype="f32") as engine:
        cache = engine.new_cache()
        found = np.concatenate(
            [engine.forward(text[:30], cache, all_positions=True)]
            + [engine.forward([token], cache)[None] for token in text[30:]]
        )
        assert engine.config.halves == (MIXER, FEED_FORWARD) and not engine.config.recurrent
        assert bool(engine.model.on_device) == (backend != "cpp")
        assert backend != "cpp" or "halves" in engine.model.fused.why_not
    assert np.abs(found - wanted).max() < 1e-5 * np.ptp(wanted)
    with pytest.raises(ValueError, match=r"expected 1: nemotron_h has layers that are a mixer or a feed-f"):
        Shard(open_config(path), SimpleNamespace(size=2, rank=0))


def test_without_attention(tmp_path):
    """There are states, and no keys and values."""
    path, _ = some_layers("nemotron_h", [0, 1], tmp_path / "model")
    text = texts()[0]
    with LayerWiseInferenceEngine(path, backend="cpp", cache_dtype="f32") as engine:
        wanted, cache = engine.forward(text, all_positions=True), engine.new_cache()
        engine.forward(text[:-3], cache)
        found = np.stack([engine.forward([token], cache) for token in text[-3:]])
        assert cache.layout.token_bytes() == 0 and engine.memory_estimate().kv_cache > 0
    np.testing.assert_allclose(found, wanted[-3:], atol=1e-5 * np.ptp(wanted))
