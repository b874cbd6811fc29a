"""What is particular to latent attention: what files have of it, and what a token keeps."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airllm.architectures import open_config
from airllm.backends import registry
from airllm.convert.quantize import quantize
from airllm.engine.info import lines
from airllm.files.weight_file import ModelFileError
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.cache_layout import CacheLayout
from tests.files.test_quantize import with_tokenizer
from tests.support import tiny_gguf
from tests.support.tiny_models import DATA, reference, texts

BACKENDS = [name for name in ("python", "cpp") if not registry.open_backend(name).why_not]
LATENT = ("deepseek_v2_lite", "deepseek_v2", "deepseek_v3")
TEXTS = texts()


def open_engine(path: Path, backend: str = "python", **options: Any) -> LayerWiseInferenceEngine:
    given = {"compute": "float32", "cache_dtype": "f32", **options}
    return LayerWiseInferenceEngine(path, backend=backend, **given)


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stored", ("float", "blocks"))
@pytest.mark.parametrize("name", LATENT)
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


@pytest.mark.parametrize("name", LATENT)
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
    folder = shutil.copytree(DATA / "deepseek_v3", tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    with pytest.raises(ModelFileError, match=expected):
        open_config(folder)


def test_the_router_of_v2_looks_at_groups_only_if_it_is_told_to(tmp_path):
    folder = shutil.copytree(DATA / "deepseek_v2", tmp_path / "copy")
    assert (open_config(folder).expert_groups, open_config(folder).expert_group_best) == (4, 1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"topk_method": "greedy"}))
    assert (open_config(folder).expert_groups, open_config(folder).expert_group_best) == (1, 2)
    assert open_config(DATA / "deepseek_v3").expert_group_best == 2


def test_info_says_what_tokens_keep():
    said = "4 heads of 64, which share a latent of 64 and a key of 32"
    assert any(said in line for line in lines(DATA / "deepseek_v2"))
