"""What sequences of a scheduler share: the beginnings of their prompts."""

from airllm.engine.request import request
from airllm.engine.scheduling.requests import Limits
from tests.support.engines.scheduled import Machine, bytes_of, cached, check, tokens_of
from tests.support.engines.served import Served


def test_prefixes_are_found(engine):
    served = Served(engine, Limits())
    prompt, other = tokens_of(1, 200), tokens_of(2, 100)
    assert cached(served, prompt) == 0
    assert cached(served, prompt) == 199  # the logits of the last token are needed
    assert cached(served, [*prompt[:150], *other]) == 150
    assert cached(served, [*prompt[:150], *other]) == 249
    assert cached(served, prompt) == 199
    assert cached(served, [*prompt, *other]) == 200
    assert cached(served, other) == 0
    assert cached(served, prompt[:10]) == 0
    assert cached(served, prompt, salt="another") == 0
    assert cached(served, prompt, prompt_logprobs=1) == 0
    counters = served.scheduler.counters
    assert counters.prefix_hits == 5 and counters.cached_tokens == 199 + 150 + 249 + 199 + 200
    check(served)


def test_only_equal_kernels_share(engine):
    """A short prompt and its answer meet other kernels than a long prompt that begins with both."""
    served = Served(engine, Limits())
    first = served.add(tokens_of(1, 40), request(30))
    served.run()
    text = tokens_of(1, 40) + served.tokens(first)
    assert cached(served, text) == 0  # 70 tokens: kernels for many rows
    assert cached(served, text[:48]) == 47  # those for few rows, of which the answer is a part, too
    assert cached(served, [*text, *tokens_of(2, 50)]) == 70
    long = served.add(tokens_of(3, 60), request(30))
    served.run()
    assert cached(served, tokens_of(3, 60) + served.tokens(long)) == 60  # not the answer
    check(served)


def test_running_sequences_share(engine):
    served = Served(engine, Limits())
    prompt = tokens_of(1, 300)
    first = served.add(prompt, request(100))
    while not served.tokens(first):
        served.step()
    second = served.add([*prompt[:200], *tokens_of(2, 30)], request(5))
    while not served.reason(second):
        served.step()
    assert not served.reason(first)
    assert served.events[second][-1].statistics.cached_tokens == 200
    served.run()
    check(served)


def test_several_answers_to_a_prompt_compute_it_once(engine, monkeypatch):
    served = Served(engine, Limits())
    machine = Machine(served, monkeypatch, base=0.01, token=0.001, key=0.0, step=0.01)
    for seed in range(5):
        served.add(tokens_of(1, 300), request(9, temperature=1.0, seed=seed))
    served.run()
    assert sum(machine.pieces) == 300 + 4
    assert len(served.scheduler._caches.memory.prefixes) == 1
    monkeypatch.undo()
    check(served)


def test_the_least_recently_used_prefix_is_dropped(engine):
    each = bytes_of(engine, 300)
    served = Served(engine, Limits(prefix_bytes=int(2.5 * each)))
    one, two, three = (tokens_of(i, 300) for i in range(3))
    for prompt in (one, two, one, three):
        cached(served, prompt)
    assert served.scheduler.load().prefix_bytes == 2 * each
    assert cached(served, one) == 299 and cached(served, two) == 0
    check(served)


def test_prompts_of_a_batch_share_what_they_begin_with(engine):
    begin = tokens_of(1, 200)
    texts = engine.generate([begin + tokens_of(i, 30) for i in range(4)], 5)
    assert engine.statistics.cached_tokens == 3 * 200
    for i, text in enumerate(texts):
        engine._generator.forget()
        assert engine.generate(begin + tokens_of(i, 30), 5) == text
