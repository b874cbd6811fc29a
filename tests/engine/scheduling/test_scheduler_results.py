"""What a scheduler's sequences tell: texts, as `generate` gives them, and log probabilities."""

import numpy as np
import pytest

from airllm.engine.request import request
from airllm.engine.sampling import log_probabilities
from airllm.engine.scheduling.requests import Limits
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines.scheduled import CONTEXT, tokens_of
from tests.support.engines.served import Served


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
