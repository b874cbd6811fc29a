"""Text from a tiny model: its ends, its pieces, and conversations.

The model says random bytes, so nearly all its characters are broken off: the worst case for pieces of text.
"""

import time
import warnings

import numpy as np
import pytest

from airllm.engine import generation, request
from airllm.engine.continuation import BeyondTraining
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache import ContextFull
from airllm.text.chat_template import ChatTemplateError
from airllm.text.stop_strings import StopStrings
from tests.support.engines.by_hand import by_hand
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
