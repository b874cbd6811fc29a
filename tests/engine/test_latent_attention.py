"""What is particular to latent attention: what files have of it, and what a token keeps."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_cases import (
    BATCHES,
    CAPACITY,
    LATENT,
    MODELS,
    agree,
    batch_of,
    compare,
    composed,
    config,
    having,
    layer_of,
    on_threads,
)
from safetensors.numpy import load_file, save_file

from airllm import tensor_ops
from airllm.architectures import open_config
from airllm.architectures.layer_spec import Rope
from airllm.backends import registry
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.convert.quantize import quantize
from airllm.engine.info import lines
from airllm.engine.layers.native_decode import FusedLayers
from airllm.engine.layers.rows import Rows
from airllm.files.weight_file import ModelFileError
from airllm.formats import FORMATS
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.cache_layout import CacheLayout
from airllm.memory.kv_cache import Cache
from benchmarks.synthetic_families import DeepSeek
from benchmarks.synthetic_models import Shape, write_model
from tests.engine import test_adapters
from tests.files.test_quantize import with_tokenizer
from tests.support.engines.company import alone, in_company
from tests.support.models import lora_files, tiny_gguf
from tests.support.models.config_files import gguf_file
from tests.support.models.tiny_models import DATA, reference, texts

BACKENDS = [name for name in ("python", "cpp") if not registry.open_backend(name).why_not]
TINY = ("deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral_small4")
TEXTS = texts()


WIDE = {  # whole blocks of 256 in each row
    "width": 256, "feed_forward": 256, "heads": 3, "kv_heads": 1, "head_dim": 288, "kv_rank": 256,
    "value_dim": 256, "q_rank": 256, "rope": Rope(1e4, 32, interleaved=True),
}  # fmt: skip


def open_engine(path: Path, backend: str = "python", **options: Any) -> LayerWiseInferenceEngine:
    given = {"compute": "float32", "cache_dtype": "f32", **options}
    return LayerWiseInferenceEngine(path, backend=backend, **given)


def copy_of(name: str, tmp_path: Path, **changes: Any) -> Path:
    folder = shutil.copytree(DATA / name, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stored", ("float", "blocks"))
@pytest.mark.parametrize("name", TINY)
def test_older_gguf_files_have_one_matrix_for_keys_and_values(name, stored, backend, tmp_path):
    """And they count the heads that are made of a latent."""
    path = tiny_gguf.write_gguf(name, tmp_path / "joined.gguf", stored, joined=True)
    newer = tiny_gguf.write_gguf(name, tmp_path / "apart.gguf", stored)
    with open_engine(path, backend) as engine:
        assert engine.config.joined_kv and engine.config.kv_heads == 1
        assert not open_config(newer).joined_kv
        cache, found = engine.new_cache(), []
        for start, stop in pairwise((0, 9, 10, 11, len(TEXTS[1]))):
            found.append(engine.forward(TEXTS[1][start:stop], cache, all_positions=True))
    wanted = reference(name)[1]
    if stored == "blocks":  # the two layouts round other rows
        with open_engine(
            tiny_gguf.write_gguf(name, tmp_path / "rounded.gguf", "blocks", True, True)
        ) as floats:
            wanted = floats.forward(TEXTS[1], all_positions=True)
    assert distance(np.concatenate(found), wanted) < 2e-4


@pytest.mark.parametrize("name", TINY)
def test_folders_become_gguf_files_with_two(name, tmp_path):
    written = quantize(with_tokenizer(name, tmp_path / name), tmp_path / "new.gguf", "f32").path
    assert not open_config(written).joined_kv
    with open_engine(written) as engine:
        assert distance(engine.forward(TEXTS[1], all_positions=True), reference(name)[1]) < 2e-4


@pytest.mark.parametrize("dtype", ("f32", "f16", "q8_0"))
def test_a_token_keeps_one_row_for_all_heads(dtype):
    config = open_config(DATA / "deepseek_v2")
    row = {"f32": 4 * 96, "f16": 2 * 96, "q8_0": 3 * 34}[dtype]  # 64 of the latent, 32 of the rotated key
    assert CacheLayout(config, 256, dtype).token_bytes() == config.layers * row


@pytest.mark.parametrize(
    ("values", "expected"),
    (
        ({"rope_interleave": False}, "rope_interleave is false, expected true"),
        ({"attention_bias": True}, "attention_bias is true, expected false"),
    ),
)
def test_what_is_not_supported_is_refused(values, expected, tmp_path):
    with pytest.raises(ModelFileError, match=expected):
        open_config(copy_of("deepseek_v3", tmp_path, **values))


def test_the_router_of_v2_looks_at_groups_only_if_it_is_told_to(tmp_path):
    of_groups = open_config(DATA / "deepseek_v2")
    assert (of_groups.expert_groups, of_groups.expert_group_best) == (4, 1)
    greedy = open_config(copy_of("deepseek_v2", tmp_path, topk_method="greedy"))
    assert (greedy.expert_groups, greedy.expert_group_best) == (1, 2)
    assert open_config(DATA / "deepseek_v3").expert_group_best == 2


def test_info_says_what_tokens_keep():
    said = "4 heads of 64, which share a latent of 64 and a key of 32"
    assert any(said in line for line in lines(DATA / "deepseek_v2"))


def test_kimi_that_sees_is_read_for_text(tmp_path):
    """Its folders have the model below `language_model.`, and call it kimi_k2."""
    config = json.loads((DATA / "deepseek_v3" / "config.json").read_text())
    whole = {
        "model_type": "kimi_k25",
        "tie_word_embeddings": False,
        "text_config": config | {"model_type": "kimi_k2"},
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = load_file(DATA / "deepseek_v3" / "model.safetensors")
    save_file(
        {f"language_model.{name}": each for name, each in tensors.items()}, tmp_path / "model.safetensors"
    )
    with open_engine(tmp_path) as engine:
        assert distance(engine.forward(TEXTS[1], all_positions=True), reference("deepseek_v3")[1]) < 2e-4


@pytest.mark.parametrize("kinds", (["dense", "sparse"], ["sparse", "dense", "sparse"]))
def test_dense_layers_of_glm_come_first(kinds, tmp_path):
    folder = copy_of("glm4_moe_lite", tmp_path, mlp_layer_types=kinds)
    with pytest.raises(ModelFileError, match="mlp_layer_types has [23] items, [12] sparse"):
        open_config(folder)


@pytest.mark.parametrize(
    ("values", "scores"),
    (({}, "sigmoid"), ({"expert_gating_func": 2}, "sigmoid"), ({"expert_gating_func": 1}, "")),
)
def test_gguf_files_of_glm_may_lack_the_function_of_the_router(values, scores, tmp_path):
    """An expert that is chosen with a bias shows it."""
    sizes = {
        "expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 8,
        "attention.key_length": 16, "attention.value_length": 16, "attention.kv_lora_rank": 8,
        "rope.dimension_count": 8,
    }  # fmt: skip
    path = gguf_file(tmp_path, "deepseek2", sizes | values, ["blk.0.exp_probs_b.bias"])
    assert open_config(path).expert_scores == scores
    (tmp_path / "other").mkdir()
    assert open_config(gguf_file(tmp_path / "other", "deepseek2", sizes, [])).expert_scores == ""


def test_adapters_change_all_matrices_but_those_of_latents(tmp_path, monkeypatch):
    """Which multiply queries here. Rows of queries have the same order in folders and GGUF files."""
    whole = lora_files.write_peft("deepseek_v2_lite", tmp_path / "whole")
    with pytest.raises(ModelFileError, match=r"kv_b_proj is unknown, expected A and B"):
        open_engine(DATA / "deepseek_v2_lite", adapter=whole)
    changed = lora_files.is_changed
    monkeypatch.setattr(lora_files, "is_changed", lambda n, v: changed(n, v) and "kv_b" not in n)
    adapter = lora_files.write_peft("deepseek_v2_lite", tmp_path / "adapter")
    scale = lora_files.ALPHA / lora_files.RANK
    merged = lora_files.merged("deepseek_v2_lite", tmp_path / "merged", (lora_files.RANK, scale))
    wanted = test_adapters.logits_of(merged)
    for path in (DATA / "deepseek_v2_lite", tiny_gguf.write_gguf("deepseek_v2_lite", tmp_path / "x.gguf")):
        assert test_adapters.same(test_adapters.logits_of(path, adapter=adapter), wanted)
        assert not test_adapters.same(test_adapters.logits_of(path), wanted)


# ---------------------------------------------------------------------------------------------- native layers


@having
@pytest.mark.parametrize("threads", (2, 3))
def test_threads_share_heads_and_keys(threads, target, reached):
    """With fewer pieces of keys than threads, heads are shared."""
    sizes = {"width": 256, "feed_forward": 512}
    for model in (each for each in MODELS if each.startswith("latent")):
        with on_threads(target, reached, threads):
            for batch in ("first token", "long", "two", "unequal"):
                compare(KernelBackend("cpp"), config(**{**MODELS[model], **sizes}), BATCHES[batch])


@having
@pytest.mark.parametrize("name", ("q8_0", "q4_0", "q4_k", "q6_k", "iq4_nl", "f16", "bf16"))
def test_stored_weights(name, reached):
    exact = name not in FORMATS
    for batch in (BATCHES["short"], BATCHES["unequal"]):
        compare(KernelBackend("cpp"), config(**WIDE), batch, [name], within=2e-5 if exact else 0.07)


@having
@pytest.mark.parametrize("dtype", ("f16", "q8_0"))
def test_caches_of_fewer_bits_are_read_as_stored(dtype, reached):
    """The call and the composition on the same backend read the same rows."""
    c = config(**{**LATENT, "heads": 4, "head_dim": 64, "rope": Rope(1e4, 32, True)})
    batch = BATCHES["unequal"]
    layers = [layer_of(c, i) for i in range(2)]
    x, angles, rows = batch_of(c, batch)
    found = []
    for run in ("native", "composed"):
        own = [Rows(part.start, part.stop, narrowed(c, part.cache, dtype)) for part in rows]
        if run == "native":
            fused = FusedLayers(KernelBackend("cpp"), layers)
            assert not fused.why_not
            fused.run(got := x.copy(), angles, own)
        else:
            got = composed(KernelBackend("cpp"), x.copy(), angles, own, layers)
        found.append((got, [part.cache.arrays[0][0] for part in own]))
    agree(found[0][0], found[1][0], 2e-5)
    for mine, other in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(mine, other)


def narrowed(c, floats: Cache, dtype: str) -> Cache:
    """A cache with the same tokens in another dtype."""
    cache = Cache(c, CAPACITY, dtype)
    for to, array in zip(cache.arrays, floats.arrays, strict=True):
        to[0][...] = tensor_ops.quantize(array[0], dtype).data if dtype == "q8_0" else array[0]
    cache.extend(floats.tokens)
    return cache


def test_a_cache_of_another_layout_is_refused():
    cpp = KernelBackend("cpp")
    if cpp.extension("decoder_layers") is None:
        pytest.skip("the C++ backend is not built")
    c = config(**LATENT)
    fused = FusedLayers(cpp, [layer_of(c, 0)])
    x, angles, rows = batch_of(c, BATCHES["short"])
    with pytest.raises(ValueError, match=r"\(layers, 1, 1, capacity, 48\)"):
        cpp.extension("decoder_layers")(
            fused.prepared, x, [(angles[0].cos, angles[0].sin)],
            ((0, 1, np.zeros((2, 2, 1, CAPACITY, 48), np.float32), 5),),
        )  # fmt: skip
    with pytest.raises(ValueError, match="has 16 pairs, expected 8, as the weights have"):
        cpp.extension("decoder_layers")(
            fused.prepared, x, [(np.zeros((1, 1, 16), np.float32),) * 2],
            ((0, 1, rows[0].cache.native, 5),),
        )  # fmt: skip


LENGTHS = (1, 5, 17, 48, 49, 130, 300)  # of prompts, in tokens; 256 keys are a piece


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """An engine for a model whose work threads share."""
    deepseek = DeepSeek(kv_rank=64, plain=32, rotated=32, value=64, expert_width=256, shared_experts=1)
    shape = Shape(256, 2, 512, 2, 1, 300, context=1024, experts=4, experts_used=2, family=deepseek)
    path = write_model(tmp_path_factory.mktemp("wide") / "wide.gguf", shape, "q8_0")
    with LayerWiseInferenceEngine(path, backend="cpp", context=512) as engine:
        yield engine


@having
def test_logits_are_the_same_bits_in_any_company(wide, target, reached):
    """However prompts are cut, and whatever comes with them."""
    before = reached.switch(target.variant, 1)
    try:
        expected = [alone(wide, i, length) for i, length in enumerate(LENGTHS)]
        for threads in (1, 2, 3):
            reached.switch(target.variant, threads)
            found = in_company(wide, LENGTHS, np.random.default_rng(threads))
            for one, other in zip(expected, found, strict=True):
                for a, b in zip(one, other, strict=True):
                    np.testing.assert_array_equal(a, b)
    finally:
        reached.switch(*before)
