"""What a configuration may not say: the error names the file, the key, and what was expected."""

import pytest

from airllm.architectures import open_config
from airllm.files import ModelFileError
from tests.support.models.config_files import folder, gguf_file


@pytest.mark.parametrize(
    ("values", "message"),
    (
        (
            {"model_type": "mamba"},
            "key model_type has value 'mamba', expected one of bert, cohere2, ",
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
        ({"rms_norm_eps": 10**400}, "key rms_norm_eps has value 1000.*, expected a number above 0"),
        (
            {"num_attention_heads": 128, "num_key_value_heads": 128},
            "key head_dim is missing, expected it, where 128 heads share a width of 64",
        ),
        (
            {"partial_rotary_factor": 1e308},
            "key partial_rotary_factor rotates 16777216 values, expected an even number of at most",
        ),
        (
            {"rope_parameters": {"rope_type": {}}},
            r"key rope_parameters.rope_type has value \{\}, expected one of default, linear",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": "x"}},
            "key rope_parameters.beta_fast has value 'x', expected a number above 0",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": []}},
            r"key rope_parameters.mscale has value \[\], expected a number above 0",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 2.0,
                    "low_freq_factor": 3.0,
                    "high_freq_factor": 2,
                }
            },
            "key rope_parameters.low_freq_factor is too large, expected at most high_freq_factor, which is",
        ),
        ({"hidden_act": "relu"}, "key hidden_act has value 'relu', expected one of silu, swish, gelu_py"),
        ({"mlp_bias": 1}, "key mlp_bias has value 1, expected true or false"),
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
            "key partial_rotary_factor rotates 32 values, expected an even number",
        ),
        (
            {
                "model_type": "qwen2_moe",
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 8,
            },
            "key shared_expert_intermediate_size is missing, expected a whole number",
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
        (
            {"model_type": "olmo3", "rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
            "key rope_parameters.sliding_attention.rope_type has value 'yarn', expected one of default",
        ),
        (
            {"model_type": "olmo3", "rope_parameters": {"sliding_attention": {"partial_rotary_factor": 2}}},
            "key partial_rotary_factor rotates 32 values, expected an even number",
        ),
        (
            {"rope_parameters": {"mrope_section": [4, -1]}},
            r"key rope_parameters.mrope_section has value \[4, -1\], expected at most 4 whole",
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
            "general.architecture has value 'mamba', expected one of bert, cohere2, ",
        ),
        ("llama", {"block_count": "left out"}, "llama.block_count is missing, expected a whole number"),
        (
            "llama",
            {"block_count": 0},
            "llama.block_count has value 0, expected a whole number from 1 to 4096",
        ),
        (
            "llama",
            {"attention.head_count": [4] * 5},
            "llama.attention.head_count has 5 items .*expected [0-9]+ whole numbers from 1",
        ),
        (
            "llama",
            {"attention.head_count_kv": 3},
            "llama.attention.head_count_kv has value 3, expected a div",
        ),
        ("llama", {"attention.value_length": 8}, "llama.attention.value_length differs from key_length, exp"),
        (
            "llama",
            {"attention.head_count": 65, "attention.key_length": "left out"},
            "llama.attention.key_length is missing, expected it, where 65 heads share a width of 64",
        ),
        ("llama", {"rope.dimension_count": 18}, "llama.rope.dimension_count rotates 18 values, expected"),
        (
            "llama",
            {"rope.scaling.type": "ntk"},
            "llama.rope.scaling.type has value 'ntk', expected one of none",
        ),
        ("llama", {"rope.scaling.type": "linear"}, "llama.rope.scaling.factor is missing, expected a number"),
        ("llama", {"expert_count": 8}, "llama.expert_used_count is missing, expected a whole number"),
        (
            "llama4",
            {"attention.sliding_window": 0},
            "llama4.attention.sliding_window has value 0, expected the width of chunks",
        ),
        (
            "gemma3",
            {"attention.sliding_window_pattern": [True]},
            "sliding_window_pattern has 1 items, expected 7",
        ),
        (
            "gemma3",
            {"attention.sliding_window": [8] * 7},
            "gemma3.attention.sliding_window has value .*expected a whole number",
        ),
        ("llama", {"expert_count": [8] * 7}, "llama.expert_count has value .*expected a whole number"),
        ("llama", {"expert_count": False}, "llama.expert_count has value False, expected a whole number"),
        ("llama", {"rope.scaling.factor": 0.0}, "llama.rope.scaling.factor has value 0.0, expected a number"),
        (
            "llama",
            {"rope.scaling.factor": [2.0] * 2},
            "llama.rope.scaling.factor has value .*expected a number above 0",
        ),
        (
            "glm4moe",
            {"expert_count": 8, "expert_used_count": 2, "expert_gating_func": 3},
            "glm4moe.expert_gating_func has value 3, expected one of 1, 2",
        ),
        (
            "glm4moe",
            {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 3},
            "glm4moe.expert_group_count has value 3, expected a divisor of the 8 experts",
        ),
        (
            "glm4moe",
            {
                "expert_count": 8,
                "expert_used_count": 5,
                "expert_group_count": 4,
                "expert_group_used_count": 2,
            },
            "glm4moe.expert_group_used_count has value 2, expected groups of 2 that have 5 experts",
        ),
        (
            "glm4moe",
            {"nextn_predict_layers": 7},
            "glm4moe.nextn_predict_layers has value 7, expected a whole",
        ),
        (
            "qwen2vl",
            {"rope.dimension_sections": [4, -1, 2, 2]},
            "qwen2vl.rope.dimension_sections has value .*expected at most 4 whole",
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


def test_layers_that_guess_further_tokens_are_left_out(tmp_path):
    """block_count counts them."""
    path = gguf_file(tmp_path, "glm4moe", {"nextn_predict_layers": 1}, [])
    assert open_config(path).layers == 6
