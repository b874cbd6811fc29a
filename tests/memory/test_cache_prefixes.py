"""Caches give memory back to the system, and copy the beginning of another one."""

import ctypes
import mmap
import sys

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache import Cache
from tests.support.models import wide_gguf

CONTEXT = 2048
TEXT = np.random.default_rng(0).integers(0, wide_gguf.VOCABULARY, CONTEXT).tolist()
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux releases memory at once")


@pytest.fixture(scope="module", params=("llama3", "gemma3"))
def engine(request, tmp_path_factory):
    path = wide_gguf.write_wide(request.param, tmp_path_factory.mktemp("wide") / "m.gguf", Kind.Q8_0)
    with LayerWiseInferenceEngine(path, backend="cpp", context=CONTEXT) as found:
        yield found


def resident(cache):
    """Bytes of the cache's memory that the system says are resident."""
    address = np.frombuffer(cache._map, np.uint8).ctypes.data
    pages = (ctypes.c_ubyte * -(-len(cache._map) // mmap.PAGESIZE))()
    size = ctypes.c_size_t(len(cache._map))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), size, pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def compute(engine, tokens, cache):
    """By the kernels of a long prompt."""
    return engine.model.run([tokens], [cache], prompts=[1000])[0]


@linux
@pytest.mark.parametrize("lengths", ((1500, 300), (700, 0), (700, 1), (1400, 1360)))
def test_memory_is_given_back(engine, lengths):
    long, short = lengths
    cache, other = engine.new_cache(), engine.new_cache()
    compute(engine, TEXT[:long], cache)
    before = resident(cache)
    assert before <= cache.resident_bytes()
    cache.truncate(short)
    cache.release()
    assert resident(cache) <= cache.resident_bytes() and resident(cache) < before
    if cache.length:  # what stays is as it was
        compute(engine, TEXT[: cache.length], other)
        assert resident(cache) <= resident(other)
        np.testing.assert_array_equal(engine.forward([5], cache), engine.forward([5], other))


@linux
def test_a_few_tokens_are_not_given_back_one_by_one(engine, monkeypatch):
    calls = []
    monkeypatch.setattr(Cache, "_release_runs", lambda *_: calls.append(0))
    cache = engine.new_cache()
    engine.forward(TEXT[:600], cache)
    for length in range(599, 500, -1):
        cache.truncate(length)
    assert not calls
    cache.truncate(100)
    assert calls


def test_a_prefix_is_copied(engine):
    source, copy, other = (engine.new_cache() for _ in range(3))
    engine.forward(TEXT[:700], source)
    engine.forward(TEXT[900:], copy)  # what it had is gone
    copy.copy_prefix(source, 650)
    assert copy.tokens == TEXT[:650] and source.tokens == TEXT[:700]
    engine.forward(TEXT[:650], other)
    for token in TEXT[650:660]:
        np.testing.assert_array_equal(engine.forward([token], copy), engine.forward([token], other))


def test_a_copy_goes_back_only_as_far_as_the_window_reaches(engine):
    source, copy = engine.new_cache(), engine.new_cache()
    engine.forward(TEXT[:1500], source)
    shortest = source.shortest
    windowed = bool(source.layout.window)
    assert windowed == bool(shortest)
    for wrong in (0, 1501, *([shortest - 1] if windowed else [])):
        with pytest.raises(ValueError, match=f"a prefix of {wrong} tokens of a cache of 1500, expected"):
            copy.copy_prefix(source, wrong)
    length = shortest or 900
    copy.copy_prefix(source, length)
    assert (copy.length, copy.dropped) == (length, source.dropped)
    source.truncate(length)
    np.testing.assert_array_equal(engine.forward([5], copy), engine.forward([5], source))


def test_a_copy_into_a_file_is_there_when_it_is_opened_again(engine, tmp_path):
    path = engine.path
    with LayerWiseInferenceEngine(path, backend="cpp", context=CONTEXT, kv_cache_dir=tmp_path) as filed:
        cache, source = filed.new_cache("talk"), engine.new_cache()
        engine.forward(TEXT[:1300], source)
        cache.copy_prefix(source, 1300)
        del cache
        again = filed.new_cache("talk")
        assert again.tokens == TEXT[:1300]
        np.testing.assert_array_equal(filed.forward([5], again), engine.forward([5], source))
        again.truncate(
            0 if source.dropped else 500
        )  # the memory of a file is released, too, not its contents
        if again.length:
            source.truncate(500)
            np.testing.assert_array_equal(filed.forward([5], again), engine.forward([5], source))
