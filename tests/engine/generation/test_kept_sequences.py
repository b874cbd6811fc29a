"""What an engine keeps between calls, and what a stream that is left off or an interrupt leaves of it."""

import signal
import time
from contextlib import contextmanager

import pytest

from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines.by_hand import by_hand
from tests.support.models import speaking_model

PROMPT = "the thin man in a hat"


def generate_and_count(engine: LayerWiseInferenceEngine, prompt, count: int, **options) -> tuple[str, int]:
    """The text, and how many tokens of the prompt were there already."""
    return engine.generate(prompt, count, **options), engine.statistics.cached_tokens


@pytest.mark.parametrize("options", ({}, {"temperature": 1.0, "seed": 3}))
@pytest.mark.parametrize(("window", "kv_cache_dir"), ((None, None), (8, None), (None, "kv")))
def test_a_common_beginning_is_not_computed_again(tmp_path, options, window, kv_cache_dir):
    changes = {"model_type": "mistral", "sliding_window": window} if window else {}
    speaking_model.write(tmp_path, **changes)
    begin = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    prompts = [begin, begin, begin[:6], [*begin[:7], 99, 98], begin[:1], [1, *begin], [*begin, 3, 4]]
    kept = kv_cache_dir and tmp_path / kv_cache_dir
    with LayerWiseInferenceEngine(tmp_path, kv_cache_dir=kept) as engine:
        found = [generate_and_count(engine, prompt, 10, **options) for prompt in prompts]
        if kept:  # also tokens that went through the layers alone are in the file
            cache = engine._generator._kept._kept
            assert cache.length > 14 and cache._ids[: cache.length].tolist() == cache.tokens
    for prompt, (text, _) in zip(prompts, found, strict=True):
        with LayerWiseInferenceEngine(tmp_path) as fresh:
            assert fresh.generate(prompt, 10, **options) == text
    assert [cached for _, cached in found] == [0, 11, 5, 6, 0, 0, 0]


def test_a_conversation_goes_on_from_the_cache(engine):
    tokens = engine.tokenizer.encode(PROMPT)
    new = by_hand(engine, tokens, 5)
    engine.generate(tokens, 5)
    engine.generate([*tokens, *new, 65], 5)
    assert engine.statistics.cached_tokens == len(tokens) + 4  # the last new one was not computed


def test_streams_side_by_side_have_their_own_caches(engine):
    expected = [engine.generate(prompt, 8) for prompt in (PROMPT, "he", PROMPT)]
    streams = [engine.stream(prompt, 8) for prompt in (PROMPT, "he", PROMPT)]
    texts = ["", "", ""]
    for _ in range(9):
        for i, each in enumerate(streams):
            texts[i] += next(each, "")
    assert texts == expected


def test_a_stream_that_is_left_off_keeps_what_it_has(engine):
    expected = engine.generate(PROMPT, 12)
    stream = engine.stream("other", 12)
    next(stream)
    stream.close()
    assert engine.statistics.reason == "interrupted" and engine.statistics.new_tokens < 12
    assert engine.generate(PROMPT, 12) == expected


@contextmanager
def interrupt_after(seconds: float):
    """Ctrl-C, wherever the program is then."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_after_an_interrupt_the_engine_goes_on(engine):
    expected = engine.generate(PROMPT, 30)
    other = engine.tokenizer.encode("another one")
    start = time.perf_counter()
    engine.generate(other, 50)
    whole = time.perf_counter() - start
    interrupted = 0
    for i in range(40):
        try:
            with interrupt_after(whole * (i + 1) / 40):
                engine.generate(other, 50)
        except KeyboardInterrupt:
            interrupted += 1
        assert engine.generate(PROMPT if i % 2 else [*other[:4], 9], 3)  # begins with what was kept
        assert engine.generate(PROMPT, 30) == expected
    assert interrupted > 5


def test_an_interrupt_between_layers_leaves_only_whole_tokens(folder, monkeypatch):
    engine = LayerWiseInferenceEngine(folder, backend="python")  # layer by layer, whatever others do
    expected = engine.generate(PROMPT, 10)
    layers = engine.model.layers

    def broken_off():
        yield layers[0]
        raise KeyboardInterrupt

    class Interrupted(list):
        def __getitem__(self, part):
            return broken_off() if len(taken) == 4 else layers[part]

    taken = []
    forward = engine.model.forward
    monkeypatch.setattr(engine.model, "forward", lambda t, c, *k: taken.append(c[0]) or forward(t, c, *k))
    engine.model.layers = Interrupted(layers)
    with pytest.raises(KeyboardInterrupt):
        engine.generate("another one", 10)
    (cache,) = {id(each): each for each in taken}.values()
    assert cache.length == len(cache.tokens) == len(engine.tokenizer.encode("another one")) + 2
    assert engine.statistics.reason == "interrupted" and engine.statistics.new_tokens == 3
    assert engine.generate(PROMPT, 10) == expected
