"""A model that fits in memory is copied to the order of the kernels: its logits and its memory stay."""

import json
import subprocess
import sys

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file
from targets import targets

from airllm.files.pages import SUPPORTED
from airllm.formats import Interleaved, Quantized
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import large_model, wide_gguf
from tests.support.models.tiny_models import DATA

cpp = next((target.module for target in targets() if hasattr(target.module, "interleaved_formats")), None)
pytestmark = pytest.mark.skipif(
    not (cpp and cpp.interleaved_formats), reason="no kernels for interleaved weights"
)
PROMPTS = (1, 7, 30, 70)  # tokens: native calls, and products of many rows


def logits_of(path, tokens):
    with LayerWiseInferenceEngine(path, backend="cpp", context=256) as engine:
        kind = type(engine.model.layers[0]["attention.q"])
        found = []
        for count in PROMPTS:
            cache = engine.new_cache()
            found.append(engine.forward(tokens[:count], cache))
            found.append(engine.forward([3], cache))
    return kind, np.array(found)


@pytest.mark.parametrize("architecture", ("llama3", "qwen3_moe"))
@pytest.mark.parametrize("kind", (Kind.Q4_K, Kind.Q6_K, Kind.Q8_0, Kind.Q4_1), ids=lambda kind: kind.name)
def test_logits_are_those_of_weights_as_stored(architecture, kind, tmp_path, monkeypatch):
    path = wide_gguf.write_wide(architecture, tmp_path / "model.gguf", kind)
    tokens = np.random.default_rng(1).integers(0, wide_gguf.VOCABULARY, max(PROMPTS)).tolist()
    is_faster = kind.name.lower() in cpp.interleaved_formats
    copied, found = logits_of(path, tokens)
    monkeypatch.setattr(cpp, "interleaved_formats", ())
    stored, expected = logits_of(path, tokens)
    assert (copied, stored) == (Interleaved if is_faster else Quantized, Quantized)
    if kind.name.endswith("_K"):
        np.testing.assert_array_equal(found, expected)
    else:  # sums in another order may round an activation to the next of 255 numbers
        assert np.abs(found - expected).max() <= 2e-2 * np.ptp(expected)
        assert np.median(np.abs(found - expected)) <= 1e-3 * np.ptp(expected)


@pytest.mark.parametrize("name", ("gpt_oss", "llama4"))
def test_experts_by_columns_become_rows(name):
    stacks = load_file(DATA / name / "model.safetensors")
    stack = next(stacks[key] for key in sorted(stacks) if key.endswith("experts.gate_up_proj"))
    with LayerWiseInferenceEngine(DATA / name, backend="cpp", context=64) as engine:
        experts = next(layer.experts for layer in engine.model.layers if layer.experts)
        for number, weights in experts.every():
            columns = stack[number].T
            halves = (columns[0::2], columns[1::2]) if name == "gpt_oss" else np.split(columns, 2)
            for part, expected in zip(("gate", "up"), halves, strict=True):
                assert weights[part].flags.c_contiguous
                np.testing.assert_array_equal(weights[part], expected)


# In a process of its own: memory of the process while the model is opened, and then.
MEASURE = """
import json, sys
from airllm import tensor_ops
from airllm.formats import Interleaved
from airllm.layer_engine import LayerWiseInferenceEngine

def status(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))

open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
before = status("VmRSS")
with LayerWiseInferenceEngine(sys.argv[1], backend="cpp", context=64) as engine:
    assert isinstance(engine.model.output, Interleaved)
    opened = status("VmHWM") - before
    cache = engine.new_cache()
    for token in range(4):
        engine.forward([token], cache)
    print(json.dumps([opened, status("VmRSS") - before, engine.memory_estimate(64).weights]))
"""


@pytest.mark.skipif(not SUPPORTED, reason="pages of files are released on Linux")
def test_the_file_leaves_the_memory_that_the_copies_take(tmp_path):
    path = large_model.write_gguf(tmp_path / "model", "q5_1")
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, resident, weights = json.loads(done.stdout)
    assert weights > 80e6
    assert peak < weights + 60e6 and resident < weights + 40e6
