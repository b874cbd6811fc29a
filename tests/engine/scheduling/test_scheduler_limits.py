"""A scheduler's limits: time, memory, the queue; what it shares; and errors, which end one sequence only."""

import dataclasses
import math

import numpy as np
import pytest

from airllm.engine.request import request
from airllm.engine.sampling import log_probabilities
from airllm.engine.scheduling import memory
from airllm.engine.scheduling.pace import STEP
from airllm.engine.scheduling.requests import Limits, QueueFull
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.kv_cache import ContextFull
from tests.support.engines.served import Served, alone
from tests.support.models import speaking_model

CONTEXT = 1024
WORDS = 256  # tokens of bytes: no control token


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory):
    """A tiny model with room for long texts."""
    return speaking_model.write(tmp_path_factory.mktemp("long"), max_position_embeddings=8192)


@pytest.fixture(scope="module")
def engine(long_folder):
    with LayerWiseInferenceEngine(long_folder, backend="cpp", context=CONTEXT) as found:
        yield found


def tokens_of(number, count):
    return np.random.default_rng(number).integers(0, WORDS, count).tolist()


def bytes_of(engine, tokens):
    return engine.new_cache().resident_bytes(tokens)


def check(served):
    for id, asked in served.asked.items():
        served.check_text(id, alone(served.engine, asked.tokens, asked.request))


# ------------------------------------------------------------------------------------------------ time


class Machine:
    """What passes cost on a machine with a model: `base` seconds for a pass of a prompt, `token` for each of
    its tokens, `key` for each pair of a token and an earlier one, and `step` for a decode pass.
    """

    def __init__(self, served, monkeypatch, base, token, key, step):
        model, self.pieces = served.engine.model, []
        run, decode = model.run, model.decode

        def timed_run(batch, caches, *rest, prompts=None, **options):
            count = sum(map(len, batch))
            pairs = sum(len(part) * cache.length for part, cache in zip(batch, caches, strict=True))
            served.clock.now += base + token * count + key * pairs
            self.pieces.append(count)
            return run(batch, caches, *rest, prompts=prompts, **options)

        def timed_decode(tokens, caches):
            if all(len(each) == 1 for each in tokens):
                served.clock.now += step
            return decode(tokens, caches)

        monkeypatch.setattr(model, "run", timed_run)
        monkeypatch.setattr(model, "decode", timed_decode)


@pytest.mark.parametrize(
    ("costs", "most", "least_piece"),
    (
        ({"base": 0.027, "token": 0.0006, "key": 0.0, "step": 0.013}, 0.15, 96),  # 135M on two cores
        ({"base": 0.02, "token": 0.0006, "key": 3e-7, "step": 0.02}, 0.15, 32),  # a long text: keys cost more
        ({"base": 0.002, "token": 0.00001, "key": 0.0, "step": 0.002}, 0.15, 512),
    ),
)
def test_running_answers_wait_a_bounded_time_for_a_prompt(long_folder, monkeypatch, costs, most, least_piece):
    with LayerWiseInferenceEngine(long_folder, backend="cpp", context=4500) as engine:
        served = Served(engine, Limits())
        machine = Machine(served, monkeypatch, **costs)
        running = [served.add(tokens_of(i, 20), request(400)) for i in range(4)]
        while not all(served.events[id] for id in running):
            served.step()
        served.add(tokens_of(9, 4096), request(2))
        machine.pieces.clear()
        waits, last = [], served.clock.now
        while sum(machine.pieces) < 4096:
            counts = [len(served.events[id]) for id in running]
            served.step()
            assert all(len(served.events[id]) == count + 1 for id, count in zip(running, counts, strict=True))
            waits.append(served.clock.now - last)
            last = served.clock.now
        assert max(waits) <= most
        assert max(machine.pieces) >= least_piece
        assert all(piece % STEP == 0 for piece in machine.pieces[:-1])


def test_a_prompt_that_nobody_waits_for_comes_in_long_pieces(engine, monkeypatch):
    served = Served(engine, Limits())
    machine = Machine(served, monkeypatch, base=0.027, token=0.0006, key=0.0, step=0.013)
    served.add(tokens_of(1, 1000), request(1))
    served.run()
    assert max(machine.pieces) >= 400 and len(machine.pieces) <= 6


def test_short_prompts_come_in_one_piece(engine, monkeypatch):
    served = Served(engine, Limits(piece_seconds=math.inf))
    machine = Machine(served, monkeypatch, base=0.01, token=0.001, key=0.0, step=0.01)
    for i in range(5):
        served.add(tokens_of(i, 20 + i), request(3))
    served.run()
    assert machine.pieces == [sum(range(20, 25))]
    monkeypatch.undo()
    check(served)


def test_deadlines(engine):
    served = Served(engine, Limits(max_running=1))
    runs = served.add(tokens_of(1, 60), request(500), deadline=served.clock.now + 5)
    waits = served.add(tokens_of(2, 60), request(3), deadline=served.clock.now + 4)
    last = served.add(tokens_of(3, 60), request(3))
    for _ in range(3):
        served.step()
    served.clock.now += 4
    served.step()
    assert (served.reason(runs), served.reason(waits), served.reason(last)) == ("", "deadline", "")
    assert served.tokens(waits) == [] and served.events[waits][-1].statistics.seconds == 4
    served.clock.now += 1
    served.run()
    assert (served.reason(runs), served.reason(last)) == ("deadline", "length")
    assert served.scheduler.load().cache_bytes == served.scheduler.load().prefix_bytes
    check(served)


# ------------------------------------------------------------------------------------------------ the queue


def test_the_queue_is_limited(engine):
    served = Served(engine, Limits(max_running=2, max_waiting=1))
    ids = [served.add(tokens_of(i, 20), request(5)) for i in range(3)]
    with pytest.raises(
        QueueFull, match="3 sequences wait, and no more may: try again in 1 seconds"
    ) as caught:
        served.add(tokens_of(9, 20), request(5))
    assert caught.value.retry_after == 1
    served.scheduler.cancel(ids[2])
    served.add(tokens_of(9, 20), request(5))
    served.run()
    assert served.reason(ids[2]) == "cancelled" and served.tokens(ids[2]) == []
    check(served)


def test_a_full_queue_says_when_a_place_will_be_free(engine):
    served = Served(engine, Limits(max_running=1, max_waiting=0))
    for i in range(60):
        served.add(tokens_of(i, 5), request(1))
        served.clock.now += 7
        served.run()
    served.add(tokens_of(1, 5), request(9))
    with pytest.raises(QueueFull) as caught:
        served.add(tokens_of(2, 5), request(1))
    assert caught.value.retry_after == 7


def test_a_cancelled_sequence_frees_its_place_and_memory_at_once(engine):
    served = Served(engine, Limits(max_running=1, prefix_bytes=0))
    runs, next_one = (served.add(tokens_of(i, 100), request(500)) for i in range(2))
    for _ in range(6):
        served.step()
    assert served.scheduler.load().cache_bytes > 0
    served.scheduler.cancel(runs)
    assert served.scheduler.load().cache_bytes == 0
    served.step()
    assert served.reason(runs) == "cancelled" and served.scheduler.load().running == 1
    served.scheduler.cancel(runs)  # again: nothing happens
    served.scheduler.cancel(next_one)
    served.run()
    assert [served.reason(id) for id in (runs, next_one)] == ["cancelled"] * 2
    check(served)


def test_prompts_that_cannot_be_continued(engine):
    served = Served(engine, Limits())
    with pytest.raises(ContextFull, match="prompt has 1025 tokens, expected at most 1024"):
        served.add([1] * 1025, request())
    with pytest.raises(ValueError, match="prompt has no tokens"):
        served.add([], request())
    with pytest.raises(ValueError, match="prompt has token 999, expected 0 to"):
        served.add([1, 999], request())
    with pytest.raises(ValueError, match="logit_bias has token 999"):
        served.add([1], request(logit_bias={999: 1}))
    assert served.scheduler.is_idle and served.scheduler.step() == []


@pytest.mark.parametrize(
    ("options", "message"),
    (
        ({"max_running": 0}, "max_running has value 0, expected 1 or more"),
        ({"max_waiting": -1}, "max_waiting has value -1, expected 0 or more"),
        ({"cache_bytes": 0}, "cache_bytes has value 0, expected 1 or more"),
        ({"prefix_bytes": -1}, "prefix_bytes has value -1"),
        ({"piece_seconds": 0}, "piece_seconds has value 0, expected a number above 0"),
    ),
)
def test_limits_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Limits(**options)


# ------------------------------------------------------------------------------------------------ memory


def test_the_overflow_of_a_neighbour_ends_nobody(engine):
    """All fill their contexts, but there is memory for little more than one."""
    nbytes = int(1.5 * bytes_of(engine, CONTEXT))
    served = Served(engine, Limits(cache_bytes=nbytes, prefix_bytes=0))
    options = ({}, {"temperature": 1.0, "seed": 3}, {}, {"temperature": 0.7, "seed": 4})
    for i, sampling in enumerate(options):
        served.add(tokens_of(i, 400 + 100 * i), request(None, **sampling))
    served.run()
    assert served.scheduler.counters.preempted >= 2
    assert {served.reason(id) for id in served.asked} <= {"context", "end"}
    assert "context" in {served.reason(id) for id in served.asked}
    check(served)


def test_the_youngest_gives_way_and_the_oldest_goes_on(engine):
    served = Served(engine, Limits(cache_bytes=bytes_of(engine, CONTEXT), prefix_bytes=0))
    old, young = (served.add(tokens_of(i, 300), request(300)) for i in range(2))
    while not served.scheduler.counters.preempted:
        served.step()
    assert [each.id for each in served.scheduler._active] == [old]
    assert [each.id for each in served.scheduler._waiting] == [young]
    count = len(served.tokens(young))
    while not served.reason(old):
        served.step()
    assert count and len(served.tokens(young)) == count
    served.run()
    assert served.scheduler.counters.preempted == 1
    check(served)


def test_prefixes_make_room_before_anybody_waits(engine):
    served = Served(engine, Limits(cache_bytes=bytes_of(engine, CONTEXT)))
    for i in range(6):
        served.add(tokens_of(i, 300), request(200))
        served.run()
    assert served.scheduler.counters.preempted == 0
    assert 0 < served.scheduler.load().prefix_bytes <= bytes_of(engine, CONTEXT) // 2
    check(served)


def test_memory_for_one_whole_context_is_needed(engine):
    least = bytes_of(engine, CONTEXT)
    with pytest.raises(ValueError, match=f"cache_bytes has value {least - 1}, expected at least {least}"):
        Served(engine, Limits(cache_bytes=least - 1))
    assert engine.scheduler(Limits(cache_bytes=least)).load().most_cache_bytes == least
    assert engine.scheduler().load().most_cache_bytes >= least


def test_a_model_with_a_memory_budget_reads_its_layers_once_for_all(long_folder, monkeypatch):
    options = {"backend": "cpp", "context": 512}
    with LayerWiseInferenceEngine(long_folder, **options) as whole:
        budget = whole.model.weight_bytes // 2 + (12 << 20)
        prompts = [tokens_of(i, 20) for i in range(8)]
        expected = [alone(whole, prompt, request(6)) for prompt in prompts]
    with LayerWiseInferenceEngine(long_folder, max_memory=budget, **options) as engine:
        assert not engine.model.residency.whole
        served = Served(engine, Limits(piece_seconds=math.inf))
        for prompt in prompts:
            served.add(prompt, request(6))
        served.step()
        passes, parts = [], engine.model.residency.layer_parts
        monkeypatch.setattr(
            engine.model.residency, "layer_parts", lambda: passes.append(0) or parts(), raising=True
        )
        served.step()
        assert len(passes) == 1
        assert [len(served.tokens(id)) for id in served.asked] == [2] * 8
        served.run()
        for id, texts in zip(served.asked, expected, strict=True):
            served.check_text(id, texts)


def test_a_budget_that_is_too_small_for_all_makes_the_youngest_wait(engine, monkeypatch):
    served = Served(engine, Limits())
    for i in range(3):
        served.add(tokens_of(i, 20), request(5))
    decode = engine.model.decode

    def limited(tokens, caches):
        if len(tokens) > 2:
            raise MemoryBudgetError("too small")
        return decode(tokens, caches)

    monkeypatch.setattr(engine.model, "decode", limited)
    served.run()
    assert served.scheduler.counters.preempted and all(served.reason(id) == "length" for id in served.asked)
    check(served)
    monkeypatch.setattr(engine.model, "decode", lambda tokens, caches: limited([0] * 3, []))
    alone_but_too_large = served.add(tokens_of(1, 60), request(5))
    served.run()
    assert isinstance(served.events[alone_but_too_large][-1].error, MemoryBudgetError)


# ------------------------------------------------------------------------------------------------ prefixes


def cached(served, tokens, **options):
    """How many tokens of a prompt were there already, once it is done."""
    id = served.add(tokens, request(3), **options)
    served.run()
    return served.events[id][-1].statistics.cached_tokens


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


# ------------------------------------------------------------------------------------------------ errors


class Broken:
    """A grammar with an error after some tokens."""

    def __init__(self, after):
        self.left = after

    def mask(self):
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("a broken grammar")

    def accept(self, token):
        pass

    finished = False


def test_an_error_in_a_grammar_ends_its_sequence_only(engine):
    served = Served(engine, Limits())
    good = [served.add(tokens_of(i, 60), request(12)) for i in range(2)]
    bad = served.add(tokens_of(5, 60), request(12), constraint=Broken(4))
    at_once = served.add(tokens_of(6, 60), request(12), constraint=Broken(0))
    served.run()
    assert [served.reason(id) for id in (*good, bad, at_once)] == ["length", "length", "error", "error"]
    assert isinstance(served.events[bad][-1].error, ZeroDivisionError)
    assert len(served.tokens(bad)) == 4 and served.tokens(at_once) == []
    assert served.scheduler.load().running == 0
    check(served)


def test_an_error_of_a_pass_ends_the_sequences_in_it(engine, monkeypatch):
    served = Served(engine, Limits())
    good = served.add(tokens_of(1, 60), request(30))
    while not served.tokens(good):
        served.step()

    def fail(*_, **__):
        raise OSError("the disk is gone")

    bad = served.add(tokens_of(2, 600), request(30))
    served.step()
    assert 32 <= served.scheduler._active[-1].computed < 600
    with monkeypatch.context() as broken:
        broken.setattr(engine.model, "run", fail)
        served.step()
    assert served.reason(bad) == "error" and isinstance(served.events[bad][-1].error, OSError)
    served.run()
    assert served.reason(good) == "length"
    assert cached(served, tokens_of(2, 600)) == 0  # what a broken pass left is not shared
    check(served)


def test_the_error_of_one_prompt_is_raised_by_a_batch(engine, monkeypatch):
    constraints = iter([Broken(9), Broken(2)])
    wanted = dataclasses.replace(request(20), new_constraint=lambda: next(constraints))
    with pytest.raises(ZeroDivisionError, match="a broken grammar"):
        engine._generator.batch([tokens_of(1, 20), tokens_of(2, 20)], wanted)
    assert engine.statistics.reasons == ("interrupted", "error")
    assert engine.statistics.prompt_tokens == 40 and engine.statistics.new_tokens == 5


def test_an_interrupt_of_a_batch_leaves_statistics(engine, monkeypatch):
    decode, left = engine.model.decode, [5]

    def interrupted(tokens, caches):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return decode(tokens, caches)

    monkeypatch.setattr(engine.model, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([tokens_of(1, 60), tokens_of(2, 60)], 20)
    assert engine.statistics.reasons == ("interrupted",) * 2 and engine.statistics.new_tokens == 2 + 8


# ------------------------------------------------------------------------------------------------ results


def test_log_probabilities(engine):
    served = Served(engine, Limits())
    prompt = tokens_of(1, 150)
    plain = served.add(prompt, request(4))
    id = served.add(prompt, request(4), logprobs=2, prompt_logprobs=3)
    served.run()
    assert served.chosen[id] == served.chosen[plain]
    (logits,) = engine.model.run([prompt[:-1]], [engine.new_cache()], all_positions=True, prompts=[150])
    found = [each for event in served.events[id] for each in event.prompt_logprobs or []]
    assert found == [None, *(log_probabilities(row, t, 3) for row, t in zip(logits, prompt[1:], strict=True))]
    first = served.events[id][0]
    assert first.tokens and first.prompt_logprobs
    logprobs = [each for event in served.events[id] for each in event.logprobs]
    assert logprobs == [
        log_probabilities(np.frombuffer(row, np.float32), t, 2) for t, row in served.chosen[id]
    ]
    assert not any(event.logprobs or event.prompt_logprobs for event in served.events[plain])


def test_statistics_of_a_sequence(engine, monkeypatch):
    served = Served(engine, Limits())
    Machine(served, monkeypatch, base=0.5, token=0.0, key=0.0, step=0.25)
    id = served.add(tokens_of(1, 100), request(5))
    served.clock.now += 1
    served.run()
    found = served.events[id][-1].statistics
    passes = served.scheduler.counters.prompt_passes
    assert (found.prompt_tokens, found.cached_tokens, found.new_tokens) == (100, 0, 5)
    assert found.seconds_to_first_token == 1 + 0.5 * passes and found.seconds == 2 + 0.5 * passes
    assert found.reason == "length" and found.tokens_per_second == 4
    assert served.events[id][0].statistics.reasons == ("",)
    assert served.text(id) == engine.generate(tokens_of(1, 100), 5)


def test_memory_is_reserved_in_steps(engine):
    assert memory.RESERVED == 64
    served = Served(engine, Limits())
    ledger = served.scheduler._caches.memory
    assert [ledger.with_reserve(n) for n in (1, 64, 65, CONTEXT)] == [128, 128, 192, CONTEXT]


@pytest.mark.parametrize("kv_cache_dir", (None, "kv"))
def test_texts_are_those_of_generate(long_folder, tmp_path, kv_cache_dir):
    folder = kv_cache_dir and tmp_path / kv_cache_dir
    options = ({"stop": ["a", "\n"]}, {"temperature": 1.5, "seed": 2}, {"repetition_penalty": 1.3})
    with LayerWiseInferenceEngine(
        long_folder, backend="cpp", context=CONTEXT, kv_cache_dir=folder, speculative=False
    ) as engine:
        served = Served(engine, Limits())
        for i, each in enumerate(options * 2):
            served.add(tokens_of(i % 4, 100), request(80, **each))
        served.run()
        for id, asked in served.asked.items():
            engine._generator.forget()
            assert served.text(id) == engine.generate(asked.tokens, 80, **options[(id - 1) % 3])
            assert served.reason(id) == engine.statistics.reason
        assert served.scheduler.counters.prefix_hits and "stop" in map(served.reason, served.asked)


def test_a_batch_may_be_longer_than_what_runs(engine):
    prompts = [tokens_of(i, 5 + i) for i in range(40)]
    texts = engine.generate(prompts, 4)
    assert engine.statistics.prompt_tokens == sum(map(len, prompts))
    assert len(engine.statistics.reasons) == 40
    assert texts == [engine.generate(prompt, 4) for prompt in prompts]


def test_prompts_of_a_batch_share_what_they_begin_with(engine):
    begin = tokens_of(1, 200)
    texts = engine.generate([begin + tokens_of(i, 30) for i in range(4)], 5)
    assert engine.statistics.cached_tokens == 3 * 200
    for i, text in enumerate(texts):
        engine._generator.forget()
        assert engine.generate(begin + tokens_of(i, 30), 5) == text
