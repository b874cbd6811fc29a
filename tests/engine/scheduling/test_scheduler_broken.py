"""The tests of the scheduler notice what could go wrong: each change makes a sequence another one."""

from itertools import chain

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from airllm.engine.request import request
from airllm.engine.sampling import Sampler
from airllm.engine.scheduling import memory, sequence
from airllm.engine.scheduling.caches import Caches
from airllm.engine.scheduling.requests import Limits
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.kv_cache import Cache
from tests.support.engines.served import Served, alone
from tests.support.models import wide_gguf

CONTEXT = 400
TEXT = np.random.default_rng(3).integers(0, wide_gguf.VOCABULARY - 1, CONTEXT).tolist()
WANTED = request(90, temperature=0.5, seed=1, logit_bias={wide_gguf.VOCABULARY - 1: -100})  # no end


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = wide_gguf.write_wide("llama3", tmp_path_factory.mktemp("broken") / "model.gguf", Kind.Q4_0)
    with LayerWiseInferenceEngine(path, backend="cpp", context=CONTEXT) as found:
        yield found


@pytest.fixture(scope="module")
def expected(engine):
    """Three prompts of many tokens, which begin alike, a short one, and the second with its answer and more.
    What each gets alone.
    """
    prompts = [TEXT[:300], TEXT[:200], [*TEXT[:150], 3, 4, 5], TEXT[:40]]
    answer = [token for token, _ in alone(engine, prompts[1], WANTED)]
    return [(prompt, alone(engine, prompt, WANTED)) for prompt in [*prompts, prompts[1] + answer]]


def serve(engine, expected):
    """All prompts, with memory for half of them, and then some that share what is left."""
    each = engine.new_cache().resident_bytes(CONTEXT)
    served = Served(engine, Limits(cache_bytes=int(1.4 * each), prefix_bytes=int(1.4 * each)))
    rounds = (expected[:4], expected[1:2], expected[1:2], expected[4:])
    for prompts in rounds:
        for prompt, _ in prompts:
            served.add(prompt, WANTED)
        served.run()
    counters = served.scheduler.counters
    assert counters.preempted and counters.prefix_hits
    for id, (_, texts) in zip(served.asked, chain(*rounds), strict=True):
        assert served.reason(id) in ("length", "context")
        served.check_text(id, texts)


def share_among_all_kernels(patch):
    patch.setattr(Caches, "_key", lambda self, sequence, base=0: sequence.asked.salt)


def share_answers(patch):
    def share(self, sequence):
        self.memory.prefixes.share(sequence.active_entry, sequence.computed)

    patch.setattr(Caches, "share", share)


def copy_one_token_less(patch):
    copy = Cache.copy_prefix

    def spoiled(self, other, length):
        copy(self, other, length)
        self.arrays[0][0][:, :, :, length - 1] = 0

    patch.setattr(Cache, "copy_prefix", spoiled)


def forget_the_sampler(patch):
    def wait(self):
        self.text._sampler = Sampler(WANTED.sampling, self.asked.tokens)

    patch.setattr(sequence.Sequence, "wait", wait)


def compute_answers_again_by_the_kernels_of_prompts(patch):
    patch.setattr(sequence.Sequence, "kernels_for", property(lambda self: self.base))


def forget_what_is_not_computed_yet(patch):
    patch.setattr(Caches, "_sharable", lambda self, one: len(one.text.tokens) + 1)


def release_a_page_too_many(patch):
    release = Cache._release_runs

    def spoiled(self, start, array, rows):
        release(self, start, array, max(rows - 40, 0))

    patch.setattr(Cache, "_release_runs", spoiled)


def reserve_nothing(patch):
    patch.setattr(memory.CacheMemory, "reserve", lambda self, before, tokens, but=None: True)


CHANGES = (
    share_among_all_kernels,
    share_answers,
    copy_one_token_less,
    forget_the_sampler,
    compute_answers_again_by_the_kernels_of_prompts,
    forget_what_is_not_computed_yet,
    release_a_page_too_many,
    reserve_nothing,
)


def test_nothing_is_broken(engine, expected, monkeypatch):
    monkeypatch.setattr(memory, "RESERVED", 8)
    serve(engine, expected)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(change, engine, expected, monkeypatch):
    monkeypatch.setattr(memory, "RESERVED", 8)
    change(monkeypatch)
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        serve(engine, expected)
