"""Whole models on a device: their logits are those of transformers, and what crosses the bus is counted."""

import dataclasses
import gc
from types import SimpleNamespace

import numpy as np
import pytest

from airllm import tensor_ops
from airllm.architectures import open_config
from airllm.backends import registry
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.backends.device.op_methods import OF_TWO
from airllm.convert.quantize import quantize
from airllm.engine import info
from airllm.engine.layers.layer_inputs import LayerInputs
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache import Cache
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, agree_with_all, counts, keep_one_recording, open_engine
from tests.support.models import tiny_gguf
from tests.support.models.tiny_models import DATA, FOLDERS, reference, texts

KIB = 1024
TEXTS = texts()
backend, placed = device_models.backend, device_models.placed
kernels_of_gpus = device_models.kernels_of_gpus


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_are_those_of_transformers(name, backend):
    with open_engine(DATA / name, backend) as engine:
        agree_with_all(engine, reference(name))


@pytest.mark.parametrize("name", ("deepseek_v2", "deepseek_v3"))
def test_what_crosses_the_bus_per_token_of_latent_attention(name, backend):
    """What a token keeps is one row for keys and values, and stays on the device. MLX does not say how many
    kernels it starts.
    """
    before, wanted = counts(backend), reference(name)[1]
    with open_engine(DATA / name, backend) as engine:
        held = (counts(backend) - before).resident
        engine.forward(TEXTS[1][:-4], cache := engine.new_cache())
        tokens = []
        for number, token in enumerate(TEXTS[1][-4:]):
            start = counts(backend)
            agree(engine.forward([token], cache), wanted[number - 4])
            tokens.append(spent := counts(backend) - start)
            assert 0 < spent.uploaded <= 64 * KIB
            assert spent.downloaded == wanted[0].nbytes and spent.waits == 1
            assert spent.launches <= 20 * engine.config.layers + 4
        keep_one_recording(tokens)
        assert len(cache.on_device()) == engine.config.layers
        kept = [each for layer in cache.on_device() for each in cache.layer(layer).arrays]
        width = engine.config.kv_rank + engine.config.rope.dim
        assert [(*each.shape[:2], each.shape[3]) for each in kept] == [(1, 1, width)] * engine.config.layers
        held_by_rows = sum(each.nbytes for each in kept)
        assert (counts(backend) - before).resident - held <= held_by_rows + 64 * KIB


def test_latents_in_blocks_and_prefixes_on_the_device(backend, tmp_path):
    """Of quantized matrices, those of values stay blocks; a prompt's beginning is shared; files have all."""
    path = tiny_gguf.write_gguf("deepseek_v3", tmp_path / "tiny.gguf", "blocks")
    wanted = reference("deepseek_v3", "blocks")[1]
    with open_engine(path, backend, kv_cache_dir=tmp_path) as engine:
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache("one"))
        other = engine.new_cache()
        other.copy_prefix(cache, len(TEXTS[1]) - 6)
        agree(engine.forward(TEXTS[1][-6:], other), wanted[-1])
    del cache, other
    with open_engine(path, "cpp", False, kv_cache_dir=tmp_path, compute="float32") as engine:
        agree(engine.forward(TEXTS[1][-3:], engine.new_cache("one")), wanted[-1])


@pytest.mark.parametrize("options", ({"offload": "stream"}, {"offload": "split"}, {"compute": "float32"}))
def test_latent_attention_with_few_layers_on_the_device(options, placed):
    options = options | ({"gpu_layers": 1} if "offload" in options else {})
    with open_engine(DATA / "deepseek_v3", placed, **options) as engine:
        agree(engine.forward(TEXTS[1], all_positions=True), reference("deepseek_v3")[1])


def test_kernels_of_gpus_compute_whole_models_too(kernels_of_gpus, tmp_path):
    path = tiny_gguf.write_gguf("llama3", tmp_path / "tiny.gguf", "blocks")
    wanted = reference("llama3", "blocks")[1]
    with open_engine(path, "opencl") as engine:
        agree(engine.forward(TEXTS[1][:-4], cache := engine.new_cache()), wanted[-5])
        agree(np.stack([engine.forward([token], cache) for token in TEXTS[1][-4:]]), wanted[-4:])


@pytest.mark.parametrize("name", ("llama2", "falcon_h1", "qwen2_moe", "deepseek_v3"))
def test_a_closed_model_leaves_nothing_on_the_device(name, backend):
    """At once, and not when Python looks for cycles: another model may need the memory. The ops kept the last
    products, of Falcon-H1 with their weight.
    """
    before = counts(backend)
    gc.disable()
    try:
        with open_engine(DATA / name, backend) as engine:
            engine.forward(TEXTS[1][:-1], cache := engine.new_cache())
            engine.forward(TEXTS[1][-1:], cache)
        del engine, cache
        assert (counts(backend) - before).resident == 0
    finally:
        gc.enable()


def test_work_groups_beside_each_other_have_local_memory_of_their_own(kernels_of_gpus):
    """The sums of a kernel were in memory that all work-groups shared."""
    ops = registry.open_backend("opencl").module.device_ops()
    random = np.random.default_rng(3)
    stored = tensor_ops.quantize(random.standard_normal((128, 512)).astype(np.float32), "q4_0")
    x = random.standard_normal((1, 512)).astype(np.float32)
    weight, both = ops.to_device(stored), x @ stored.dequantize().T
    gate, up = both[:, :64], both[:, 64:]
    exact = gate / (1 + np.exp(-gate)) * up
    for _ in range(300):
        found = ops.to_host(ops.gated(ops.to_device(x), weight, 64, activation=1))
        assert np.abs(found - exact).max() <= 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("name", ("mixtral", "deepseek_v3"))
def test_info_says_where_the_arrays_of_a_model_are(name, backend, monkeypatch):
    monkeypatch.setenv("AIRLLM_BACKEND", backend)
    tensor_ops.reload_backend()
    try:
        assert "Arrays:      they stay on the device" in info.lines(DATA / name)
    finally:
        monkeypatch.undo()
        tensor_ops.reload_backend()


def test_what_crosses_the_bus_per_token(backend, tmp_path):
    """Blocks stay blocks: what is resident are the bytes of the file, and arrays of one token. MLX's groups
    have float32 scales.
    """
    path = tiny_gguf.write_gguf("llama3", tmp_path / "llama3.gguf", "blocks")
    before = counts(backend)
    with open_engine(path, backend) as engine:
        stored = engine.model.weight_bytes
        most = 1.4 * stored if backend == "mlx" else stored
        assert stored <= (counts(backend) - before).resident <= most
        engine.forward(TEXTS[0][:-4], cache := engine.new_cache())
        held = (counts(backend) - before).resident
        room = 256 * 2 * 4 * engine.config.layers * engine.config.kv_heads * engine.config.head_dim
        assert stored < held <= most + room + 64 * KIB
        tokens = []
        for token in TEXTS[0][-4:]:
            start = counts(backend)
            logits = engine.forward([token], cache)
            tokens.append(spent := counts(backend) - start)
            assert 0 < spent.uploaded <= 64 * KIB
            assert spent.downloaded == logits.nbytes
            assert spent.waits == 1
        keep_one_recording(tokens)
    del cache
    assert (counts(backend) - before).resident == 0


def test_inputs_of_layers_are_made_there(backend, tmp_path):
    """Of a token, a row of their table goes up, and it is embedded once. The table stays in host memory."""
    path = tiny_gguf.write_gguf("gemma4", tmp_path / "gemma4.gguf", "blocks")
    before = counts(backend)
    with open_engine(path, backend) as engine:
        table, c = engine.model._layer_inputs.table.nbytes, engine.config
        assert (counts(backend) - before).uploaded <= engine.model.weight_bytes - table + 4 * KIB
        engine.forward(TEXTS[1][:-4], cache := engine.new_cache())
        engine.forward(TEXTS[1][-4:-3], cache)
        wanted, tokens = reference("gemma4", "blocks")[1][-3:], []
        for token, expected in zip(TEXTS[1][-3:], wanted, strict=True):
            start = counts(backend)
            agree(logits := engine.forward([token], cache), expected)
            tokens.append(spent := counts(backend) - start)
            row = 4 * c.layers * c.layer_input
            assert row <= spent.uploaded <= row + 16 * KIB * (backend == "webgpu") + KIB
            assert spent.downloaded == logits.nbytes and spent.waits == 1
        keep_one_recording(tokens)


def test_inputs_of_layers_are_those_of_their_definition(backend):
    """Of tokens together and alone, with an epsilon that counts."""
    rng, eps = np.random.default_rng(2), 0.25
    c = dataclasses.replace(open_config(DATA / "gemma4"), norm_eps=eps, vocabulary=3)
    wide = c.layers * c.layer_input
    projection, norm = (
        rng.standard_normal((wide, c.width), np.float32),
        rng.standard_normal(c.layer_input, np.float32),
    )
    rows, x = rng.standard_normal((3, wide), np.float32), rng.standard_normal((3, c.width), np.float32)
    projected = (x.astype(np.float64) @ projection.T * c.width**-0.5).reshape(3, c.layers, -1)
    normed = projected / np.sqrt((projected**2).mean(axis=-1, keepdims=True) + eps) * norm
    wanted = (normed + rows.reshape(normed.shape) * c.layer_input**0.5) * 2**-0.5

    tensors = {"layer_embedding": rows, "layer_projection": projection, "layer_projection_norm": norm}
    names = SimpleNamespace(config=c, tensor=tensors.__getitem__, file_name=str)
    of = LayerInputs(names)
    ops = registry.open_backend(backend).module.device_ops()
    there = of.moved(ops.to_device)
    for some in (slice(0, 3), slice(1, 2)):
        given = (ops.to_device(each[some]) for each in (of.weigh(rows), x))
        found = there.of(ops, *given).numpy()
        np.testing.assert_allclose(found.swapaxes(0, 1), wanted[some], rtol=1e-4, atol=1e-4)
        host = of.of(KernelBackend("python"), of.weigh(rows[some]), x[some])
        np.testing.assert_allclose(host, found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "format"),
    (("llama3", "q4_0"), ("gemma", "q4_0"), ("qwen2", "q4_0"), ("qwen3", "q4_0"), ("llama3", "q5_0")),
)
def test_a_layer_of_a_token_is_at_most_eight_launches(name, format, backend, tmp_path):
    """Also with another activation, with biases of queries, keys and values, with norms of queries and keys,
    and in a format without kernels of its own for CPU devices. Before and after the layers come the
    embedding, the last norm and the output. MLX does not say how many kernels it starts.
    """
    floats = tiny_gguf.write_gguf(name, tmp_path / "floats.gguf")
    quantize(floats, path := tmp_path / "blocks.gguf", format)
    with open_engine(path, backend) as engine, open_engine(path, "python", False) as host:
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
        wanted = host.forward(TEXTS[1], all_positions=True)[-3:]
        for token, logits in zip(TEXTS[1][-3:], wanted, strict=True):
            start = counts(backend)
            agree(engine.forward([token], cache), logits)
            spent = counts(backend) - start
            assert (spent.launches > 0) == (backend != "mlx")
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


def test_sequences_in_files_are_on_the_device_too(backend, tmp_path):
    """The file has all that was computed there: another engine goes on with it."""
    wanted = reference("qwen3")[1]
    with open_engine(DATA / "qwen3", backend, kv_cache_dir=tmp_path) as engine:
        cache = engine.new_cache("one")
        engine.forward(TEXTS[1][:-6], cache)
        start = counts(backend)
        agree(engine.forward(TEXTS[1][-6:-5], cache), wanted[-6])
        spent = counts(backend) - start
        each = 2 * 4 * engine.config.layers * engine.config.kv_heads * engine.config.head_dim
        assert (
            spent.uploaded <= 64 * KIB and spent.downloaded == wanted[-6].nbytes + each and spent.waits == 2
        )
        other = engine.new_cache("two")
        other.copy_prefix(cache, len(TEXTS[1]) - 8)
        assert cache.on_device() and other.on_device()
    del cache, other
    with LayerWiseInferenceEngine(
        DATA / "qwen3", backend="python", cache_dtype="f32", kv_cache_dir=tmp_path
    ) as engine:
        for name, length in (("one", 5), ("two", 8)):
            cache = engine.new_cache(name)
            assert cache.tokens == TEXTS[1][:-length]
            agree(engine.forward(TEXTS[1][-length:-4], cache), wanted[-5])
    del cache
    with open_engine(DATA / "qwen3", backend, kv_cache_dir=tmp_path) as engine:
        agree(engine.forward(TEXTS[1][-4:], cache := engine.new_cache("one")), wanted[-1])
        cache.truncate(len(TEXTS[1]) - 9)
        agree(engine.forward(TEXTS[1][-9:], cache), wanted[-1])


def test_windows_of_sequences_in_files(tmp_path):
    """A layer's last tokens move in the file as on the device. On OpenCL alone: llvmpipe takes seconds."""
    if why_not := registry.open_backend("opencl").why_not:
        pytest.skip(why_not)
    tokens, options = (TEXTS[0] * 60)[:1500], {"cache_dtype": "f32", "context": 2000}
    with open_engine(DATA / "gemma3", "opencl", kv_cache_dir=tmp_path, **options) as engine:
        full = (cache := engine.new_cache("one")).until
        engine.forward(tokens[:full], cache)
        assert cache.dropped == 0
        engine.forward(tokens[full : full + 1], cache)
        assert cache.dropped > 0 and cache.on_device()
    del cache
    with LayerWiseInferenceEngine(DATA / "gemma3", backend="cpp", **options) as host:
        wanted = host.forward(tokens[: full + 2])
    with LayerWiseInferenceEngine(DATA / "gemma3", backend="cpp", kv_cache_dir=tmp_path, **options) as host:
        agree(host.forward(tokens[full + 1 : full + 2], host.new_cache("one")), wanted)


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
    np.testing.assert_allclose(np.tanh(9 * a).numpy(), np.tanh(9 * x), rtol=2e-6, atol=1e-7)
    np.testing.assert_array_equal(np.clip(a, -1, 0.5).numpy(), np.clip(x, -1, 0.5))
    for name in OF_TWO:
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
