"""Drafted text is the text, whoever drafts and however much: ends, pieces, caches and counts are the same."""

import numpy as np
import pytest

from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.drafts import speculation
from airllm.engine.drafts.ngram import NgramDrafter
from airllm.engine.drafts.policy import ROWS
from airllm.engine.model import Model
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines.drafting import GREEDY, SEEDED, Knowing, cpp, open_engine, samplings
from tests.support.models import tiny_models

QUOTED = [5, 6, 7, 8, 9, 10, 11, 12] * 3
# Windows, experts in one call and op by op, a soft cap, sinks, norms of whole rows, angles that change, and
# layers with the keys and values of others.
MODELS = (
    "llama3",
    "gemma3",
    "gemma2",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_oss",
    "olmo2",
    "phi3_long",
    "gemma4",
    "gemma4_moe",
)


def tokens_of(engine) -> list[int]:
    """The tokens of the last text, except its last one, which was not run."""
    return list(engine._generator._kept._kept.tokens)


def own_layers(cache) -> list[int]:
    """The layers that have keys and values of their own."""
    return [layer for part in cache.layout.parts for layer in part.layers]


def texts(path, prompts, count, options, **opening) -> tuple[list[str], int, int]:
    """The texts, and how many tokens were drafted and accepted for all of them."""
    with open_engine(path, **opening) as engine:
        found, drafted, accepted = [], 0, 0
        for prompt in prompts:
            found.append(engine.generate(prompt, count, **options))
            drafted += engine.statistics.drafted_tokens
            accepted += engine.statistics.accepted_tokens
    return found, drafted, accepted


# ------------------------------------------------------------------------------------------------ the bits


@cpp
@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("name", MODELS)
def test_verified_logits_have_the_bits_of_single_tokens(name, threads, gguf_of):
    for stored in ("float", "blocks"):
        with open_engine(gguf_of(name, stored), threads=threads, context=96) as engine:
            model = engine.model
            tokens = np.random.default_rng(1).integers(0, tiny_models.VOCABULARY, 60).tolist()
            for begin in (1, 3, 7, 25, 40):
                for rows in ROWS:
                    one_by_one, together = engine.new_cache(), engine.new_cache()
                    for cache in (one_by_one, together):
                        model.run([tokens[:begin]], [cache])
                    new = tokens[begin : begin + rows]
                    expected = np.stack([model.run([[token]], [one_by_one])[0] for token in new])
                    np.testing.assert_array_equal(model.verify(new, together), expected)
                    for layer in own_layers(together):
                        found, wanted = (each.read(layer, begin + rows) for each in (together, one_by_one))
                        np.testing.assert_array_equal(found, wanted)


@cpp
@pytest.mark.parametrize("name", MODELS)
def test_verified_logits_are_those_after_each_token(name, gguf_of):
    with open_engine(gguf_of(name), cache_dtype="f32", context=96) as engine:
        tokens = np.random.default_rng(1).integers(0, tiny_models.VOCABULARY, 30).tolist()
        for rows in ROWS:
            cache = engine.new_cache()
            engine.forward(tokens[:8], cache)
            assert engine.model.most_drafted(cache) == 15
            found = engine.model.verify(tokens[8 : 8 + rows], cache)
            expected = engine.forward(tokens[: 8 + rows], all_positions=True)[8:]
            assert np.abs(found - expected).max() < 1e-4 * np.ptp(expected)
            assert cache.tokens == tokens[: 8 + rows]


# ------------------------------------------------------------------------------------------------ the text


@cpp
@samplings
@pytest.mark.parametrize("name", MODELS)
def test_the_text_does_not_change(name, options, gguf_of, eager, monkeypatch):
    for stored in ("float", "blocks"):
        with open_engine(gguf_of(name, stored), speculative=False) as plain:
            prompts = [QUOTED, [3, 4], QUOTED[:9]]
            expected, known = [], []
            for prompt in prompts:
                expected.append(plain.generate(prompt, 60, **options))
                known.append(tokens_of(plain))
        for drafter in (NgramDrafter, Knowing(known)):
            monkeypatch.setattr(speculation, "NgramDrafter", drafter)
            found, drafted, accepted = texts(gguf_of(name, stored), prompts, 60, options)
            assert found == expected
            assert drafter is NgramDrafter or drafted > accepted > 15


@cpp
@pytest.mark.parametrize(
    "opening",
    ({"cache_dtype": "q8_0"}, {"threads": 1}, {"kv_cache_dir": "kv"}, {"max_memory": "8MB"}),
    ids=str,
)
def test_the_text_does_not_change_however_the_engine_is_opened(opening, gguf_of, eager, tmp_path):
    name = "llama3" if "cache_dtype" not in opening else "qwen3"
    if "kv_cache_dir" in opening:
        opening = {"kv_cache_dir": tmp_path / "kv"}
    path = gguf_of(name)
    prompts = [QUOTED, QUOTED, [*QUOTED, 3], QUOTED[:7]]  # they share prefixes
    expected, *_ = texts(path, prompts, 50, GREEDY, context=128, speculative=False, **opening)
    found, drafted, accepted = texts(path, prompts, 50, GREEDY, context=128, **opening)
    assert found == expected and drafted > accepted > 0


@cpp
def test_a_text_in_the_default_mode_does_not_change(gguf_of):
    expected, *_ = texts(gguf_of("llama3"), [QUOTED], 90, GREEDY, context=128, speculative=False)
    assert texts(gguf_of("llama3"), [QUOTED], 90, GREEDY, context=128)[0] == expected


@cpp
def test_ends_within_a_draft(gguf_of, eager):
    """Each number of tokens, each context and each stop string ends the text where it ends without drafts."""
    path = gguf_of("llama3")
    with open_engine(path, context=64) as engine, open_engine(path, context=64, speculative=False) as plain:
        whole = plain.generate(QUOTED, None)
        engine.generate(QUOTED, None)
        for count in (*range(1, 24), None):
            assert engine.generate(QUOTED, count) == plain.generate(QUOTED, count)
            for of in (engine, plain):
                of.counts = of.statistics.new_tokens, of.statistics.reason, of.statistics.cached_tokens
            assert engine.counts == plain.counts and tokens_of(engine) == tokens_of(plain)
        for begin in range(0, len(whole) - 3, 3):
            stop = whole[begin : begin + 3]
            assert engine.generate(QUOTED, stop=stop) == plain.generate(QUOTED, stop=stop)
            assert engine.statistics.reason == plain.statistics.reason == "stop"
            assert engine.statistics.new_tokens == plain.statistics.new_tokens
    for context in range(len(QUOTED), len(QUOTED) + 20):
        found, expected = (
            texts(path, [QUOTED], None, GREEDY, context=context, speculative=on)[0] for on in (True, False)
        )
        assert found == expected


@cpp
def test_the_stop_token_ends_a_text_within_a_draft(folder, eager, monkeypatch):
    with open_engine(folder, speculative=False) as plain, open_engine(folder) as engine:
        tokens = plain.tokenizer.encode(plain.generate([65] * 12, 30))
        monkeypatch.setattr(plain.tokenizer, "stop_ids", frozenset(tokens[9:10]))
        monkeypatch.setattr(engine.tokenizer, "stop_ids", frozenset(tokens[9:10]))
        for options in ({}, {"temperature": 1.2, "seed": 4}):
            assert engine.generate([65] * 12, 30, **options) == plain.generate([65] * 12, 30, **options)
            assert engine.statistics.reason == plain.statistics.reason
            assert engine.statistics.new_tokens == plain.statistics.new_tokens


@cpp
def test_pieces_of_a_stream_are_whole_characters(folder, eager):
    with open_engine(folder) as engine, open_engine(folder, speculative=False) as plain:
        pieces = list(engine.stream("the thin man", 40))
        assert all(pieces) and "".join(pieces) == plain.generate("the thin man", 40)


@cpp
def test_angles_that_change_with_the_length_change_where_they_do_without_drafts(gguf_of, eager):
    """Phi-3's: a draft that reaches beyond the length would give all positions other angles too early."""
    path = gguf_of("phi3_long")
    with open_engine(path, context=64) as engine, open_engine(path, context=64, speculative=False) as plain:
        for length in range(tiny_models.SHORT - 16, tiny_models.SHORT + 2):
            prompt = (QUOTED * 2)[:length]
            assert engine.generate(prompt, 30) == plain.generate(prompt, 30)
            found, expected = (of._generator._kept._kept for of in (engine, plain))
            assert found.tokens == expected.tokens and found.long == expected.long


@cpp
@pytest.mark.filterwarnings("ignore::airllm.engine.continuation.BeyondTraining")
@pytest.mark.parametrize("name", ("gemma3", "gemma4", "gemma4_moe"))
def test_drafts_where_windows_have_dropped_tokens(name, gguf_of, eager, monkeypatch):
    """Layers with a window keep 1024 tokens, and drop some of them while tokens are drafted and rejected."""
    prompt, found, drafted = QUOTED * 42, [], 0
    for speculative in (False, True):
        with open_engine(gguf_of(name), context=2048, speculative=speculative) as engine:
            text = engine.generate(prompt, 60, **SEEDED)
            cache = engine._generator._kept._kept
            assert cache.layout.window and cache.dropped > 0
            again = cache.length - 20  # goes back, and on with other tokens
            cache.truncate(again)
            logits = engine.forward(QUOTED[:5], cache)
            wanted = engine.forward([*cache.tokens[:again], *QUOTED[:5]])
            assert np.abs(logits - wanted).max() < 2e-3 * np.ptp(wanted)
            found.append((text, cache.dropped, list(cache.tokens)))
            drafted = engine.statistics.drafted_tokens
            monkeypatch.setattr(speculation, "NgramDrafter", Knowing([tokens_of(engine)]))
    assert found[0] == found[1] and drafted > 15


@cpp
def test_a_rejected_draft_leaves_nothing_in_the_cache(gguf_of, eager):
    for name in ("llama3", "gemma3", "gemma4", "gemma4_moe", "qwen3_moe"):
        caches = []
        for speculative in (True, False):
            with open_engine(gguf_of(name), context=96, speculative=speculative) as engine:
                engine.generate(QUOTED, 40, temperature=1.5, seed=2)
                caches.append(engine._generator._kept._kept)
        found, expected = caches
        assert found.tokens == expected.tokens
        for layer in own_layers(found):
            pairs = zip(found.read(layer, found.length), expected.read(layer, found.length), strict=True)
            for a, b in pairs:
                np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=0, atol=2e-2)


# ------------------------------------------------------------------------------------------- when it drafts


@cpp
def test_counts(gguf_of, eager):
    with open_engine(gguf_of("llama3"), context=128) as engine:
        engine.generate(QUOTED, 40)
        done = engine.statistics
        assert 0 < done.accepted_tokens < done.drafted_tokens and done.accepted_tokens < done.new_tokens == 40
        engine.generate([QUOTED] * 2, 10)  # a batch is not drafted
        assert engine.statistics.drafted_tokens == 0
        engine.generate([1], 2)
        assert engine.statistics.drafted_tokens == 0


@pytest.mark.parametrize("backend", ("cpp", "python"))
def test_drafts_are_made_where_they_cannot_change_the_text_or_are_asked_for(backend, folder):
    promises = KernelBackend(backend).extension("batch_invariant_rows") is not None
    assert promises == (backend == "cpp")
    for asked, compute in ((None, "stored"), (None, "float32"), (True, "stored"), (False, "stored")):
        with LayerWiseInferenceEngine(folder, backend=backend, speculative=asked, compute=compute) as engine:
            expected = promises and compute == "stored" if asked is None else asked
            assert (engine._generator.speculation is not None) == expected


def test_op_by_op_on_a_backend_that_promises_nothing(gguf_of, eager):
    with LayerWiseInferenceEngine(gguf_of("llama3"), backend="python", speculative=True) as engine:
        text = engine.generate(QUOTED, 40)
        assert engine.statistics.accepted_tokens > 0
    with LayerWiseInferenceEngine(gguf_of("llama3"), backend="python") as engine:
        assert engine.generate(QUOTED, 40) == text


@cpp
def test_a_budget_of_memory_limits_how_much_is_verified_at_once(folder):
    with open_engine(folder, max_memory="8MB") as engine:
        most, cache = engine.model.residency.outputs, engine.new_cache()
        assert most > 1 and engine.model.most_drafted(cache) == min(most, 16) - 1
        engine.model.residency.outputs = 3
        assert engine.model.most_drafted(cache) == 2
        cache.extend([1] * (cache.capacity - 2))
        assert engine.model.most_drafted(cache) == 1
        cache.extend([1, 1])
        assert engine.model.most_drafted(cache) == 0


@cpp
def test_streams_side_by_side(folder, eager):
    with open_engine(folder) as engine, open_engine(folder, speculative=False) as plain:
        prompts = ([65, 66] * 9, [67, 68] * 9, [65, 66] * 9)
        expected = [plain.generate(prompt, 20) for prompt in prompts]
        streams = [engine.stream(prompt, 20) for prompt in prompts]
        found = ["", "", ""]
        for _ in range(21):
            for i, stream in enumerate(streams):
                found[i] += next(stream, "")
        assert found == expected


def test_the_model_alone_is_not_batch_invariant_in_float32(folder):
    from airllm.engine.exact_ops import ExactOps

    model = Model(folder, ExactOps(KernelBackend("cpp")))
    assert not model.is_batch_invariant
    model.close()
