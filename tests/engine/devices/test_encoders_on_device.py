"""Encoders, and decoders that make vectors, on a device: states are those of transformers, ids go up, and
vectors come down.
"""

import gc
import re

import numpy as np
import pytest

from airllm import tensor_ops
from airllm.backends.device.faults import LOST, DeviceFault
from airllm.convert.quantize import quantize
from airllm.engine.devices.fallback import BackendFallback
from airllm.engine.encoder import Encoder
from airllm.engine.info import lines
from airllm.engine.layers import encoder
from airllm.memory.budget import MemoryBudgetError
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, counts, open_engine, running
from tests.support.models import encoder_files, speaking_model, tiny_encoders
from tests.support.models.tiny_encoders import DATA, ENCODERS, reference
from tests.support.models.tiny_models import texts

KIB = 1024
TEXTS = texts()
RANDOM = np.random.default_rng(0)
MODES = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
# Texts of equal lengths, and of one token.
BATCH = [RANDOM.integers(0, tiny_encoders.VOCABULARY, n).tolist() for n in (1, 9, 40, 3, 40, 17, 1, 3)]
backend, placed = device_models.backend, device_models.placed


def states(engine, batch=TEXTS):
    return [found for _, found in sorted(Encoder(engine.model).states(batch), key=lambda each: each[0])]


def agree_with(found, wanted) -> None:
    for one, other in zip(found, wanted, strict=True):
        agree(one, other)


@pytest.mark.parametrize("name", ENCODERS)
def test_states_are_those_of_transformers(name, backend):
    with open_engine(DATA / name, backend) as engine:
        agree_with(states(engine), reference(name))


@pytest.mark.parametrize("stored", ("f16", "q8_0"))
def test_states_of_blocks_are_those_of_the_processor(stored, backend, tmp_path):
    """Those of its ops in float32: it rounds activations."""
    whole = encoder_files.whole_folder("bert", tmp_path / "whole")
    quantize(whole, path := tmp_path / "model.gguf", stored)
    with open_engine(path, "python", False, compute="float32") as host, open_engine(path, backend) as engine:
        agree_with(states(engine, BATCH), states(host, BATCH))


@pytest.mark.parametrize("name", ("modernbert", "gemma_embedding"))
def test_windows_are_parts_of_one_mask(name, backend, monkeypatch):
    """In more blocks of queries than one, of which some end with the text."""
    batch = [RANDOM.integers(0, tiny_encoders.VOCABULARY, n).tolist() for n in (60, 47, 60, 31)]
    with open_engine(DATA / name, "python", False) as host:
        wanted = states(host, batch)
    monkeypatch.setattr(encoder, "BLOCK", 7)
    with open_engine(DATA / name, backend) as engine:
        assert any(window and window // 2 + 1 < 31 for window in engine.config.windows)
        agree_with(states(engine, batch), wanted)


@pytest.mark.parametrize("kind", ("mean", "cls", "last"))
def test_vectors_are_pooled_and_multiplied_there(kind, backend, tmp_path):
    """All that comes down are vectors, once; ids, positions, and what calls are given go up."""
    folder = encoder_files.whole_folder("bert", tmp_path / "whole", MODES[kind])
    matrix, bias = RANDOM.standard_normal((8, 32), np.float32), RANDOM.standard_normal(8, np.float32)
    encoder_files.add_dense(folder, matrix, bias, "Tanh")
    encoder_files.add_dense(folder, matrix[:, :8].copy(), None, "GELU")
    encoder_files.add_dense(folder, matrix[:, 8:16].copy(), bias, "ReLU")
    with open_engine(folder, "python", False) as host:
        assert host.pooling.kind == kind
        wanted = host.embed_tokens(BATCH)
    before = counts(backend)
    with open_engine(folder, backend) as engine:
        engine.embed_tokens(BATCH)
        once = (counts(backend) - before).resident
        assert 0.9 * engine.model.weight_bytes <= once <= engine.model.weight_bytes + 16 * KIB
        start = counts(backend)
        found = engine.embed_tokens(BATCH)
        spent = counts(backend) - start
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        assert 16 * sum(map(len, BATCH)) <= spent.uploaded <= 32 * KIB
        assert spent.downloaded == found.nbytes and spent.waits == 1 and spent.resident == 0
        assert engine.embed_tokens([]).shape == (0, 8)
    gc.collect()  # MLX's ops remember their last product
    assert (counts(backend) - before).resident == 0


@pytest.mark.parametrize("kind", ("mean", "cls", "last"))
def test_vectors_of_decoders(kind, backend, tmp_path):
    """Their texts go through the layers alone, long ones in parts; the host waits once for all vectors."""
    path = encoder_files.add_pooling(speaking_model.write(tmp_path / "model"), MODES[kind])
    batch = [[1, 2, 3], list(range(40)), [7]]
    with open_engine(path, "python", False) as host:
        wanted = host.embed_tokens(batch)
        alone = host.model.states(batch[1], host.new_cache())
    with open_engine(path, backend) as engine:
        engine.model.residency.chunk = 16
        start = counts(backend)
        found = engine.embed_tokens(batch)
        spent = counts(backend) - start
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        assert spent.downloaded == found.nbytes and spent.waits == 1
        agree(engine.model.states(batch[1], engine.new_cache()), alone)


def test_an_encoder_larger_than_the_device_is_streamed(placed, tmp_path):
    """No layer runs on the processor; no more memory is taken than allowed."""
    folder = encoder_files.whole_folder("modernbert", tmp_path / "whole")
    with open_engine(folder, "python", False) as host:
        wanted = host.embed_tokens(BATCH)
    with pytest.raises(MemoryBudgetError, match="device_memory is 1 bytes, expected at least ") as error:
        open_engine(folder, placed, device_memory=1)
    least = int(re.search(r"at least (\d+)", str(error.value))[1])
    for options in ({"device_memory": least}, {"gpu_layers": 1}):
        with open_engine(folder, placed, **options) as engine:
            plan, arena = engine.model.on_device.plan, engine.model.on_device.device.arena
            assert plan.form == "stream" and plan.stays == options.get("gpu_layers", 0)
            np.testing.assert_allclose(engine.embed_tokens(BATCH), wanted, atol=1e-4)
            engine.embed_tokens([[5] * engine.context])
            assert arena.peak <= plan.nbytes
    with pytest.raises(ValueError, match="offload has value 'split', expected 'stream': layers"):
        open_engine(folder, placed, gpu_layers=1, offload="split")


def test_within_a_budget_of_the_host_an_encoder_passes_through(placed, tmp_path):
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    with open_engine(folder, "python", False) as host:
        wanted = host.embed_tokens(BATCH)
    with open_engine(folder, placed, max_memory="16MB") as engine:
        assert engine.model.residency.limit.nbytes == 16_000_000
        np.testing.assert_allclose(engine.embed_tokens(BATCH), wanted, atol=1e-4)


def test_a_fault_goes_on_on_the_processor(tmp_path):
    running("opencl")
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    with open_engine(folder, "opencl", fallback_backends=["python"]) as engine:
        wanted = engine.embed_tokens(BATCH)
        place, fault = engine.model.on_device.device.place, DeviceFault(LOST, "a device", "as a test says")
        place.run = lambda *given: (_ for _ in ()).throw(fault)
        with pytest.warns(BackendFallback):
            found = engine.embed_tokens(BATCH)
        assert engine.backend.name() == "python" and engine.model.on_device is None
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_info_says_where_the_arrays_are(backend, tmp_path, monkeypatch):
    folder = encoder_files.whole_folder("bert", tmp_path / "whole")
    monkeypatch.setenv("AIRLLM_BACKEND", backend)
    tensor_ops.reload_backend()
    try:
        assert "Arrays:      they stay on the device" in lines(folder)
    finally:
        monkeypatch.undo()
        tensor_ops.reload_backend()
