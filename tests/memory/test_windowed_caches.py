"""Layers with a window keep only recent tokens: what a model computes is the same, bit for bit."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from airllm.backends.api.memory import MemoryEstimate
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.cache_layout import PASS, CacheLayout
from airllm.memory.kv_cache import Cache
from airllm.memory.kv_cache_file import CacheFileError, FileCache
from tests.support.models import wide_gguf

WINDOW, CONTEXT = wide_gguf.WINDOW, wide_gguf.CONTEXT
ROOM = 1024  # of the window, 64 tokens to go back, a pass of 512, and what is dropped at once: 256
TEXT = np.random.default_rng(0).integers(0, wide_gguf.VOCABULARY, CONTEXT).tolist()


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Files of the models with windows, by name."""
    folder = tmp_path_factory.mktemp("windowed")
    return {name: wide_gguf.write_wide(name, folder / f"{name}.gguf", Kind.Q8_0) for name in MODELS}


MODELS = ("gemma3", "gpt_oss")


@pytest.fixture
def open_model(paths):
    engines = []

    def open_one(name, **options):
        engines.append(LayerWiseInferenceEngine(paths[name], context=CONTEXT, **options))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


def both(engine):
    """A cache that drops tokens, and one that keeps all."""
    model = engine.model
    dtype = engine.cache_dtype
    return engine.new_cache(), Cache(model.config, CONTEXT, dtype)


@pytest.mark.parametrize("cache_dtype", ("f16", "q8_0", "f32"))
@pytest.mark.parametrize("name", MODELS)
def test_long_texts_have_the_same_bits(name, cache_dtype, open_model):
    engine = open_model(name, backend="cpp", cache_dtype=cache_dtype)
    windowed, full = both(engine)
    start = 0
    for count in (700, 3, 520, 16, *([1] * 900), 300, 60, *([1] * 5)):
        part = TEXT[start : start + count]
        found, expected = (engine.model.run([part], [cache])[0] for cache in (windowed, full))
        np.testing.assert_array_equal(found, expected, f"{start} + {count}")
        start += count
    assert windowed.dropped > 10 * WINDOW and full.dropped == 0 and not full.layout.window


def test_another_backend_reads_what_is_left(open_model):
    engine = open_model("gemma3", backend="python", cache_dtype="f32")
    windowed, full = both(engine)
    for start, stop in ((0, 1200), (1200, 1201), (1201, 1300)):
        part = TEXT[start:stop]
        found, expected = (engine.model.run([part], [cache])[0] for cache in (windowed, full))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.ptp(expected))
    assert windowed.dropped


def test_only_the_window_takes_memory(open_model):
    engine = open_model("gemma3", backend="cpp")
    windowed, full = both(engine)
    c = engine.config
    (full_layers,), (recent,) = windowed.arrays
    assert recent.shape == (5, 2, c.kv_heads, ROOM, c.head_dim)
    assert full_layers.shape == (1, 2, c.kv_heads, CONTEXT, c.head_dim)
    row = c.kv_heads * c.head_dim * 2 * 2
    assert len(full._map) == 6 * CONTEXT * row
    assert len(windowed._map) == (CONTEXT + 5 * ROOM) * row
    assert windowed.resident_bytes(CONTEXT) == len(windowed._map)
    assert windowed.resident_bytes(10) < full.resident_bytes(10) + 1
    estimate = engine.memory_estimate()
    assert isinstance(estimate, MemoryEstimate) and estimate.kv_cache == len(windowed._map)
    assert CacheLayout(c, CONTEXT, "f16", windowed=True).token_bytes() == row
    assert CacheLayout(c, CONTEXT, "f16").token_bytes() == 6 * row


def test_a_short_context_keeps_all(open_model):
    engine = open_model("gemma3", backend="cpp")
    assert Cache(engine.config, ROOM, windowed=True).layout.rooms == [ROOM, ROOM]
    assert Cache(engine.config, ROOM + 1, windowed=True).layout.rooms == [ROOM + 1, ROOM]


def test_a_text_goes_back_as_far_as_the_window_reaches(open_model):
    engine = open_model("gemma3", backend="cpp")
    cache = engine.new_cache()
    engine.forward(TEXT[:1100], cache)
    assert 0 < cache.shortest <= 1100 - 64
    back = cache.shortest
    cache.truncate(back)
    assert cache.length == back
    other = engine.new_cache()
    engine.forward(TEXT[:back], other)
    np.testing.assert_array_equal(engine.forward([5], cache), engine.forward([5], other))
    cache.truncate(back - 1)  # what its window sees first is missing
    assert (cache.length, cache.dropped, cache.shortest) == (0, 0, 0)
    np.testing.assert_array_equal(engine.forward(TEXT[:9], cache), engine.forward(TEXT[:9]))


def test_a_prompt_that_begins_like_the_last_is_computed_again_if_need_be(open_model):
    engine = open_model("gemma3", backend="cpp")
    first = [engine.generate(TEXT[:200], 900), engine.statistics.cached_tokens]
    again = [engine.generate(TEXT[:200], 900), engine.statistics.cached_tokens]
    assert first == again and again[1] == 0
    longer = engine.generate(TEXT[:1100] + [7], 3)
    assert engine.generate(TEXT[:1100] + [7], 3) == longer and engine.statistics.cached_tokens == 1100


def test_a_pass_of_too_many_tokens_is_refused(open_model):
    engine = open_model("gemma3", backend="cpp")
    with pytest.raises(ValueError, match=f"a pass has 1100 tokens of a sequence, expected at most {PASS}"):
        engine.model.forward([TEXT[:1100]], [engine.new_cache()])


def test_sequences_in_files_go_on(open_model, tmp_path):
    engine = open_model("gemma3", backend="cpp", kv_cache_dir=tmp_path)
    cache, full = engine.new_cache("talk"), Cache(engine.config, CONTEXT)
    for each in (cache, full):
        engine.forward(TEXT[:1300], each)
    dropped = cache.dropped
    assert dropped
    del cache
    cache = engine.new_cache("talk")
    assert (cache.dropped, cache.tokens) == (dropped, TEXT[:1300])
    for token in TEXT[1300:1900]:
        found, expected = engine.forward([token], cache), engine.forward([token], full)
    np.testing.assert_array_equal(found, expected)
    assert cache.dropped > dropped


def test_a_process_that_ends_while_tokens_are_dropped_leaves_none(open_model, tmp_path, monkeypatch):
    engine = open_model("gemma3", backend="cpp", kv_cache_dir=tmp_path)
    cache = engine.new_cache("talk")
    engine.forward(TEXT[:1000], cache)

    def break_off(self, dropped):
        raise KeyboardInterrupt

    monkeypatch.setattr(Cache, "_drop", break_off)
    with pytest.raises(KeyboardInterrupt):
        engine.forward(TEXT[1000:1100], cache)
    del cache
    assert engine.new_cache("talk").tokens == []


def test_a_file_that_lacks_too_much_is_refused(open_model, tmp_path):
    engine = open_model("gemma3", backend="cpp", kv_cache_dir=tmp_path)
    cache = engine.new_cache("talk")
    engine.forward(TEXT[:1100], cache)
    for wrong in (cache.dropped + 1, 0, 1024):
        cache.dropped = wrong
        cache._write_length()
        whose = cache._whose
        path, config = tmp_path, engine.config
        del cache
        with pytest.raises(CacheFileError, match=f"lacks the first {wrong} of 1100 tokens"):
            FileCache(config, CONTEXT, "f16", path, "talk", whose)
        (tmp_path / "talk.kv").unlink()
        cache = engine.new_cache("talk")
        engine.forward(TEXT[:1100], cache)
