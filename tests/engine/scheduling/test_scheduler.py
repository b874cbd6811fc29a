"""Sequences that are served together get the bits that each gets alone, whatever comes and goes."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airllm.engine.request import request
from airllm.engine.scheduling import memory
from airllm.engine.scheduling.requests import Limits, QueueFull
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines.served import Served, alone
from tests.support.models import tiny_gguf, wide_gguf

# A model, the format of its weights, the dtype of its caches, the context, and lengths of prompts.
MODELS = {
    "llama": ("llama3", Kind.Q4_0, "f16", 400, (1, 20, 48, 49, 130, 250)),
    "windows": ("gemma3", Kind.Q8_0, "q8_0", 1300, (17, 60, 900, 1100)),
    "experts": ("qwen3_moe", Kind.Q5_1, "q8_0", 300, (9, 48, 60, 200)),
    "recurrent": ("lfm2", None, "f16", 300, (1, 20, 65, 130, 200)),
    "delta rule": ("qwen3_5", None, "f16", 300, (1, 20, 65, 130, 200)),
    "state space": ("falcon_h1", None, "f16", 160, (1, 20, 70)),
    "other angles when long": ("phi3_long", None, "f16", 64, (3, 14, 22, 30)),
}
SAMPLINGS = ({}, {"temperature": 1.0, "seed": 7, "repetition_penalty": 1.2})


class Case:
    """A model, opened for one and for two threads, and what each of its sequences gets alone."""

    def __init__(self, name, folder):
        model, kind, cache_dtype, context, self.lengths = MODELS[name]
        path = folder / "model.gguf"
        if kind is None:
            tiny_gguf.write_gguf(model, path, "float")
        else:
            wide_gguf.write_wide(model, path, kind)
        options = {"backend": "cpp", "cache_dtype": cache_dtype, "context": context}
        self.engines = {n: LayerWiseInferenceEngine(path, threads=n, **options) for n in (1, 2)}
        vocabulary = len(self.engines[1].tokenizer)
        self.texts = np.random.default_rng(1).integers(0, vocabulary - 1, (2, max(self.lengths))).tolist()
        self._alone = {}

    def prompt(self, text, length, change):
        """The beginning of a text, with another token `change` places from its end, if that is not 0."""
        tokens = self.texts[text][:length]
        if 0 < change <= length:
            tokens[-change] ^= 1
        return tokens

    def alone(self, prompt, wanted):
        key = tuple(prompt), wanted.max_new_tokens, wanted.sampling.seed
        if key not in self._alone:
            self._alone[key] = alone(self.engines[1], prompt, wanted)
        return self._alone[key]

    def one_context(self):
        cache = self.engines[1].new_cache()
        return cache.resident_bytes(cache.capacity)


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    cases = {}

    def open_case(name):
        if name not in cases:
            cases[name] = Case(name, tmp_path_factory.mktemp("scheduled"))
        return cases[name]

    yield open_case
    for case in cases.values():
        for engine in case.engines.values():
            engine.close()


def machine_of(case):
    """Any order of arrivals, steps, cancellations and deadlines, with any limits."""

    class Machine(RuleBasedStateMachine):
        @initialize(
            threads=st.sampled_from([1, 2]),
            running=st.sampled_from([1, 3, 8]),
            share=st.sampled_from([1.0, 1.3, 4.0]),
            idle=st.sampled_from([0.0, 0.5, 1.0]),
            seconds=st.sampled_from([0.01, 1.0]),
        )
        def begin(self, threads, running, share, idle, seconds):
            nbytes = int(case.one_context() * share)
            limits = Limits(running, 6, nbytes, int(nbytes * idle), seconds)
            self.served = Served(case.engines[threads], limits)

        @rule(
            text=st.sampled_from([0, 0, 0, 1]),
            length=st.sampled_from(case.lengths),
            change=st.sampled_from([0, 0, 1, 5, 40]),
            count=st.sampled_from([1, 3, 40]),
            sampling=st.sampled_from(SAMPLINGS),
            salt=st.sampled_from(["", "", "", "other"]),
            deadline=st.sampled_from([None, None, 3.0]),
        )
        def add(self, text, length, change, count, sampling, salt, deadline):
            deadline = deadline and self.served.clock.now + deadline
            prompt = case.prompt(text, length, change)
            try:
                self.served.add(prompt, request(count, **sampling), salt=salt, deadline=deadline)
            except QueueFull as full:
                assert full.retry_after >= 1

        @rule(count=st.sampled_from([1, 3, 20]), seconds=st.sampled_from([0.0, 0.004, 0.2]))
        def step(self, count, seconds):
            for _ in range(count):
                self.served.clock.now += seconds
                self.served.step()

        @precondition(lambda self: self.served.asked)
        @rule(which=st.integers(0, 100))
        def cancel(self, which):
            ids = list(self.served.asked)
            self.served.scheduler.cancel(ids[which % len(ids)])

        def teardown(self):
            if not hasattr(self, "served"):
                return
            self.served.run()
            load = self.served.scheduler.load()
            assert (load.running, load.waiting, load.cache_bytes) == (0, 0, load.prefix_bytes)
            for id, asked in self.served.asked.items():
                assert self.served.reason(id) and not self.served.events[id][-1].error
                self.served.check_text(id, case.alone(asked.tokens, asked.request))

    return Machine


@pytest.mark.parametrize("name", MODELS)
def test_any_order_gives_each_text_as_alone(name, case_of, monkeypatch):
    monkeypatch.setattr(memory, "RESERVED", 8)  # so that short texts need more memory, too
    run_state_machine_as_test(
        machine_of(case_of(name)),
        settings=settings(
            max_examples=10 if name in ("windows", "recurrent", "delta rule") else 30,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_recurrent_state_is_shared_where_it_was_kept(case_of):
    """A prompt keeps the state of the last multiple of 64 before its last token."""
    case = case_of("recurrent")
    served = Served(case.engines[2], Limits())
    lengths = {200: 0, 130: 0, 199: 192, 131: 128, 64: 0}  # and how many tokens are found
    for length, found in lengths.items():
        served.add(case.prompt(0, length, 0), request(3))
        served.run()
        assert served.events[max(served.asked)][-1].statistics.cached_tokens == found
    for id, asked in served.asked.items():
        served.check_text(id, case.alone(asked.tokens, asked.request))


@pytest.mark.parametrize("running", (False, True))
def test_a_layer_with_a_window_shares_only_what_it_has(case_of, running):
    """After 1100 tokens it lacks the first 256, and the window before 355 is not whole."""
    case = case_of("windows")
    served = Served(case.engines[2], Limits())
    lengths = {1100: 0, 300: 0, 900: 899, 60: 59}  # and how many tokens are found
    for length, found in lengths.items():
        served.add(case.prompt(0, length, 0), request(200 if running else 3))
        while served.tokens(last := max(served.asked)) == []:
            served.step()
        if not running:
            served.run()
        assert served.events[last][-1].statistics.cached_tokens == found
    served.run()
    for id, asked in served.asked.items():
        served.check_text(id, case.alone(asked.tokens, asked.request))
