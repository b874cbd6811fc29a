"""GGUF files with matrices in NVFP4, as `gguf` reads them."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from airllm.engine.info import lines
from airllm.files.open_weights import open_weights
from airllm.files.published.nvfp4_gguf import unpack
from airllm.files.weight_file import ModelFileError
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import wide_gguf

Q8_0 = 1 / 254 + 2**-11  # half a step, and the rounding of the scale
SCALED = {
    "blk.0.attn_q": [0.5],
    "blk.1.ffn_up_exps": [0.5, 1.0, 2.0, 0.25],
    "blk.0.ffn_down_exps": [3.0, 2.0, 1.0, 0.5],
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def blocks(rng, shape):
    """Random codes, and scales from 1/32 to 1/16."""
    each = rng.integers(0, 256, (*shape[:-1], shape[-1] // 64, 36)).astype(np.uint8)
    each[..., :4] = rng.integers(0x10, 0x18, each[..., :4].shape)
    return each.reshape(*shape[:-1], -1)


def written(path, scales):
    """A mixture in NVFP4, with tensors that scale some of its matrices."""
    reader = gguf.GGUFReader(wide_gguf.write_wide("qwen3_moe", path.with_name("plain.gguf"), Kind.Q8_0))
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    for field in reader.fields.values():
        if field.name.startswith(("qwen3moe.", "tokenizer.")):
            kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=kind)
    for tensor in reader.tensors:
        if tensor.tensor_type == Kind.Q8_0:
            writer.add_tensor(tensor.name, blocks(rng, tensor.shape[::-1]), raw_dtype=Kind.NVFP4)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    for name, values in scales.items():
        writer.add_tensor(f"{name}.scale", np.array(values, np.float32))
        writer.add_tensor(f"{name}.input_scale", np.ones(len(values), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_code_and_scale_is_that_of_gguf():
    rng = np.random.default_rng(0)
    every = rng.integers(0, 256, (1024, 36)).astype(np.uint8)
    every[:, :4] = np.arange(4096).reshape(1024, 4) % 128
    np.testing.assert_array_equal(unpack(every), gguf.quants.dequantize(every, Kind.NVFP4))


def test_values_logits_and_what_info_says(tmp_path, cache):
    path = written(tmp_path / "scaled.gguf", SCALED)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with open_weights(path) as weights:
        matrices = [name for name in weights.names() if stored[name].tensor_type == Kind.NVFP4]
        assert len(matrices) == len(stored) - 6 - (len(weights.names()) - len(matrices))
        for name in matrices:
            wanted = gguf.quants.dequantize(stored[name].data, Kind.NVFP4)
            scales = np.array(SCALED.get(name.removesuffix(".weight"), [1.0]), np.float32)
            wanted *= scales.reshape(-1, *[1] * (wanted.ndim - 1))
            found = weights.tensor(name)
            assert found.format == "q8_0" and found.shape == wanted.shape
            far = np.abs(found.dequantize() - wanted).reshape(-1, 32).max(1)
            assert (far <= Q8_0 * np.abs(wanted).reshape(-1, 32).max(1)).all()
    assert any("NVFP4, opened as q8_0" in line for line in lines(path))
    (kept,) = (cache / "converted").iterdir()
    before = kept.stat().st_mtime_ns
    with LayerWiseInferenceEngine(path, context=64) as engine:
        assert np.isfinite(engine.forward([1, 2, 3])).all()
    assert kept.stat().st_mtime_ns == before


def test_a_scale_of_another_size_is_refused(tmp_path):
    path = written(tmp_path / "scaled.gguf", {"blk.0.ffn_up_exps": [1.0, 2.0]})
    with open_weights(path) as weights, pytest.raises(ModelFileError, match="has 2 values, expected 4"):
        weights.tensor("blk.0.attn_q.weight")
