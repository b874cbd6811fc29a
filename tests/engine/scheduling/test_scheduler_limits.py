"""A scheduler's limits: time, memory, the queue."""

import math

import pytest

from airllm.engine.request import request
from airllm.engine.scheduling import memory
from airllm.engine.scheduling.pace import STEP
from airllm.engine.scheduling.requests import Limits, QueueFull
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.kv_cache import ContextFull
from tests.support.engines.scheduled import CONTEXT, Machine, bytes_of, check, tokens_of
from tests.support.engines.served import Served, alone

# ------------------------------------------------------------------------------------------------ time


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
