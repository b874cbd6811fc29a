"""Text from a tiny model: its ends, its pieces, what is kept between calls, and what an interrupt leaves.

The model says random bytes, so nearly all its characters are broken off: the worst case for pieces of text.
"""

import signal
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

from airllm.engine import generation, request
from airllm.engine.continuation import BeyondTraining
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache import ContextFull
from airllm.text.chat_template import ChatTemplateError
from airllm.text.stop_strings import StopStrings
from tests.support.models import speaking_model

PROMPT = "the thin man in a hat"


@pytest.fixture
def scripted(engine, monkeypatch):
    """An engine whose model says what it is told to, after any prompt, and then ends."""

    def build_engine(text: str, end: bool = True) -> LayerWiseInferenceEngine:
        ids = engine.tokenizer.encode(text) + [engine.tokenizer.id_of(speaking_model.END)] * end
        begins: dict[int, int] = {}  # the length of each cache when the text began

        def verify(tokens, cache):
            begin = begins.setdefault(id(cache), cache.length + len(tokens))
            logits = np.full((len(tokens), speaking_model.WORDS), -9, np.float32)
            for token, row in zip(tokens, logits, strict=True):
                cache.extend([token])
                row[ids[max(cache.length - begin, 0) % len(ids)]] = 9
            return logits

        def run(batch, caches, on_progress):
            return [verify(new, cache)[-1] for new, cache in zip(batch, caches, strict=True)]

        monkeypatch.setattr(engine.model, "run", run)
        monkeypatch.setattr(engine.model, "verify", verify)
        return engine

    return build_engine


# ------------------------------------------------------------------------------------------------ the text


def by_hand(engine: LayerWiseInferenceEngine, tokens: list[int], count: int) -> list[int]:
    """The likeliest tokens, each from a pass over the whole sequence."""
    for _ in range(count):
        tokens = [*tokens, int(engine.forward(tokens).argmax())]
    return tokens[-count:]


def test_greedy_text_is_the_likeliest_tokens(engine):
    tokens = engine.tokenizer.encode(PROMPT)
    expected = engine.tokenizer.decode(by_hand(engine, tokens, 20))
    assert engine.generate(PROMPT, 20) == expected
    assert engine.generate(tokens, 20) == expected
    assert engine.generate(np.array(tokens), 20) == expected
    assert "".join(engine.stream(PROMPT, 20)) == expected


def test_a_batch_is_its_prompts_alone(engine):
    prompts = [PROMPT, "a", "he", engine.tokenizer.encode("them and him"), PROMPT]
    for options in ({}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.8, "top_k": 9, "seed": 1}):
        alone = [engine.generate(prompt, 12, **options) for prompt in prompts]
        assert engine.generate(prompts, 12, **options) == alone
    assert engine.generate([], 5) == []


def test_sequences_of_a_batch_end_on_their_own(engine):
    whole = engine.generate([PROMPT, "a"], 30)
    cut = whole[1][5:7]
    found = engine.generate([PROMPT, "a"], 30, stop=cut)
    assert found == [text.split(cut)[0] for text in whole]
    assert engine.statistics.reasons[1] == "stop"
    assert engine.statistics.prompt_tokens == len(engine.tokenizer.encode(PROMPT)) + 1


def test_a_batch_reads_the_weights_once_for_all(engine, monkeypatch):
    passes = []
    decode = engine.model.decode
    monkeypatch.setattr(engine.model, "decode", lambda t, c: passes.append(len(t)) or decode(t, c))
    engine.generate([PROMPT, "a", "he"], 6)
    assert passes == [3] * 6


def test_seeds(engine):
    options = {"temperature": 1.5, "max_new_tokens": 16}
    assert engine.generate(PROMPT, seed=1, **options) == engine.generate(PROMPT, seed=1, **options)
    assert engine.generate(PROMPT, seed=1, **options) != engine.generate(PROMPT, seed=2, **options)


def test_penalties_and_bias_reach_the_sampler(engine):
    found = engine.generate(PROMPT, 40, frequency_penalty=2, presence_penalty=2)
    assert len(set(found)) > len(set(engine.generate(PROMPT, 40)))
    forced = engine.tokenizer.encode("q")[0]
    assert engine.generate(PROMPT, 5, logit_bias={forced: 100}) == "q" * 5
    with pytest.raises(
        ValueError, match=f"logit_bias has token 999, expected 0 to {speaking_model.WORDS - 1}"
    ):
        engine.generate(PROMPT, 5, logit_bias={999: 1})


@pytest.mark.parametrize("text", ("naïve 漢字 🙂 done", "🙂🙂", "é", "the end\n"))
def test_pieces_are_whole_characters(scripted, text):
    engine = scripted(text)
    pieces = list(engine.stream(PROMPT))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece and piece for piece in pieces)
    assert engine.statistics.reason == "end"


def test_a_character_that_is_cut_off_is_marked_as_such(scripted):
    assert scripted("🙂").generate(PROMPT, 2) == "\ufffd"
    assert scripted("ab🙂").generate(PROMPT, 4) == "ab\ufffd"


@pytest.mark.parametrize(
    ("stop", "expected", "reason"),
    (
        ("zz", "one two, three. four", "end"),
        (" two", "one", "stop"),
        ("one", "", "stop"),
        (["three", ", t"], "one two", "stop"),
        (["t", "two, three"], "one ", "stop"),
        ([" two, three!", "four!", "fou"], "one two, three. ", "stop"),
        ("four.", "one two, three. four", "end"),
        ((), "one two, three. four", "end"),
    ),
)
def test_stop_strings(scripted, stop, expected, reason):
    engine = scripted("one two, three. four")
    assert engine.generate(PROMPT, stop=stop) == expected
    assert engine.statistics.reason == reason
    assert "".join(scripted("one two, three. four").stream("a", stop=stop)) == expected


def test_stop_strings_do_not_depend_on_the_pieces():
    text = "abcabdabcabce fgg abc"
    rng = np.random.default_rng(0)
    for stops in (["abce"], ["cab", "abd"], ["dab", "abdabc"], ["gg a", "g"], ["abcabdabcabcx", "abce"]):
        found = set()
        for _ in range(60):
            cuts = sorted({0, len(text), *rng.integers(0, len(text), 6).tolist()})
            filter = StopStrings(stops)
            passed = [filter.add(text[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
            found.add("".join([*passed, filter.finish()]))
            assert not any(stop in "".join(passed) for stop in stops)
        assert len(found) == 1, stops


def test_text_goes_out_as_soon_as_no_stop_string_can_be_in_it():
    filter = StopStrings(["<end>", "stop"])
    assert [filter.add(each) for each in ("a", "b<", "e", "x", "sto", "p", "more")] == [
        "a", "b", "", "<ex", "", "", "",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------ the end


def test_the_context_ends_a_text(folder):
    with LayerWiseInferenceEngine(folder, context=16) as engine:
        tokens = engine.tokenizer.encode("the thin man")
        expected = by_hand(LayerWiseInferenceEngine(folder), tokens, 17 - len(tokens))
        assert engine.generate(tokens, None) == engine.tokenizer.decode(expected)
        assert engine.statistics.reason == "context"
        full = (tokens * 2)[:16]
        engine.generate(full)
        assert engine.statistics.new_tokens == 1 and engine.statistics.reason == "context"
        with pytest.raises(ContextFull, match="prompt has 17 tokens, expected at most 16: the context"):
            engine.generate([*full, 1])
        with pytest.raises(ContextFull, match="prompt 1 has 17 tokens"):
            engine.generate([full, [*full, 1]])
        with pytest.raises(ContextFull):  # at once, not when it is first read
            engine.stream([*full, 1])


def test_statistics(engine):
    assert engine.statistics is None
    engine.generate(PROMPT, 7)
    found = engine.statistics
    count = len(engine.tokenizer.encode(PROMPT))
    assert (found.prompt_tokens, found.cached_tokens, found.new_tokens) == (count, 0, 7)
    assert found.reason == "length"
    assert 0 < found.seconds_to_first_token < found.seconds
    assert found.tokens_per_second == pytest.approx(6 / (found.seconds - found.seconds_to_first_token))


def test_time_of_the_reader_is_not_counted(engine, monkeypatch):
    clock, late = time.perf_counter, [0]
    monkeypatch.setattr(generation.time, "perf_counter", lambda: clock() + late[0])
    for _ in engine.stream(PROMPT, 4):
        late[0] += 1000
    assert engine.statistics.seconds < 1000


@pytest.mark.parametrize("prompt", (7, None, b"text", {"a": 1}))
def test_prompts_that_are_none(engine, prompt):
    with pytest.raises(TypeError, match="prompt has type"):
        engine.generate(prompt)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    (
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens has value 0, expected 1 or more"),
        ({"max_new_tokens": 1.5}, TypeError, "max_new_tokens has type float"),
        ({"stop": ["a", ""]}, ValueError, "stop has an empty text"),
        ({"stop": [3]}, TypeError, "stop has an item of type int"),
        ({"temperature": -1}, ValueError, "temperature has value -1"),
        ({"warmth": 1}, TypeError, "warmth"),
    ),
)
def test_wrong_options(engine, options, error, message):
    for method in (engine.generate, engine.stream):
        with pytest.raises(error, match=message):
            method(PROMPT, **options)


def test_wrong_tokens(engine):
    with pytest.raises(ValueError, match="prompt has no tokens"):
        engine.generate("")
    with pytest.raises(ValueError, match=f"prompt has token 999, expected 0 to {speaking_model.WORDS - 1}"):
        engine.generate([1, 999])
    with pytest.raises(TypeError, match="prompt: token has type float, expected a whole number"):
        engine.generate([1, 2.5])
    with pytest.raises(TypeError, match="forward: token has type str, expected a whole number"):
        engine.forward([1, "2"])


@pytest.mark.parametrize("text", ("\udcff\udcfe", "good \ud83d"))
def test_text_that_is_no_unicode_is_refused(engine, text):
    for use in (engine.generate, engine.stream, engine.tokenizer.encode):
        with pytest.raises(ValueError, match=r"text has '\\ud[cb8].*' as character [05], expected Unicode"):
            use(text)
    with pytest.raises(ValueError, match="expected Unicode"):
        engine.chat([{"role": "user", "content": text}])


def test_a_text_beyond_what_the_model_was_made_for_warns_once(folder):
    with LayerWiseInferenceEngine(folder, context=100) as engine, warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.generate([5] * 60, 5)  # 64 at the end, the last one being not computed
        warnings.simplefilter("always")
        for prompt, count in ((60, 9), (90, 5)):
            with pytest.warns(BeyondTraining) as caught:
                engine.generate([5] * prompt, count)
            found = max(prompt, speaking_model.CONTEXT + 1)
            (text,) = [str(each.message) for each in caught]
            assert f"has {found} tokens now, and the model was made for at most 64" in text
            assert "\n" not in text
        with pytest.warns(BeyondTraining) as caught:
            engine.generate([[5] * 70, [6] * 80], 3)
        assert len(caught) == 1


def test_a_long_prompt_says_how_far_it_is(engine):
    engine.model.residency.chunk = 8
    seen = []
    expected = engine.generate([7] * 50, 4)
    engine._generator.forget()
    assert engine.generate([7] * 50, 4, on_prompt=lambda *at: seen.append(at)) == expected
    assert seen == [(at, 50) for at in range(0, 50, 8)]  # of single tokens nothing is said
    seen.clear()
    engine.generate([[7] * 50, [8] * 3], 4, on_prompt=lambda *at: seen.append(at))
    assert seen[0] == (0, 53) and seen[-1][1] == 53 and seen == sorted(seen)


def test_threads_of_one_engine(folder):
    with LayerWiseInferenceEngine(folder, backend="cpp", threads=1) as engine:
        other = LayerWiseInferenceEngine(folder, backend="cpp", threads=3)
        assert engine.backend.device().endswith(", 1 thread)")
        assert other.backend.device().endswith(", 3 threads)")
        text = engine.generate(PROMPT, 9)
        assert text == other.generate(PROMPT, 9)
        other.close()
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(ValueError, match="threads has value .*, expected a whole number from 1 to"):
            LayerWiseInferenceEngine(folder, backend="cpp", threads=wrong)
    with pytest.raises(ValueError, match="threads has value 2, expected none with the backend python"):
        LayerWiseInferenceEngine(folder, backend="python", threads=2)


# ------------------------------------------------------------------------------------------------ chat


def test_chat_is_the_template_and_generate(engine):
    messages = [{"role": "user", "content": "hi"}]
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    expected = engine.generate(prompt, 9, repetition_penalty=1.1)
    assert engine.chat(messages, 9, repetition_penalty=1.1) == expected
    assert "".join(engine.stream_chat(messages, 9, repetition_penalty=1.1)) == expected


def test_chat_without_a_template_says_so(tmp_path):
    (speaking_model.write(tmp_path) / "tokenizer_config.json").unlink()
    engine = LayerWiseInferenceEngine(tmp_path)
    with pytest.raises(ChatTemplateError, match="has no chat template: use generate"):
        engine.chat([{"role": "user", "content": "hi"}])


def test_a_conversation_that_is_too_long_goes_on_without_its_oldest_turns_if_told(engine):
    talk = [
        {"role": "system", "content": "be"},
        *({"role": role, "content": "a b"} for _ in range(2) for role in ("user", "assistant")),
        {"role": "user", "content": "hi"},
    ]
    assert len(engine._conversation(talk, None)) > engine.context
    with pytest.raises(ContextFull, match="the conversation has"):
        engine.chat(talk, 4)
    expected = engine.chat([talk[0], talk[-1]], 4)
    assert engine.chat(talk, 4, drop_oldest=True) == expected
    assert "".join(engine.stream_chat(talk, 4, drop_oldest=True)) == expected
    assert engine.fitting(talk, 4) == [talk[0], talk[-1]]
    assert engine.fitting([talk[0], talk[-1]], 4) == [talk[0], talk[-1]]
    long = [{"role": "user", "content": "a " * 60}]
    with pytest.raises(ContextFull, match="the conversation has"):  # one question may be too long by itself
        engine.chat(long, 4, drop_oldest=True)


# ------------------------------------------------------------------------------------------------ kept


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


def test_after_close(folder):
    engine = LayerWiseInferenceEngine(folder)
    engine.generate(PROMPT, 2)
    stream = engine.stream(PROMPT, 2)
    engine.close()
    engine.close()
    generate, forward = (lambda: engine.generate(PROMPT, 2)), (lambda: engine.forward([1]))
    others = engine.new_cache, lambda: engine.tokenizer
    for use in (generate, forward, lambda: next(stream), lambda: engine.stream(PROMPT, 2), *others):
        with pytest.raises(RuntimeError, match="is closed: open another one"):
            use()


def test_a_sequence_without_tokens_has_no_logits(engine):
    cache = engine.new_cache()
    engine.forward([1, 2], cache)
    for tokens, caches, where in (
        ([], None, "tokens"),
        ([], cache, "tokens"),
        ([[]], None, r"tokens\[0\]"),
        ([[3], []], [cache, engine.new_cache()], r"tokens\[1\]"),
    ):
        with pytest.raises(ValueError, match=f"^forward: {where} has 0 tokens, expected one or more$"):
            engine.forward(tokens, caches)
    assert cache.tokens == [1, 2]


def test_reasons_are_those_that_are_documented():
    for reason in (request.END, request.STOP, request.LENGTH, request.CONTEXT):
        assert f'"{reason}"' in request.Statistics.__doc__
