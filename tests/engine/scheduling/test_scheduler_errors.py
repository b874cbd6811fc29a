"""Errors and interrupts, which end one sequence of a scheduler, or those of a pass."""

import dataclasses

import pytest

from airllm.engine.request import request
from airllm.engine.scheduling.requests import Limits
from tests.support.engines.scheduled import cached, check, tokens_of
from tests.support.engines.served import Served


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
