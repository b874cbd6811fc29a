"""Layers of one model whose heads, head sizes and feed-forward differ, against a definition in float64."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from decoder_cases import BATCHES, agree, batch_of, composed, config, layer_of

from airllm.architectures.layer_spec import LayerSizes, Rope
from airllm.architectures.recurrent import Recurrent
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.layers.native_decode import FusedLayers
from airllm.engine.parallel.tensor_parallel import Shard
from airllm.files.weight_file import ModelFileError
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.cache_layout import CacheLayout
from airllm.memory.kv_cache import Cache
from airllm.memory.kv_cache_file import FileCache
from tests.support.models import uneven_gguf
from tests.support.models.tiny_models import VOCABULARY

MODELS = {
    "heads and their sizes": config(
        rope=Rope(10000.0, 16),
        sizes=(LayerSizes(6, 3, 32, 32, 96), LayerSizes(4, 1, 16, 16, 160)),
    ),
    "values of their own width": config(
        rope=Rope(10000.0, 16),
        sizes=(LayerSizes(6, 2, 24, 8, 160), LayerSizes(2, 2, 16, 64, 32)),
    ),
    "one layer's keys and values for both": config(kv_layers=(0, 0)),
    "the same under a window": config(kv_layers=(0, 0), windows=(9, 9)),
}


def normed(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def rotated(x, positions, rope):
    """The first `dim` values of each head of x (tokens, heads, size), in pairs (i, i + dim / 2)."""
    half = rope.dim // 2
    angles = positions[:, None, None] * rope.theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half : rope.dim]
    turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    return np.concatenate([*turned, x[..., rope.dim :]], axis=-1)


def attended(q, k, v, scale, window):
    """q (tokens, heads, key_dim) are the last of the tokens of k (tokens, kv_heads, key_dim) and v."""
    group, before = q.shape[1] // k.shape[1], len(k) - len(q)
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    at = np.arange(len(q))[:, None] + before - np.arange(len(k))
    scores[:, (at < 0) | (at >= (window or len(k)))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khe->qhe", weights / weights.sum(-1, keepdims=True), v).reshape(len(q), -1)


def defined(c, layers, x, before):
    """The layers' output for tokens that follow others, whose keys and values are `before`."""
    kept = {}
    for layer in layers:
        a, w = c.layer(layer.index).attention, {n: np.float64(each) for n, each in layer.weights.items()}
        h = normed(x, w["attention.norm"], c.norm_eps)
        length = len(before[a.source][0])
        at = np.arange(length, length + len(x), dtype=float)
        q = rotated((h @ w["attention.q"].T).reshape(len(x), a.heads, -1), at, a.rope)
        if a.source == layer.index:
            k = rotated((h @ w["attention.k"].T).reshape(len(x), a.kv_heads, -1), at, a.rope)
            v = (h @ w["attention.v"].T).reshape(len(x), a.kv_heads, -1)
            kept[layer.index] = [
                np.concatenate(pair) for pair in zip(before[layer.index], (k, v), strict=True)
            ]
        x = x + attended(q, *kept[a.source], c.attention_scale, a.window) @ w["attention.output"].T
        h = normed(x, w["feed_forward.norm"], c.norm_eps)
        gate, up = h @ w["feed_forward.gate"].T, h @ w["feed_forward.up"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["feed_forward.down"].T
    return x


def expected(c, layers, x, rows):
    parts = []
    for part in rows:
        before = {
            i: [np.float64(each).swapaxes(0, 1) for each in part.cache.read(i, part.cache.length)]
            for i in range(c.layers)
            if c.layer(i).attention.source == i
        }
        parts.append(defined(c, layers, np.float64(part.of(x)), before))
    return np.concatenate(parts)


@pytest.mark.parametrize("batch", ("from nothing", "long", "unequal"))
@pytest.mark.parametrize("backend", ("python", "cpp"))
@pytest.mark.parametrize("name", MODELS)
def test_layers_with_sizes_of_their_own(name, backend, batch):
    c, ops = MODELS[name], KernelBackend(backend)
    layers = [layer_of(c, i) for i in range(2)]
    x, angles, rows = batch_of(c, BATCHES[batch])
    agree(
        composed(ops, x, angles, rows, layers), expected(c, layers, x, batch_of(c, BATCHES[batch])[2]), 2e-5
    )


@pytest.mark.parametrize("name", [name for name in MODELS if "width" not in name])
def test_native_layers_with_sizes_of_their_own(name):
    c = MODELS[name]
    layers = [layer_of(c, i) for i in range(2)]
    fused = FusedLayers(KernelBackend("cpp"), layers)
    assert not fused.why_not
    for batch in BATCHES.values():
        x, angles, rows = batch_of(c, batch)
        wanted = expected(c, layers, x, rows)
        fused.run(x, angles, rows)
        agree(x, wanted, 2e-5)


def test_values_of_another_width_run_op_by_op():
    c = MODELS["values of their own width"]
    fused = FusedLayers(KernelBackend("cpp"), [layer_of(c, i) for i in range(2)])
    assert fused.why_not == "native layers do not support values of 8 beside keys of 24 in a head"


def test_a_cache_has_what_each_layer_needs():
    a, b, c, d = (CacheLayout(each, 100, "f32") for each in MODELS.values())
    assert a.shapes == [[(1, 2, 3, 100, 32)], [(1, 2, 1, 100, 16)]]
    assert b.shapes == [[(1, 1, 2, 100, 24), (1, 1, 2, 100, 8)], [(1, 1, 2, 100, 16), (1, 1, 2, 100, 64)]]
    assert c.shapes == d.shapes == [[(1, 2, 2, 100, 32)]]
    assert a.token_bytes() == 4 * 2 * (3 * 32 + 16) and b.token_bytes() == 4 * 2 * (24 + 8 + 16 + 64)
    for layout in (a, b, c, d):
        assert layout.nbytes == 100 * layout.token_bytes()
        assert 0 < layout.resident_bytes(1) <= layout.nbytes + 2 * 4096 * len(layout.parts)


def filled(c, length, kind=Cache, *more):
    cache = kind(c, 60, "f32", *more)
    rng = np.random.default_rng(1)
    for arrays in cache.arrays:
        for array in arrays:
            array[:, :, :, :length] = rng.standard_normal(array[:, :, :, :length].shape)
    cache.extend([0] * length)
    return cache


@pytest.mark.parametrize("name", MODELS)
def test_caches_go_back_and_are_copied_and_stored(name, tmp_path):
    c = MODELS[name]
    cache, copy = filled(c, 40), Cache(c, 60, "f32")
    cache.truncate(30)
    copy.copy_prefix(cache, 20)
    assert (cache.length, copy.length) == (30, 20)
    file = filled(c, 40, FileCache, tmp_path, "talk", "whose")
    del file
    again = FileCache(c, 60, "f32", tmp_path, "talk", "whose")
    for layer in {c.layer(i).attention.source for i in range(2)}:
        for other in (copy, again):
            for found, wanted in zip(other.read(layer, 20), cache.read(layer, 20), strict=True):
                np.testing.assert_array_equal(found, wanted)


@dataclass(frozen=True)
class Counter(Recurrent):
    """A mixer whose state has two arrays."""

    kind: ClassVar[str] = "counter"
    shapes: tuple[tuple[int, ...], ...] = ((3, 4), (5,))


RECURRENT = config(vocabulary=9, recurrent=Counter(), recurrent_layers=(True, False))


def test_a_recurrent_state_follows_a_pass():
    cache = Cache(RECURRENT, 60, "f32", windowed=True)
    assert [each.shape for each in cache.recurrent.of(0)[0]] == [(3, 4), (5,)]
    assert cache.layout.shapes == [[(1, 2, 2, 60, 32)]]
    assert cache.layout.nbytes == 60 * cache.layout.token_bytes() + 3 * 4 * (12 + 5)
    for value in (1, 2):
        before, after = cache.recurrent.of(0)
        assert all(np.all(array == value - 1) for array in before)
        for array in after:
            array[...] = value
        if value == 2:  # a pass that failed leaves the state as it was
            assert all(np.all(array == 1) for array in cache.recurrent.of(0)[0])
        cache.extend([7])
    assert all(np.all(array == 2) for array in cache.recurrent.of(0)[0])


def after(cache, tokens, value):
    for array in cache.recurrent.of(0)[1]:
        array[...] = value
    cache.extend(tokens)
    return cache


def test_a_recurrent_state_goes_back_to_its_mark_alone():
    cache = after(Cache(RECURRENT, 60), [1, 2, 3], 5)
    assert (cache.shortest, cache.cut(2), cache.cut(3), cache.cut(9)) == (3, 0, 3, 3)
    cache.truncate(3)
    assert cache.length == 3 and np.all(cache.recurrent.of(0)[0][0] == 5)
    copy = after(Cache(RECURRENT, 60), [8], 1)
    with pytest.raises(ValueError, match="a prefix of 2 tokens of a cache of 3, expected 3 or 3"):
        copy.copy_prefix(cache, 2)
    copy.copy_prefix(cache, 3)
    cache.truncate(2)
    assert cache.length == 0 and np.all(cache.recurrent.of(0)[0][0] == 0)
    assert copy.tokens == [1, 2, 3] and np.all(copy.recurrent.of(0)[0][1] == 5)
    for length in (4, 5):
        after(copy, [length], length)
    assert (copy.shortest, copy.cut(2), copy.cut(3), copy.cut(4), copy.cut(5)) == (3, 0, 3, 3, 5)
    cache.copy_prefix(copy, 3)
    assert np.all(cache.recurrent.of(0)[0][0] == 5) and np.all(copy.recurrent.of(0)[0][0] == 5)
    copy.truncate(4)
    assert copy.length == 3 and np.all(copy.recurrent.of(0)[0][0] == 5)
    after(copy, [6], 7).mark()
    after(copy, [6], 8)
    copy.truncate(4)
    assert copy.length == 4 and np.all(copy.recurrent.of(0)[0][0] == 7)


def test_a_recurrent_state_is_stored(tmp_path):
    for value, tokens in ((3, [1]), (4, [2])):
        cache = FileCache(RECURRENT, 60, "f16", tmp_path, "talk", "whose")
        after(cache, tokens, value)
        del cache
    cache = FileCache(RECURRENT, 60, "f16", tmp_path, "talk", "whose")
    assert cache.tokens == [1, 2] and np.all(cache.recurrent.of(0)[0][0] == 4)
    cache.mark()
    after(cache, [3], 6)
    del cache
    cache = FileCache(RECURRENT, 60, "f16", tmp_path, "talk", "whose")
    assert cache.marked == 2 and np.all(cache.recurrent.of(0)[0][0] == 6)
    cache.truncate(2)
    assert cache.tokens == [1, 2] and np.all(cache.recurrent.of(0)[0][0] == 4)
    cache.truncate(1)
    del cache
    cache = FileCache(RECURRENT, 60, "f16", tmp_path, "talk", "whose")
    assert not cache.tokens and np.all(cache.recurrent.of(0)[0][0] == 0)


class Process:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def all_reduce(self, array):
        raise AssertionError("no layer runs")


def test_processes_share_each_layer_by_its_own_heads():
    c = config(heads=6, kv_heads=2, sizes=(LayerSizes(6, 2, 32, 32, 96), LayerSizes(4, 4, 16, 16, 160)))
    layers = [layer_of(c, i) for i in range(2)]
    shards = [Shard(c, Process(rank, 2)) for rank in range(2)]
    assert [each.config.sizes for each in shards] == [
        (LayerSizes(3, 1, 32, 32, 48), LayerSizes(2, 2, 16, 16, 80))
    ] * 2
    for layer in layers:
        parts = [shard.layer(layer) for shard in shards]
        for name in ("attention.q", "attention.k", "attention.v", "feed_forward.gate"):
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), layer[name])
        for name in ("attention.output", "feed_forward.down"):
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts], 1), layer[name])
    with pytest.raises(ValueError, match="world_size has value 5, expected one of 1, 2 "):
        Shard(c, Process(0, 5))
    with pytest.raises(ValueError, match="keeps a recurrent state, which cannot be divided"):
        Shard(RECURRENT, Process(0, 2))


# -------------------------------------------------------------------------------------------- a whole model


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    return uneven_gguf.write_uneven(tmp_path_factory.mktemp("uneven") / "m.gguf")


TEXT = np.random.default_rng(5).integers(0, VOCABULARY - 1, 300).tolist()


def logits_of(model, tokens):
    """By the definition, from the weights of a model that is open."""
    c = model.config
    nothing = [
        [np.empty((0, a.kv_heads, dim)) for dim in (a.key_dim, a.value_dim)]
        for a in (spec.attention for spec in c.all_layers)
    ]
    x = defined(c, model.layers, np.float64(model.embedding[tokens]), nothing)
    return normed(x, np.float64(model.output_norm), c.norm_eps) @ np.float64(model.output).T


@pytest.mark.parametrize(("backend", "dtype"), (("python", "f32"), ("cpp", "f32"), ("cpp", "f16")))
def test_a_model_of_uneven_layers(uneven, backend, dtype):
    with LayerWiseInferenceEngine(uneven, backend=backend, cache_dtype=dtype) as engine:
        assert engine.config.sizes == tuple(
            LayerSizes(heads, kv_heads, 32, 32, wide)
            for heads, kv_heads, wide in zip(
                uneven_gguf.HEADS, uneven_gguf.KV_HEADS, uneven_gguf.WIDE, strict=True
            )
        )
        wanted = logits_of(engine.model, TEXT)
        within = (2e-4 if dtype == "f32" else 2e-3) * np.ptp(wanted)
        cache = engine.new_cache()
        assert np.abs(engine.forward(TEXT[:200], cache, all_positions=True) - wanted[:200]).max() < within
        cache.truncate(150)  # goes back, then token by token
        for at in range(150, 170):
            assert np.abs(engine.forward([TEXT[at]], cache) - wanted[at]).max() < within
        texts = [TEXT[:70], TEXT[:3], TEXT]
        found = engine.model.run(texts, [engine.new_cache() for _ in texts])
        for text, logits in zip(texts, found, strict=True):
            assert np.abs(logits - wanted[len(text) - 1]).max() < within
        assert engine.memory_estimate(600).kv_cache == engine.new_cache().resident_bytes(600)


def test_sequences_of_uneven_layers_share_and_continue(uneven, tmp_path):
    prompts = [TEXT[:100], TEXT[:100] + [3], TEXT[50:90]]
    with LayerWiseInferenceEngine(uneven, backend="cpp") as engine:
        assert not engine.model.step.why_not
        alone = [engine.generate(prompt, 20) for prompt in prompts]
        assert engine.generate(prompts, 20) == alone
        wanted = engine.forward(TEXT[:90])
    with LayerWiseInferenceEngine(uneven, backend="cpp", kv_cache_dir=tmp_path) as engine:
        engine.forward(TEXT[:80], engine.new_cache("talk"))
        np.testing.assert_allclose(engine.forward(TEXT[80:90], engine.new_cache("talk")), wanted, atol=1e-3)
    with LayerWiseInferenceEngine(uneven, backend="cpp", max_memory=10**7, context=300) as engine:
        assert [engine.generate(prompt, 20) for prompt in prompts] == alone


def test_lists_of_sizes_that_do_not_fit_are_refused(tmp_path):
    for lists, message in (
        ({"heads": [4, 6]}, r"qwen2.attention.head_count has 2 items \[4, 6\], expected 3 whole numbers"),
        ({"kv_heads": [2, 0, 2]}, r"head_count_kv has 3 items \[2, 0, 2\], expected 3 whole numbers from 1"),
        ({"kv_heads": [2, 4, 2]}, "head_count_kv has value 4, expected a divisor of the 6 heads"),
        ({"heads": [4, 8, 2]}, r"tensor blk.1.attn_q.weight has shape \(192, 64\), expected \(256, 64\)"),
    ):
        path = uneven_gguf.write_uneven(tmp_path / "m.gguf", **lists)
        with pytest.raises(ModelFileError, match=message):
            LayerWiseInferenceEngine(path, backend="python")
