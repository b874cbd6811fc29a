"""Caches of q8_0 blocks, read as they are stored: attention to them, and whole layers that fill them."""

import guarded_memory
import numpy as np
import pytest
from accuracy import assert_agrees
from attention_cases import exact
from decoder_cases import (
    BATCHES,
    CAPACITY,
    PYTHON,
    agree,
    batch_of,
    composed,
    config,
    having,
    layer_of,
    on_threads,
)

from airllm import tensor_ops
from airllm.architectures.layer_spec import Rope
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.layers.native_decode import FusedLayers
from airllm.engine.layers.rows import Rows
from airllm.formats import Quantized
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache import Cache
from tests.support.models.tiny_models import DATA

before_a_hole = guarded_memory.before_a_hole
MODELS = {
    "32": {},
    "64": {"head_dim": 64, "rope": Rope(1e4, 64), "heads": 9, "kv_heads": 3},
    "96": {"head_dim": 96, "rope": Rope(1e4, 96), "heads": 8, "kv_heads": 2},
    "128": {"head_dim": 128, "rope": Rope(1e4, 128), "heads": 5, "kv_heads": 1, "qk_norm": "head"},
    "windows": {"windows": (5, 130)},
    "capped": {"attention_softcap": 2.0, "heads": 2},
}
# Lengths before, and new tokens, of each sequence: around a vector of keys, and the 128 of a block of them.
LENGTHS = {
    **{name: BATCHES[name] for name in ("first token", "eight tokens", "unequal")},
    "a vector": [(14, 1), (15, 2)],
    "around a block": [(126, 1), (127, 1), (128, 1), (126, 4)],
    "blocks": [(255, 1), (256, 3)],
    "full": [(CAPACITY - 3, 3)],
}


class Filled(Cache):
    """What the call under test has put there is what the definition reads."""

    def append(self, *_):
        pass


def in_blocks(c, rows, kind=Cache):
    """The same rows, with what their caches have as q8_0."""
    found = []
    for part in rows:
        cache = kind(c, CAPACITY, "q8_0")
        for (blocks,), (floats,) in zip(cache.arrays, part.cache.arrays, strict=True):
            blocks[...] = tensor_ops.quantize(floats, "q8_0").data
        cache.extend(part.cache.tokens)
        found.append(Rows(part.start, part.stop, cache))
    return found


def compare(c, batch):
    """Two layers in one call: x by the definition from the bytes that are then in the caches."""
    layers = [layer_of(c, i) for i in range(2)]
    fused = FusedLayers(KernelBackend("cpp"), layers)
    x, angles, rows = batch_of(c, batch)
    before = x.copy()
    rows = in_blocks(c, rows)
    assert fused.supports(rows)
    fused.run(x, angles, rows)
    filled = in_blocks(c, rows_of_floats := batch_of(c, batch)[2], Filled)
    for part, other in zip(rows, filled, strict=True):
        for (to,), (array,) in zip(other.cache.arrays, part.cache.arrays, strict=True):
            to[...] = array
    agree(x, composed(PYTHON, before, angles, filled, layers), 2e-5)
    fused.run(before, angles, rows_of_floats)
    for part, floats in zip(rows, rows_of_floats, strict=True):
        expected = tensor_ops.quantize(floats.cache.layer(0).both, "q8_0").data
        np.testing.assert_array_equal(part.cache.layer(0).both, expected)
        found, wanted = (each.cache.read(1, each.cache.length + 1) for each in (part, floats))
        agree(np.stack(found), np.stack(wanted), 0.1)


@having
@pytest.mark.parametrize("model", MODELS)
def test_a_layer_reads_and_fills_blocks(model, reached):
    for batch in LENGTHS.values():
        compare(config(**MODELS[model]), batch)


@having
@pytest.mark.parametrize("model", ("64", "windows"))
def test_threads_share_the_blocks(model, target, reached):
    c = config(**{"width": 256, "feed_forward": 512} | MODELS[model])
    with on_threads(target, reached, 3):
        for batch in ("unequal", "blocks", "full"):
            compare(c, LENGTHS[batch])


def sample(h, g, t, length, d, capacity):
    rng = np.random.default_rng(t)
    q = rng.standard_normal((t, h, d), np.float32).swapaxes(0, 1)
    kept = tensor_ops.quantize(rng.standard_normal((2, g, capacity, d), np.float32), "q8_0")
    return q, kept, [a[:, :length] for a in kept.dequantize()]


@having
@pytest.mark.parametrize("t, length", [(1, 1), (1, 300), (7, 7), (9, 130), (50, 50), (200, 333)])
@pytest.mark.parametrize("h, g, d", [(9, 3, 64), (2, 2, 32), (8, 1, 96), (4, 2, 128)])
def test_attention_to_blocks(h, g, d, t, length, reached):
    """Of few rows, and of panels of many."""
    q, kept, (k, v) = sample(h, g, t, length, d, 340)
    sinks = np.linspace(-3, 5, h, dtype=np.float32)
    for options in ({}, {"window": 20}, {"softcap": 3.0, "scale": 0.3}, {"sinks": sinks, "window": 20}):
        out = np.full((t, h, d), np.nan, np.float32).swapaxes(0, 1)
        reached.cached_attention(q, kept.data, length, out, **options)
        assert_agrees(out, exact(q, k, v, causal=True, **options), np.float32)
    np.testing.assert_array_equal(kept.dequantize()[:, :, :length], [k, v])


@having
def test_threads_share_many_keys(target, reached):
    q, kept, (k, v) = sample(3, 1, 2, 6000, 64, 6000)
    out = np.empty((3, 2, 64), np.float32)
    with on_threads(target, reached, 3):
        for sinks in (None, np.array([-2.0, 1.0, 9.0], np.float32)):
            reached.cached_attention(q, kept.data, 6000, out, sinks=sinks)
            assert_agrees(out, exact(q, k, v, causal=True, sinks=sinks), np.float32)


@having
def test_floats_are_read_too(reached):
    q, kept, _ = sample(4, 2, 3, 40, 36 - 4, 41)
    floats = kept.dequantize().astype(np.float16)
    out = np.empty(q.shape, np.float32)
    reached.cached_attention(q, floats, 40, out)
    assert_agrees(out, exact(q, *floats[:, :, :40], causal=True), np.float32)


WRONG = {
    "q has shape": {"q": np.zeros((1, 4, 2, 32), np.float32)},
    r"kept has shape \(2, 2, 10, 64\), expected \(2, g, capacity, 32\)": {"kept": (2, 2, 10, 68)},
    r"kept has shape \(2, 3, 10, 32\)": {"kept": (2, 3, 10, 34)},
    r"kept has shape \(2, 0, 10, 32\)": {"kept": (2, 0, 10, 34)},
    r"kept has shape \(3, 2, 10, 32\)": {"kept": (3, 2, 10, 34)},
    "kept has data of another kind": {"kept": (2, 2, 10, 33)},
    "length has value 11, expected 2 to 10": {"length": 11},
    "length has value 1, expected 2 to 10": {"length": 1},
    "out has shape": {"out": np.zeros((4, 2, 31), np.float32)},
    "window has value 0": {"window": 0},
    "origin has value 128, expected a multiple of 256": {"origin": 128},
    "few_rows has type int, expected a bool": {"few_rows": 1},
    r"sinks has shape \(3,\), expected \(h\) with h=4": {"sinks": np.zeros(3, np.float32)},
    r"sinks has dtype float16, expected float32": {"sinks": np.zeros(4, np.float16)},
}


@having
@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_attention_is_refused(message, reached):
    given = {"q": np.zeros((4, 2, 32), np.float32), "kept": (2, 2, 10, 34), "length": 2}
    given = given | {"out": np.zeros((4, 2, 32), np.float32)} | WRONG[message]
    given["kept"] = np.zeros(given["kept"], np.uint8)
    with pytest.raises((ValueError, TypeError), match=f"cached_attention: {message}"):
        reached.cached_attention(**given)
    reached.silu(np.ones(1, np.float32))


@having
def test_nothing_is_read_behind_the_last_block(before_a_hole, reached):
    for d in (32, 64, 96):
        for t in (1, 40):
            q, kept, (k, v) = sample(2, 1, t, 47, d, 47)
            out = np.empty(q.shape, np.float32)
            reached.cached_attention(q, before_a_hole(kept.data), 47, out)
            assert_agrees(out, exact(q, k, v, causal=True), np.float32)
    c = config()
    x, angles, rows = batch_of(c, LENGTHS["full"])
    rows = in_blocks(c, rows)
    rows[0].cache.arrays = [(before_a_hole(rows[0].cache.arrays[0][0]),)]
    FusedLayers(KernelBackend("cpp"), [layer_of(c, i) for i in range(2)]).run(x, angles, rows)
    assert np.isfinite(x).all()


@having
def test_a_model_never_unpacks_a_cache(monkeypatch, reached):
    """Neither a prompt nor what is generated after it."""
    with LayerWiseInferenceEngine(DATA / "qwen3", backend="python", cache_dtype="q8_0") as engine:
        cache = engine.new_cache()
        expected = [engine.forward(list(range(40)), cache), engine.forward([3], cache)]
    monkeypatch.delattr(Cache, "read")
    monkeypatch.delattr(Quantized, "dequantize")
    with LayerWiseInferenceEngine(DATA / "qwen3", backend="cpp", cache_dtype="q8_0") as engine:
        cache = engine.new_cache()
        found = [engine.forward(list(range(40)), cache), engine.forward([3], cache)]
    agree(np.stack(found), np.stack(expected), 0.05)


@having
def test_memory_is_counted_for_what_is_unpacked(reached):
    needed = {}
    for backend in ("python", "cpp"):
        with LayerWiseInferenceEngine(
            DATA / "qwen3", backend=backend, cache_dtype="q8_0", context=60
        ) as engine:
            c, needed[backend] = engine.config, engine.memory_estimate().activations
    assert needed["python"] - needed["cpp"] == 4 * 2 * 60 * c.kv_heads * c.head_dim
    reached.silu(np.ones(1, np.float32))
