"""Keys and values in blocks of q8_0 on a device: writing, attending, whole models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airllm.backends import registry
from airllm.formats import FORMATS
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, counts, keep_one_recording, open_engine, running
from tests.support.models import wide_gguf
from tests.support.models.tiny_models import DATA, texts

KIB = 1024
TEXTS = texts()
Q8_0 = FORMATS["q8_0"]
backend = device_models.backend
kernels_of_gpus = device_models.kernels_of_gpus


@pytest.fixture
def ops(backend):
    return registry.open_backend(backend).module.device_ops()


def open_host(path: Path, **options: Any) -> LayerWiseInferenceEngine:
    """An engine on the CPU that rounds nothing but keys and values."""
    given = {"backend": "cpp", "cache_dtype": "q8_0", "compute": "float32"} | options
    return LayerWiseInferenceEngine(path, **given)


def encoded(x: np.ndarray) -> np.ndarray:
    """Rows (..., d) as rows of blocks, by the format's definition."""
    return Q8_0.encode(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def check_rows(ops, d: int) -> None:
    """Rows of several heads between others, which stay: with zeros, halves between codes, and one large
    value. Blocks of an odd number lie at odd halves of words.
    """
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 2, d), np.float32)
    x[0, 0] = 0
    x[1, 1, :32] = np.resize([127, 0.5, -0.5, 1.5, -2.5, 3.25], 32)  # of the scale 1
    x[2, 0, 5] = 1e5
    before = encoded(rng.standard_normal((2, 6, d), np.float32))
    kept = ops.to_device(before)
    ops.assign_blocks(kept[:, 2:5], ops.to_device(x).swapaxes(0, 1))
    wanted = before.copy()
    wanted[:, 2:5] = encoded(x).swapaxes(0, 1)
    np.testing.assert_array_equal(kept.numpy(), wanted)
    other = ops.empty((2, 4, before.shape[-1]), np.uint8)
    other[:, 1:] = kept[:, 2:5]
    other[:, :1] = before[:, :1]
    wanted = np.concatenate([before[:, :1], wanted[:, 2:5]], axis=1)
    np.testing.assert_array_equal(other.numpy(), wanted)
    np.testing.assert_array_equal(ops.read_blocks(other[1:, 1:3]).numpy(), Q8_0.decode(wanted[1:, 1:3]))


@pytest.mark.parametrize("d", (32, 96, 128))
def test_rows_are_those_of_the_format(d, ops):
    check_rows(ops, d)


def check_attention(ops, heads: int, tokens: int, d: int, value_dim: int, sinks: bool) -> None:
    """Of the last tokens, in float64; the array has room for more, and then for twice as many. With a
    `value_dim`, values are parts of keys.
    """
    rng, length, groups = np.random.default_rng(4), 150, 1 if value_dim else 2
    kept = encoded(rng.standard_normal((1 if value_dim else 2, groups, 256, d), np.float32))
    q, scale = rng.standard_normal((heads, tokens, d), np.float32), float(1.5 / np.sqrt(d))
    own = rng.standard_normal(heads, np.float32) if sinks else None
    keys, *values = Q8_0.decode(kept).astype(np.float64)[:, :, :length]
    values = values[0] if values else keys[..., :value_dim]
    keys, values = (np.repeat(each, heads // groups, axis=0) for each in (keys, values))
    scores = scale * np.einsum("htd,hsd->hts", q.astype(np.float64), keys)
    scores[:, np.arange(length) > np.arange(length - tokens, length)[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    if sinks:
        total += np.exp(own[:, None, None] - scores.max(axis=-1, keepdims=True))
    wanted = (weights / total) @ values
    out = ops.empty((heads, tokens, values.shape[-1]))
    options = {"sinks": ops.to_device(own)} if sinks else {}
    options |= {"value_dim": value_dim} if value_dim else {}
    attend = ops.extension("cached_attention")
    for room in (kept, np.concatenate([kept, kept], axis=2)):
        attend(ops.to_device(q), ops.to_device(room), length, out, scale=scale, **options)
        assert np.abs(out.numpy() - wanted).max() <= 3e-6 * np.abs(wanted).max()


ATTENTION = pytest.mark.parametrize(("heads", "tokens", "d", "value_dim", "sinks"), (
    (4, 1, 64, 0, False), (4, 20, 32, 0, True), (2, 70, 160, 0, False), (4, 1, 96, 64, False),
    (3, 20, 96, 64, False), (2, 18, 576, 512, False),
))  # fmt: skip


@ATTENTION
def test_attention_reads_blocks(heads, tokens, d, value_dim, sinks, ops):
    check_attention(ops, heads, tokens, d, value_dim, sinks)


@ATTENTION
def test_kernels_of_gpus_attend_to_blocks(heads, tokens, d, value_dim, sinks, kernels_of_gpus):
    check_attention(registry.open_backend("opencl").module.device_ops(), heads, tokens, d, value_dim, sinks)


def test_kernels_of_gpus_write_rows(kernels_of_gpus):
    check_rows(registry.open_backend("opencl").module.device_ops(), 96)


@pytest.mark.parametrize(("name", "compute"), (
    ("qwen3", "stored"), ("smollm2", "stored"), ("deepseek_v3", "stored"), ("qwen3", "float32"),
))  # fmt: skip
def test_models_with_blocks_in_caches_run_on_the_device(name, compute, backend):
    """As on the CPU: a code that is rounded to its neighbour would change more than that."""
    with (
        open_host(DATA / name) as host,
        open_engine(DATA / name, backend, cache_dtype="q8_0", compute=compute) as engine,
    ):
        wanted = [host.forward(text, all_positions=True) for text in TEXTS]
        agree(engine.forward(TEXTS[1], cache := engine.new_cache(), all_positions=True), wanted[1])
        cache.truncate(len(TEXTS[1]) - 4)
        tokens = []
        for number, token in enumerate(TEXTS[1][-4:]):
            start = counts(backend)
            agree(engine.forward([token], cache), wanted[1][number - 4])
            tokens.append(spent := counts(backend) - start)
            assert 0 < spent.uploaded <= 64 * KIB
            assert spent.downloaded == wanted[1][0].nbytes and spent.waits == 1
            if compute == "stored" and backend != "mlx" and name == "qwen3":
                assert spent.launches <= 8 * engine.config.layers + 4
        keep_one_recording(tokens)
        assert len(cache.on_device()) == engine.config.layers
        caches = [engine.new_cache() for _ in TEXTS]
        engine.forward([text[:-2] for text in TEXTS], caches)
        found = engine.forward([text[-2:] for text in TEXTS], caches, all_positions=True)
        for logits, of_text in zip(found, wanted, strict=True):
            agree(logits, of_text[-2:])


@pytest.mark.parametrize(("name", "within"), (("gemma3", 4e-4), ("gpt_oss", 5e-3)))
def test_windows_of_blocks(name, within, tmp_path):
    """And sinks. Layers with a window drop tokens: rows of blocks move to the front. Of so many codes some
    are rounded to their neighbours, which the experts of random weights magnify: q8_0 itself changes these
    logits by 2e-3 and 1e-2. On OpenCL alone: llvmpipe takes minutes.
    """
    path, tokens = wide_gguf.write_wide(name, tmp_path / "wide.gguf"), (TEXTS[0] * 60)[:1030]
    with (
        open_host(path, context=1200) as host,
        open_engine(path, running("opencl"), cache_dtype="q8_0", context=1200) as engine,
    ):
        host.forward(tokens[:-2], of_host := host.new_cache())
        engine.forward(tokens[:-2], cache := engine.new_cache())
        assert cache.dropped > 0
        for token in tokens[-2:]:
            agree(engine.forward([token], cache), host.forward([token], of_host), within)


def test_blocks_of_prefixes_and_files(backend, tmp_path):
    """A copy of a sequence's beginning; a file that another engine goes on with, and back. The context is no
    multiple of what arrays on a device grow by.
    """
    options = {"cache_dtype": "q8_0", "context": 301, "kv_cache_dir": tmp_path}
    tokens = (TEXTS[0] * 8)[:280]
    with open_host(DATA / "qwen3", context=301) as host:
        wanted = host.forward(tokens, all_positions=True)
    with open_engine(DATA / "qwen3", backend, **options) as engine:
        engine.forward(tokens[:255], cache := engine.new_cache("one"))
        for token in tokens[255:260]:
            engine.forward([token], cache)
        assert cache.layer(0).arrays[0].shape[2] == 384  # 301 rows would end where kernels take no array
        other = engine.new_cache()
        other.copy_prefix(cache, 257)
        agree(engine.forward(tokens[257:], other), wanted[-1])
    del cache, other
    with open_host(DATA / "qwen3", context=301, kv_cache_dir=tmp_path) as host:
        agree(host.forward(tokens[260:270], cache := host.new_cache("one")), wanted[269])
    del cache
    with open_engine(DATA / "qwen3", backend, **options) as engine:
        agree(engine.forward(tokens[270:], engine.new_cache("one")), wanted[-1])


@pytest.mark.parametrize("name", ("qwen3", "deepseek_v3"))
def test_blocks_that_come_back_are_those_of_the_cpu(name, backend):
    """Where sums differ by their last bits, a code may be rounded to its neighbour."""
    with (
        open_host(DATA / name) as host,
        open_engine(DATA / name, backend, cache_dtype="q8_0") as engine,
    ):
        host.forward(TEXTS[1][:-3], of_host := host.new_cache())
        engine.forward(TEXTS[1][:-3], cache := engine.new_cache())
        cache.fetch_layers()
        assert not cache.on_device()
        for layer in range(engine.config.layers):
            kept = zip(cache.layer(layer).arrays, of_host.layer(layer).arrays, strict=True)
            for found, wanted in kept:
                found, wanted = found[:, :, : cache.length], wanted[:, :, : cache.length]
                assert wanted.any() and np.mean(found != wanted) < 0.01
        agree(host.forward(TEXTS[1][-3:], cache), host.forward(TEXTS[1][-3:], of_host), 1e-3)
