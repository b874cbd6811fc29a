"""`airllm.ray.Generate` as a function of columns, without Ray."""

import json
import sys
import threading

import numpy as np
import pytest

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.extras import MissingExtra
from airllm.ray import Generate, serving_app

ENGINE = {"threads": 1}


@pytest.fixture(scope="module")
def generate(model):
    with Generate(str(model), {"max_tokens": 20, "temperature": 0}, engine=ENGINE) as generate:
        yield generate


@pytest.fixture(scope="module")
def alone(model):
    with LayerWiseInferenceEngine(model, **ENGINE) as engine:
        yield engine


def conversations(*texts):
    """As Ray Data gives them: arrays of rows, whose messages have every field that any of them has."""
    rows = np.empty(len(texts), object)
    rows[:] = [np.array([{"role": "user", "content": text, "name": None}], object) for text in texts]
    return rows


def test_conversations_have_the_texts_that_they_have_alone(generate, alone):
    texts = [f"Hello {i}" for i in range(9)]
    found = generate({"id": np.arange(9), "messages": conversations(*texts)})
    chats = [[{"role": "user", "content": text}] for text in texts]
    assert list(found["text"]) == [alone.chat(chat, 20) for chat in chats]
    assert list(found["id"]) == list(range(9)) and list(found["error"]) == [None] * 9
    for i in range(9):
        answer = json.loads(found["response"][i])
        assert answer["choices"][0]["message"]["content"] == found["text"][i]
        assert answer["choices"][0]["finish_reason"] == found["finish_reason"][i]
        used = found["prompt_tokens"][i], found["completion_tokens"][i]
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == used


def test_prompts_are_texts_or_tokens_and_rows_have_fields_of_their_own(model, alone):
    with Generate(str(model), {"max_tokens": 9}, ("seed", "temperature"), ENGINE, max_running=2) as generate:
        seeds, temperatures = np.array([1, 2, 3]), np.array([1.0, 0.5, np.nan])
        own = {"seed": seeds, "temperature": temperatures}
        found = generate({"prompt": np.array(["the one", "in", "an"]), **own})["text"]
        drawn = zip(["the one", "in", "an"], [1, 2, 3], [1.0, 0.5, 1.0], strict=True)
        assert list(found) == [alone.generate(text, 9, seed=s, temperature=t) for text, s, t in drawn]
        tokens = [np.array(alone.tokenizer.encode(text)) for text in ("the one", "in", "an")]
        assert list(generate({"prompt": tokens, **own})["text"]) == list(found)
        with pytest.raises(ValueError, match="has the columns prompt, seed, expected temperature"):
            generate({"prompt": ["a"], "seed": seeds[:1]})
        with pytest.raises(ValueError, match="has the columns question, .*, expected messages, or prompt"):
            Generate.__call__(generate, {"question": ["a"], **own})


def test_a_row_that_is_refused_leaves_the_others(generate, alone):
    found = generate({"prompt": ["in", "x" * 5000, ""]})
    assert list(found["text"]) == [alone.generate("in", 20), None, None]
    assert "maximum context length is 2048 tokens" in found["error"][1]
    assert found["error"][2] == "'prompt' has no tokens, expected one or more."
    assert list(found["completion_tokens"][1:]) == [0, 0] and json.loads(found["response"][1])["error"]


def test_threads_share_a_model(generate, alone):
    found = [None] * 4

    def call(i):
        found[i] = generate({"prompt": [f"in {i}", f"an {i}"]})["text"]

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for i in range(4):
        assert list(found[i]) == [alone.generate(f"in {i}", 20), alone.generate(f"an {i}", 20)]


def test_a_failure_of_the_engine_is_no_answer(model, monkeypatch):
    with Generate(str(model), {"max_tokens": 9}, engine=ENGINE) as generate:
        monkeypatch.setattr(generate._engine.model, "run", lambda *given, **more: 1 / 0)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            generate({"prompt": ["a"]})


def test_a_deployment_needs_ray_and_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"package ray, which is not installed: pip install .*\[ray\]"):
        serving_app("smollm2")
