"""Configurations of GGUF files and of folders."""

import json
from dataclasses import replace

import numpy as np
import pytest

from airllm.architectures import config_of, open_config
from airllm.architectures.layer_spec import Rope
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.tensor_names import NamedTensors, layer_names, shared_names
from airllm.files import open_weights
from tests.support.models.config_files import BASE, FOLDERS, GGUFS, SIZES, folder, gguf_file


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


def test_a_shared_expert_is_as_wide_as_the_feed_forward_part_where_a_file_does_not_say(tmp_path):
    values = {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 8}
    assert open_config(gguf_file(tmp_path, "qwen2moe", values, [])).shared_expert == 96


@pytest.mark.parametrize(
    ("scaling", "tokens"),
    (
        (None, 32768),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 32768),
        ({"rope_type": "linear", "factor": 8.0}, 32768),  # such files say the length after stretching
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 8192},
            65536,
        ),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": None}, 65536),
    ),
)  # fmt: skip
def test_the_longest_text_counts_what_the_rotation_is_stretched_to(tmp_path, scaling, tokens):
    values = {"model_type": "llama", "max_position_embeddings": 32768, "rope_scaling": scaling}
    assert open_config(folder(tmp_path, **values)).trained_context == tokens
