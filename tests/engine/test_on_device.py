"""Whole models on a device: their logits are those of transformers, and what crosses the bus is counted."""

from pathlib import Path

import numpy as np
import pytest
from environment import REQUIRED

from airllm import tensor_ops
from airllm.backends import registry
from airllm.convert.quantize import quantize
from airllm.engine import info
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache import Cache
from tests.support import tiny_gguf
from tests.support.tiny_models import DATA, FOLDERS, SHORT, reference, texts

BACKENDS = ("opencl", "webgpu")
KIB = 1024
TEXTS = texts()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """A backend that keeps models on its device."""
    if why_not := registry.open_backend(request.param).why_not:
        assert request.param not in REQUIRED, why_not
        pytest.skip(why_not)
    return request.param


def open_engine(path: Path, backend: str, there: bool = True, **options) -> LayerWiseInferenceEngine:
    engine = LayerWiseInferenceEngine(path, backend=backend, **{"cache_dtype": "f32", **options})
    assert bool(engine.model.on_device) == there, engine.model.why_not_on_device
    return engine


def counts(backend: str):
    return registry.open_backend(backend).module.counters.read()


def agree(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape and found.dtype == np.float32
    assert np.abs(found - wanted).max() <= 2e-4 * np.ptp(wanted)


DENSE = [
    name
    for name in FOLDERS
    if not any(part in name for part in ("moe", "mixtral", "gpt_oss", "minimax", "gemma4"))
]


@pytest.mark.parametrize("name", DENSE)
def test_logits_are_those_of_transformers(name, backend):
    """At prefill, token by token, after going back, and as one of a batch."""
    wanted = reference(name)
    with open_engine(DATA / name, backend) as engine:
        cache = engine.new_cache()
        agree(engine.forward(TEXTS[1], cache, all_positions=True), wanted[1])
        cache.truncate(SHORT - 9)
        steps = [engine.forward([token], cache) for token in TEXTS[1][SHORT - 9 :]]
        agree(np.stack(steps), wanted[1][SHORT - 9 :])
        caches = [engine.new_cache() for _ in TEXTS]
        engine.forward([text[:-2] for text in TEXTS], caches)
        found = engine.forward([text[-2:] for text in TEXTS], caches, all_positions=True)
        for text, logits in zip(wanted, found, strict=True):
            agree(logits, text[-2:])


@pytest.fixture
def kernels_of_gpus():
    """OpenCL's kernels of GPUs, on the device in use."""
    opencl = pytest.importorskip("tensor_ops_opencl")
    if registry.open_backend("opencl").why_not:
        pytest.skip(registry.open_backend("opencl").why_not)
    label = next((each for each in opencl.variants() if "gpu kernels" in each), None)
    if label is None:
        pytest.skip("no device runs both forms of the kernels")
    opencl.select(label)
    yield
    opencl.select(None)


def test_kernels_of_gpus_compute_whole_models_too(kernels_of_gpus, tmp_path):
    path = tiny_gguf.write_gguf("llama3", tmp_path / "tiny.gguf", "blocks")
    wanted = reference("llama3", "blocks")[1]
    with open_engine(path, "opencl") as engine:
        agree(engine.forward(TEXTS[1][:-4], cache := engine.new_cache()), wanted[-5])
        agree(np.stack([engine.forward([token], cache) for token in TEXTS[1][-4:]]), wanted[-4:])


def test_models_with_experts_say_why_their_arrays_do_not_stay(backend):
    with LayerWiseInferenceEngine(DATA / "mixtral", backend=backend, cache_dtype="f32") as engine:
        assert engine.model.why_not_on_device == "experts are chosen in host memory"
        agree(engine.forward(TEXTS[1]), reference("mixtral")[1][-1])


@pytest.mark.parametrize(("name", "expected"), (
    ("llama3", "Arrays:      they stay on the device"),
    ("mixtral", "Arrays:      from host memory for each op: experts are chosen in host memory"),
))  # fmt: skip
def test_info_says_where_the_arrays_of_a_model_are(name, expected, backend, monkeypatch):
    monkeypatch.setenv("AIRLLM_BACKEND", backend)
    tensor_ops.reload_backend()
    try:
        assert expected in info.lines(DATA / name)
    finally:
        monkeypatch.undo()
        tensor_ops.reload_backend()


def test_what_crosses_the_bus_per_token(backend, tmp_path):
    """Blocks stay blocks: what is resident are the bytes of the file, and arrays of one token."""
    path = tiny_gguf.write_gguf("llama3", tmp_path / "llama3.gguf", "blocks")
    before = counts(backend)
    with open_engine(path, backend) as engine:
        engine.forward(TEXTS[0][:-4], cache := engine.new_cache())
        held = (counts(backend) - before).resident
        stored = engine.model.weight_bytes
        room = 256 * 2 * 4 * engine.config.layers * engine.config.kv_heads * engine.config.head_dim
        assert stored <= held <= stored + room + 64 * KIB
        for token in TEXTS[0][-4:]:
            start = counts(backend)
            logits = engine.forward([token], cache)
            spent = counts(backend) - start
            assert 0 < spent.uploaded <= 64 * KIB
            assert spent.downloaded == logits.nbytes
            assert spent.waits == 1
            assert spent.resident == 0
    del cache
    assert (counts(backend) - before).resident == 0


@pytest.mark.parametrize("name", ("llama3", "gemma", "qwen2"))
def test_a_layer_of_a_token_is_at_most_eight_launches(name, backend, tmp_path):
    """Also with another activation, and with biases of queries, keys and values. Before and after the layers
    come the embedding, the last norm and the output.
    """
    floats = tiny_gguf.write_gguf(name, tmp_path / "floats.gguf")
    quantize(floats, path := tmp_path / "blocks.gguf", "q4_0")
    with open_engine(path, backend) as engine, open_engine(path, "python", False) as host:
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
        wanted = host.forward(TEXTS[1], all_positions=True)[-3:]
        for token, logits in zip(TEXTS[1][-3:], wanted, strict=True):
            start = counts(backend)
            agree(engine.forward([token], cache), logits)
            spent = counts(backend) - start
            others = 3 + (engine.config.embedding_scale != 1)
            assert spent.launches - others <= 8 * engine.config.layers
            if backend == "webgpu":
                assert spent.submits == 1


def test_results_that_are_put_off_are_those_of_now(backend):
    """A sum, products and rotations that are used otherwise than together, or not at all."""
    ops = registry.open_backend(backend).module.device_ops()
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((1, 64), np.float32) for _ in range(2))
    first, second = (rng.standard_normal((64, 64), np.float32) for _ in range(2))
    a, b = map(ops.to_device, (x, y))
    total = np.add(a, b, out=b)
    assert total is b
    a *= np.float32(2)  # after the sum was asked for, and before it is computed
    np.testing.assert_allclose(total.numpy(), x + y, rtol=1e-6)
    seen = a[:, :32]
    np.add(a, ops.to_device(y), out=a)  # `seen` is a view of it
    np.testing.assert_allclose(seen.numpy(), (2 * x + y)[:, :32], rtol=1e-6)
    c = ops.to_device(x)
    gate, up = (ops.linear(c, weight) for weight in ops.stack([first, second]))
    np.testing.assert_allclose(up.numpy(), x @ second.T, rtol=1e-4, atol=1e-4)
    silu = x @ first.T / (1 + np.exp(-(x @ first.T)))
    np.testing.assert_allclose(ops.swiglu(gate, up).numpy(), silu * (x @ second.T), rtol=1e-4, atol=1e-4)
    before = counts(backend)
    gate, up = (ops.linear(c, weight) for weight in ops.stack([first, second]))
    ops.swiglu(gate, up)
    del gate, up
    assert (counts(backend) - before).resident <= 2 * first.nbytes + 2 * x.nbytes


@pytest.mark.parametrize("dtype", ("f16", "f32"))
def test_sequences_grow_and_share_prefixes(dtype, backend):
    """Beyond the room that an array of keys began with, and in a copy of another sequence's beginning."""
    tokens = (TEXTS[0] * 8)[:300]
    within = 2e-4 if dtype == "f32" else 3e-3
    with (
        open_engine(DATA / "qwen3_vl", backend, cache_dtype=dtype, context=400) as engine,
        LayerWiseInferenceEngine(DATA / "qwen3_vl", backend="python", cache_dtype="f32", context=400) as host,
    ):
        wanted = host.forward(tokens, all_positions=True)
        engine.forward(tokens[:250], cache := engine.new_cache())
        found = [engine.forward([token], cache) for token in tokens[250:]]
        assert np.abs(np.stack(found) - wanted[250:]).max() <= within * np.ptp(wanted)
        other = engine.new_cache()
        other.copy_prefix(cache, 270)
        found = engine.forward(tokens[270:], other)
        assert np.abs(found - wanted[-1]).max() <= within * np.ptp(wanted)


def test_windows_drop_tokens_on_the_device(backend):
    """A layer's last tokens move to the front of its arrays, which have room for a window and a pass."""
    tokens = (TEXTS[0] * 60)[:1500]
    options = {"cache_dtype": "f32", "context": 2000}
    with (
        open_engine(DATA / "gemma3", backend, **options) as engine,
        LayerWiseInferenceEngine(DATA / "gemma3", backend="python", **options) as host,
    ):
        wanted = host.forward(tokens, all_positions=True)[-2:]
        engine.forward(tokens[:-2], cache := engine.new_cache())
        assert cache.dropped > 0
        agree(np.stack([engine.forward([token], cache) for token in tokens[-2:]]), wanted)


def test_what_a_device_cannot_hold_is_computed_as_before(backend, tmp_path):
    """Sequences in files stay in host memory, also beside a model on the device; so do models of q8_0."""
    with open_engine(DATA / "qwen3", backend, kv_cache_dir=tmp_path) as engine:
        agree(engine.forward(TEXTS[1], engine.new_cache("one")), reference("qwen3")[1][-1])
    with open_engine(DATA / "qwen3", backend, there=False, cache_dtype="q8_0") as engine:
        assert engine.model.why_not_on_device == "devices have no kernels that write q8_0"
        found = engine.forward(TEXTS[1])
        assert np.abs(found - reference("qwen3")[1][-1]).max() < 0.02 * np.ptp(found)


def test_float32_compute_unpacks_on_the_device(backend, tmp_path):
    path = tiny_gguf.write_gguf("llama3", tmp_path / "llama3.gguf", "blocks")
    with open_engine(path, backend, compute="float32") as engine:
        start = counts(backend)
        found = engine.forward(TEXTS[1], all_positions=True)
        assert (counts(backend) - start).uploaded <= 64 * KIB
        agree(found, reference("llama3", "blocks")[1])


def test_arrays_on_a_device_compute_as_numpy_arrays_do(backend):
    ops = registry.open_backend(backend).module.device_ops()
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((6, 10), np.float32) for _ in range(2))
    a, b = map(ops.to_device, (x, y))
    for name in ops.elementwise:
        function = getattr(np, name)
        np.testing.assert_allclose(function(a, b).numpy(), function(x, y), rtol=2e-6)
        np.testing.assert_allclose(function(a, np.float32(3)).numpy(), function(x, np.float32(3)), rtol=2e-6)
    np.testing.assert_array_equal((a[2:5, 1:3].swapaxes(0, 1) + b[2:5, :1].swapaxes(0, 1)).numpy(),
                                  x[2:5, 1:3].T + y[2:5, :1].T)  # fmt: skip
    a[1:3, 2:4] = b[3:5, 6:8]
    x[1:3, 2:4] = y[3:5, 6:8]
    a[1:] = a[:-1]
    x[1:] = x[:-1].copy()
    np.testing.assert_array_equal(a.numpy(), x)
    np.testing.assert_array_equal(np.concatenate([a[4:], b]).numpy(), np.concatenate([x[4:], y]))
    np.testing.assert_array_equal(a[:, 2:8].reshape(6, 2, 3).numpy(), x[:, 2:8].reshape(6, 2, 3))
    np.testing.assert_array_equal(a[1:4, 2:8].reshape(-1).numpy(), x[1:4, 2:8].reshape(-1))
    with pytest.raises(TypeError, match=r"has no numpy\.argsort, expected one of add, "):
        np.argsort(a)
    with pytest.raises(TypeError, match=r"has no numpy\.sin, expected one of add, "):
        np.sin(a)


def test_caches_that_were_made_by_hand_go_to_the_device_too(backend):
    with open_engine(DATA / "smollm2", backend) as engine:
        cache = Cache(engine.config, 64, "f32")
        agree(engine.forward(TEXTS[1], cache), reference("smollm2")[1][-1])
        assert not isinstance(cache.layer(0), np.ndarray)
