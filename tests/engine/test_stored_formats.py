"""Models in every stored format, against the same models with the floats that ggml's package decodes."""

from pathlib import Path

import numpy as np
import pytest

from airllm.backends import registry
from airllm.formats import FORMATS
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import tiny_gguf
from tests.support.models.tiny_models import texts

BACKENDS = [name for name in ("python", "cpp") if not registry.open_backend(name).why_not]
EXACT = 2e-4  # of the range of the logits
STORED = 0.06  # root mean square: what activations of 8 bits cost


def logits(path: Path, backend: str, compute: str) -> np.ndarray:
    options = {"cache_dtype": "f32", "compute": compute}
    with LayerWiseInferenceEngine(path, backend=backend, **options) as engine:
        return np.concatenate(engine.forward(texts(), all_positions=True))


def check(stored: Path, decoded: Path, backend: str) -> None:
    wanted = logits(decoded, "python", "float32")
    found = logits(stored, backend, "float32")
    assert np.abs(found - wanted).max() < EXACT * np.ptp(wanted)
    if backend != "python":  # the definition does not round
        rounded = logits(stored, backend, "stored")
        far = np.median(np.linalg.norm(rounded - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1))
        assert 1e-4 < far < STORED


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_model_in_one_format(tmp_path, name, backend):
    stored = tiny_gguf.write_k_model(tmp_path / "stored.gguf", (name,))
    decoded = tiny_gguf.write_k_model(tmp_path / "decoded.gguf", (name,), decoded=True)
    check(stored, decoded, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gpt_oss_with_experts_in_mxfp4(tmp_path, backend):
    """As its files are published."""
    stored = tiny_gguf.write_gguf("gpt_oss", tmp_path / "stored.gguf", "mxfp4")
    decoded = tiny_gguf.write_gguf("gpt_oss", tmp_path / "decoded.gguf", "mxfp4", decoded=True)
    check(stored, decoded, backend)
    with LayerWiseInferenceEngine(stored, backend=backend) as engine:
        assert engine.generate("AB", max_new_tokens=4)
