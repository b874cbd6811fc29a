"""How many launches a decoded token takes on a device: at most eight a layer, whatever its norms are."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from airllm.backends.gpu import launches
from airllm.convert.quantize import quantize
from airllm.formats import FORMATS
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, counts, open_engine, running
from tests.support.models import tiny_gguf, tiny_models, wide_gguf
from tests.support.models.tiny_models import texts

TEXTS = texts()
MOST, USUAL = 8, 6
BESIDE = 3  # the embedding, its factor or a norm, and the output
OF_INPUTS = 4  # all layers' inputs: a projection of the embedding, its norm, the row of a table, their sum
placed, kernels_of_gpus = device_models.placed, device_models.kernels_of_gpus


def check_launches(
    path: Path,
    placed: str,
    text: Any = TEXTS[1],
    most: int = MOST,
    least: int = 1,
    cache_dtype: str = "f32",
    **options: Any,
) -> None:
    """A text's last three tokens take at most so many launches a layer, and have the definition's logits."""
    kept: dict[str, Any] = {"cache_dtype": cache_dtype}
    with (
        open_engine(path, placed, **options, **kept) as engine,
        open_engine(path, "python", False, **kept) as host,
    ):
        engine.forward(text[:-3], cache := engine.new_cache())
        wanted = host.forward(text, all_positions=True)[-3:]
        beside, layers = BESIDE + (OF_INPUTS if engine.config.layer_input else 0), engine.config.layers
        for token, logits in zip(text[-3:], wanted, strict=True):
            start = counts(placed)
            agree(engine.forward([token], cache), logits)
            found = (counts(placed) - start).launches
            assert least * layers <= found <= most * layers + beside


@pytest.mark.parametrize("name", ("llama3", "qwen3", "gemma3"))
def test_most_layers_of_a_token_are_six_launches(name, placed, tmp_path):
    quantize(tiny_gguf.write_gguf(name, tmp_path / "floats.gguf"), path := tmp_path / "blocks.gguf", "q4_0")
    check_launches(path, placed, most=USUAL)


@pytest.mark.parametrize("name", wide_gguf.MODELS)
def test_wide_rows_take_no_launch_more(name, placed, tmp_path, monkeypatch):
    """Rows that are longer than the memory that a work-group has; they were sums and norms of their own."""
    monkeypatch.setattr(wide_gguf, "WIDTH", 4160)
    check_launches(wide_gguf.write_wide(name, tmp_path / "blocks.gguf"), placed)


@pytest.mark.parametrize("name", ("falcon_h1", "deepseek_v2", "granite_hybrid_moe", "qwen3_5", "gemma2"))
def test_wide_rows_of_other_layers(name, tmp_path, monkeypatch):
    """With WebGPU, whose work-groups have little memory of their own: here none."""
    placed = running("webgpu")
    monkeypatch.setattr(importlib.import_module("tensor_ops_webgpu.mixture_launches"), "WIDEST_NORM", 8)
    quantize(tiny_gguf.write_gguf(name, tmp_path / "floats.gguf"), path := tmp_path / "blocks.gguf", "q4_0")
    check_launches(path, placed)


@pytest.mark.parametrize("name", (
    "gemma3", "gemma2", "olmo2", "olmo3", "granite", "cohere2", "llama4", "smollm3", "ministral3",
    "minimax_m2", "hunyuan_dense", "hunyuan_moe", "gemma4_moe", "starcoder2", "gemma4", "qwen3_5",
    "qwen3_5_moe", "qwen3_next", "granite_hybrid", "granite_hybrid_moe", "lfm2_moe", "nemotron_h",
    "nemotron_h_moe", "falcon_h1",
))  # fmt: skip
def test_a_layer_of_a_token_is_at_most_eight_launches(name, placed, tmp_path):
    """Norms of what a half adds; factors of it; norms of whole rows of queries and keys, norms after their
    rotation, layers without rotation, temperatures; experts beside a dense feed-forward; no gate; layers with
    inputs of their own; recurrent mixers, alone and beside attention; gates of what attention finds; latent
    experts.
    """
    quantize(tiny_gguf.write_gguf(name, tmp_path / "floats.gguf"), path := tmp_path / "blocks.gguf", "q4_0")
    check_launches(path, placed)


@pytest.mark.parametrize("name", (
    "deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "glm4_moe_lite", "mistral_small4",
))  # fmt: skip
@pytest.mark.parametrize("kind", ("q4_0", "q8_0", "float32"))
def test_a_layer_with_latent_attention_is_at_most_eight_launches(kind, name, placed, tmp_path):
    """Queries of latents of their own, or not; dense layers, experts; temperatures."""
    path = tiny_gguf.write_gguf(name, tmp_path / "floats.gguf")
    if kind != "float32":
        quantize(path, path := tmp_path / "blocks.gguf", kind)
    check_launches(path, placed)


@pytest.mark.parametrize("name, cache_dtype, most", (
    ("deepseek_v3", "f16", MOST), ("deepseek_v3", "q8_0", MOST + 1), ("deepseek_v2_lite", "q8_0", MOST + 1),
))  # fmt: skip
def test_latents_in_halves_and_blocks_are_as_few_launches(name, cache_dtype, most, placed, tmp_path):
    """WebGPU writes blocks in a launch of their own."""
    quantize(tiny_gguf.write_gguf(name, tmp_path / "floats.gguf"), path := tmp_path / "blocks.gguf", "q4_0")
    most = most if placed == "webgpu" else MOST
    check_launches(path, placed, most=most, cache_dtype=cache_dtype)


@pytest.mark.parametrize("options", ({}, {"gpu_layers": 0, "offload": "stream"}), ids=("there", "streamed"))
@pytest.mark.parametrize("name", ("llama3", "qwen3_moe"))
def test_matrices_of_several_formats_are_one_launch(name, options, placed, tmp_path):
    """llama.cpp's mix q4_k_m has the values of some layers in q6_k."""
    floats = wide_gguf.write_wide(name, tmp_path / "floats.gguf", GGMLQuantizationType.F32)
    quantize(floats, path := tmp_path / "blocks.gguf", "q4_k_m")
    check_launches(path, placed, **options)


@pytest.mark.parametrize("of", [name for name, of in FORMATS.items() if not of.pack])
@pytest.mark.parametrize("name", ("llama3", "qwen3_moe"))
def test_vectors_of_a_codebook(name, of, placed, tmp_path):
    """They are read as they are stored, in as many launches."""
    check_launches(
        wide_gguf.write_wide(name, tmp_path / "blocks.gguf", GGMLQuantizationType[of.upper()]), placed
    )


def in_formats(monkeypatch: pytest.MonkeyPatch, formats: dict[str, GGMLQuantizationType]) -> None:
    """Matrices whose names have these parts get these formats, others q4_0."""

    def kind(name: str, shape: tuple[int, ...]) -> GGMLQuantizationType:
        if tiny_gguf.block_kind(name, shape) == GGMLQuantizationType.F32:
            return GGMLQuantizationType.F32
        return next((of for part, of in formats.items() if part in name), GGMLQuantizationType.Q4_0)

    monkeypatch.setitem(tiny_gguf._KINDS, "blocks", kind)


@pytest.mark.parametrize("name", ("llama3", "qwen3_moe", "gpt_oss", "gemma4_moe", "gemma4"))
def test_gates_of_another_format_are_no_launch_more(name, placed, tmp_path, monkeypatch):
    """Of a dense feed-forward; of experts, with biases or not; of a dense feed-forward beside experts."""
    in_formats(monkeypatch, {"ffn_up": GGMLQuantizationType.Q8_0})
    path = tiny_gguf.write_gguf(name, tmp_path / "blocks.gguf", "blocks")
    check_launches(path, placed)


@pytest.mark.parametrize("name, options", (
    ("llama3", {}), ("qwen2", {}), ("gemma4", {}), ("qwen2", {"gpu_layers": 0, "offload": "stream"}),
))  # fmt: skip
def test_queries_keys_and_values_of_three_formats_are_one_launch(
    name, options, placed, tmp_path, monkeypatch
):
    """With biases, and with inputs of layers."""
    in_formats(monkeypatch, {"attn_k": GGMLQuantizationType.Q8_0, "attn_v": GGMLQuantizationType.Q5_1})
    path = tiny_gguf.write_gguf(name, tmp_path / "blocks.gguf", "blocks")
    check_launches(path, placed, **options)


def test_attention_to_long_texts_is_part_of_eight_launches(kernels_of_gpus, tmp_path):
    """GPUs divide long texts among work-groups, whose results another launch combines."""
    path = wide_gguf.write_wide("llama3", tmp_path / "blocks.gguf")
    text = np.random.default_rng(6).integers(8, tiny_models.VOCABULARY, 1100).tolist()
    check_launches(path, "opencl", text, least=USUAL + 1)


@pytest.mark.parametrize("options", ({}, {"gpu_layers": 0, "offload": "stream"}), ids=("there", "streamed"))
@pytest.mark.parametrize("part", ("attn_q_a", "attn_q_b", "attn_k_b", "attn_v_b"))
def test_latents_with_matrices_of_several_formats(part, options, placed, tmp_path, monkeypatch):
    in_formats(monkeypatch, {part: GGMLQuantizationType.Q8_0})
    path = tiny_gguf.write_gguf("mistral_small4", tmp_path / "blocks.gguf", "blocks")
    check_launches(path, placed, **options)


@pytest.mark.parametrize("name", ("mistral_small4", "glm4_moe_lite"))
@pytest.mark.parametrize("device", ("kernels of GPUs", "cuda"))
def test_latent_attention_to_long_texts_is_part_of_eight_launches(
    device, name, tmp_path, request, monkeypatch
):
    """The products with what heads attended to merge the results of work-groups."""
    monkeypatch.setattr(launches, "FEWEST_KEYS", 16)
    if device == "kernels of GPUs":
        request.getfixturevalue("kernels_of_gpus")
    placed = running("cuda" if device == "cuda" else "opencl")
    quantize(tiny_gguf.write_gguf(name, tmp_path / "floats.gguf"), path := tmp_path / "blocks.gguf", "q4_0")
    text = np.random.default_rng(6).integers(8, tiny_models.VOCABULARY, 100).tolist()
    check_launches(path, placed, text)
