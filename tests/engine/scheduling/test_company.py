"""Logits of a sequence are the same bits in any company: however many other sequences come with it, however
many threads there are, and however its prompt is cut.
"""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from targets import targets

from airllm.files.pages import SUPPORTED
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines.company import NEW, Sequence, alone, in_company, tokens_of
from tests.support.models import wide_gguf
from tests.support.models.tiny_models import DATA

having = pytest.mark.parametrize(
    "target", [t for t in targets() if hasattr(t.module, "rows_as_stored")], ids=str
)
LENGTHS = (1, 2, 5, 16, 17, 33, 48, 49, 60, 130, 255, 300)  # of prompts, in tokens
MODELS = {
    "llama": ("llama3", Kind.Q4_0, "f16"),
    "llama in floats": ("llama3", Kind.F16, "f16"),
    "blocks of 256": ("llama3", Kind.Q4_K, "f16"),
    "windows": ("gemma3", Kind.Q8_0, "f16"),
    "windows, in blocks": ("gemma3", Kind.Q4_0, "q8_0"),
    "windows, sinks and experts": ("gpt_oss", Kind.Q8_0, "f16"),
    "experts": ("qwen3_moe", Kind.Q5_1, "q8_0"),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Engines, by the name of the model."""
    folder, engines = tmp_path_factory.mktemp("wide"), {}

    def open_one(name):
        if name not in engines:
            model, kind, cache_dtype = MODELS[name]
            path = wide_gguf.write_wide(model, folder / f"{len(engines)}.gguf", kind)
            engines[name] = LayerWiseInferenceEngine(
                path, backend="cpp", cache_dtype=cache_dtype, context=1024
            )
        return engines[name]

    yield open_one
    for engine in engines.values():
        engine.close()


@having
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_same_bits_in_any_company(name, opened, target, reached):
    engine = opened(name)
    before = reached.switch(target.variant, 1)
    try:
        expected = [alone(engine, i, length) for i, length in enumerate(LENGTHS)]
        for threads in (1, 2, 3):
            reached.switch(target.variant, threads)
            found = in_company(engine, LENGTHS, np.random.default_rng(threads))
            for length, one, other in zip(LENGTHS, expected, found, strict=True):
                for i, (a, b) in enumerate(zip(one, other, strict=True)):
                    np.testing.assert_array_equal(a, b, f"{threads} threads, prompt {length}, token {i}")
    finally:
        reached.switch(*before)


@having
def test_chunks_and_experts_by_columns_have_the_same_bits_in_any_company(target, reached):
    before, lengths = reached.switch(target.variant, 2), [each for each in LENGTHS if each <= 48]
    try:
        with LayerWiseInferenceEngine(DATA / "llama4_chunks", backend="cpp", context=128) as engine:
            expected = [alone(engine, i, length) for i, length in enumerate(lengths)]
            found = in_company(engine, lengths, np.random.default_rng(3))
            for one, other in zip(expected, found, strict=True):
                np.testing.assert_array_equal(one, other)
    finally:
        reached.switch(*before)


@pytest.mark.skipif(not SUPPORTED, reason="a budget of memory needs Linux")
@pytest.mark.parametrize("name", ("llama", "windows, in blocks"))
def test_passes_of_many_rows_within_a_budget_have_the_same_bits(name, opened, as_stored):
    """Each pass reads all layers, so that as many rows as possible share one."""
    engine, lengths = opened(name), (*LENGTHS, *[9] * 12)
    options = {"backend": "cpp", "cache_dtype": engine.cache_dtype, "context": 1024}
    with LayerWiseInferenceEngine(engine.model.weights.path, **options) as whole:
        expected = [alone(whole, i, length) for i, length in enumerate(lengths)]
    with LayerWiseInferenceEngine(engine.model.weights.path, max_memory="1GB", **options) as limited:
        every = [Sequence(limited, i, length) for i, length in enumerate(lengths)]
        caches, passes = [each.cache for each in every], []
        parts = [[each.prompt for each in every], *([[each.next[i]] for each in every] for i in range(NEW))]
        begin = limited.model.residency.begin
        limited.model.residency.begin = lambda *grows: (passes.append(grows), begin(*grows))
        found = [limited.model.run(part, caches) for part in parts]
    assert len(passes) < 5 + NEW  # prompts of few tokens, those of many, all sequences' next tokens
    for i, one in enumerate(expected):
        for step, logits in enumerate(one):
            np.testing.assert_array_equal(found[step][i], logits, f"prompt {lengths[i]}, token {step}")


@having
def test_many_sequences_step_together_as_alone(opened, target, reached):
    """More than one native call takes."""
    engine = opened("llama")
    alone = [engine.new_cache() for _ in range(40)]
    together = [engine.new_cache() for _ in range(40)]
    for step in range(3):
        tokens = [[(7 * i + step) % wide_gguf.VOCABULARY] for i in range(40)]
        expected = [engine.model.run([t], [c])[0] for t, c in zip(tokens, alone, strict=True)]
        np.testing.assert_array_equal(engine.model.run(tokens, together), expected)


@having
def test_a_neighbour_with_a_nan_changes_nothing(opened, target, reached, monkeypatch):
    """Blocks cannot hold its row, which is multiplied apart."""
    engine = opened("llama")
    monkeypatch.setattr(engine.model.step, "supports", lambda rows: False)
    embed = engine.model._embed

    def spoiled(tokens):
        x = embed(tokens)
        x[np.array(tokens) == 3] = np.nan
        return x

    monkeypatch.setattr(engine.model, "_embed", spoiled)
    caches = [engine.new_cache() for _ in range(3)]
    (expected,) = engine.model.run([[5, 6]], [engine.new_cache()])
    nan, found, other = engine.model.run([[3], [5, 6], [1]], caches)
    assert np.isnan(nan).all() and np.isfinite(other).all()
    np.testing.assert_array_equal(found, expected)


@having
def test_positions_of_a_prompt_are_the_same_in_pieces(opened, target, reached):
    engine = opened("llama")
    for length in (20, 200):
        prompt, cache = tokens_of(1, length), engine.new_cache()
        (whole,) = engine.model.run([prompt], [engine.new_cache()], all_positions=True)
        pieces = [
            engine.model.run([prompt[i : i + 9]], [cache], True, prompts=[length])[0]
            for i in range(0, length, 9)
        ]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
