"""Models of random weights: what `gguf` reads in the files, and what the engine makes of them."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

from airllm.convert.mixes import TARGETS
from airllm.layer_engine import LayerWiseInferenceEngine
from benchmarks import synthetic_models
from benchmarks.hybrid_models import Convolutions, DeltaRules
from benchmarks.synthetic_families import DeepSeek, Gemma4, GptOss
from benchmarks.synthetic_models import SHAPES, Shape, write_model
from tests.support.models import tiny_gguf, tiny_models

SMALL = Shape(256, 2, 512, 4, 2, 300, context=512)
EXPERTS = replace(SMALL, experts=4, experts_used=2)
DEEPSEEK = replace(
    EXPERTS,
    kv_heads=1,
    family=DeepSeek(kv_rank=256, plain=64, rotated=32, value=64, expert_width=256, shared_experts=2),
)

GPT_OSS = replace(EXPERTS, family=GptOss(head_dim=64, window=8))
GEMMA4 = replace(
    SMALL,
    layers=6,
    kv_heads=1,
    tied=True,
    family=Gemma4(head_dim=64, full_head_dim=128, window=8, full_every=3, sharing=3, layer_input=32),
)
LFM2 = replace(SMALL, family=Convolutions(attention=(1,), head_dim=64), output_norm="token_embd_norm")
QWEN35 = replace(
    SMALL, family=DeltaRules(head_dim=64, rotated=64, key_heads=2, value_heads=4, dim=64, interval=2)
)
TENSORS_OF_LAYERS = {
    "deepseek2": 11 + 15,
    "gpt-oss": 2 * 19,
    "gemma4": 6 * 17 + 4,
    "lfm2": 8 + 11,
    "qwen35": 14 + 11,
}


@pytest.mark.parametrize(
    ("shape", "format"),
    [
        (EXPERTS, "q4_k_m"),
        (DEEPSEEK, "q4_k_m"),
        (GPT_OSS, "mxfp4_moe"),
        (GEMMA4, "q4_0"),
        (LFM2, "q8_0"),
        (QWEN35, "q4_k_m"),
        (replace(SMALL, tied=True), "q8_0"),
        *((SMALL, name) for name in TARGETS),
    ],
)
def test_weights_are_valid_and_of_the_size_that_keeps_activations(tmp_path, shape, format):
    path = write_model(tmp_path / "model.gguf", shape, format)
    tensors = {each.name: each for each in gguf.GGUFReader(path).tensors}
    in_layers = TENSORS_OF_LAYERS.get(shape.architecture, shape.layers * (10 if shape.experts else 9))
    assert len(tensors) == 2 + (not shape.tied) + in_layers
    for name, tensor in tensors.items():
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            assert np.all(values == (-1 if name.endswith("ssm_a") else 1))
        else:
            expected = values.shape[-1] ** -0.5
            assert abs(values.std() / expected - 1) < 0.1 and abs(values.mean()) < 0.1 * expected, name
    with LayerWiseInferenceEngine(path) as engine:
        logits = engine.forward([1, 2, 3])
        assert engine.generate([1, 2], 2) is not None
    assert logits.shape == (shape.vocabulary,) and 0.1 < logits.std() < 10


def test_q4_k_m_has_more_bits_where_llama_cpp_has(tmp_path):
    path = write_model(tmp_path / "model.gguf", replace(SMALL, layers=16), "q4_k_m")
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(path).tensors}
    fine = [i for i in range(16) if kinds[f"blk.{i}.ffn_down.weight"] == "Q6_K"]
    assert fine == [0, 1, 4, 7, 10, 13, 14, 15]
    assert [i for i in range(16) if kinds[f"blk.{i}.attn_v.weight"] == "Q6_K"] == fine
    assert kinds["output.weight"] == "Q6_K" and kinds["token_embd.weight"] == "Q4_K"
    assert {kinds[f"blk.{i}.ffn_up.weight"] for i in range(16)} == {"Q4_K"}


@pytest.mark.parametrize(("name", "billions"), (("llama-3.2-1b", 1.24), ("llama-3.1-8b", 8.03),
                                               ("llama-3-70b", 70.6), ("mixtral-8x7b", 46.7),
                                               ("deepseek-v2-lite", 15.7), ("gpt-oss-20b", 20.9),
                                               ("gemma-4-e2b", 4.65), ("lfm2-1.2b", 1.17),
                                               ("qwen3.5-0.8b", 0.752)))  # fmt: skip
def test_shapes_are_those_of_the_models(name, billions):
    sizes = (np.prod(shape) for _, shape, _ in synthetic_models._tensors(SHAPES[name], TARGETS["f16"]))
    assert abs(sum(sizes) / 1e9 / billions - 1) < 0.005


def test_the_vocabulary_of_another_file(tmp_path):
    other = tiny_gguf.write_gguf("llama3", tmp_path / "other.gguf")
    path = write_model(tmp_path / "model.gguf", SMALL, "q8_0", other)
    found, expected = (
        gguf.GGUFReader(file).fields["tokenizer.ggml.tokens"].contents() for file in (path, other)
    )
    assert found[: tiny_models.VOCABULARY] == expected and len(found) == SMALL.vocabulary
    with pytest.raises(ValueError, match="has 300 tokens, expected at most 299"):
        write_model(tmp_path / "small.gguf", replace(SMALL, vocabulary=299), "q8_0", path)
