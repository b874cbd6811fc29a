"""Constraints in generation: a mask for each token, the end of the text, drafts and batches."""

import dataclasses
import json
import sys

import jsonschema
import numpy as np
import pytest

from airllm.engine.drafts.policy import Choice, DraftPolicy
from airllm.engine.request import request
from airllm.extras import MissingExtra
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import speaking_model

PROMPT = "the thin man in a hat"


class Spelling:
    """Allows only a text's tokens, one after the other, and records what it is asked."""

    def __init__(self, tokens: list[int]):
        self.tokens, self.accepted = tokens, []
        self.masks = 0

    def mask(self) -> np.ndarray:
        self.masks += 1
        mask = np.zeros(speaking_model.WORDS, bool)
        mask[self.tokens[len(self.accepted)]] = True
        return mask

    def accept(self, token: int) -> None:
        assert token == self.tokens[len(self.accepted)]
        self.accepted.append(token)

    @property
    def finished(self) -> bool:
        return len(self.accepted) == len(self.tokens)


class Unrestricted(Spelling):
    def mask(self) -> None:
        self.masks += 1

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    finished = False


def generate(engine, prompt: str, constraint, **options) -> str:
    wanted = request(new_constraint=lambda: constraint, **options)
    return "".join(engine._generator.stream(prompt, wanted))


@pytest.mark.parametrize("options", ({}, {"temperature": 2.0, "seed": 1, "repetition_penalty": 1.3}))
def test_a_text_is_what_its_constraint_allows(engine, options):
    spelling = Spelling(engine.tokenizer.encode("said: {}"))
    assert generate(engine, PROMPT, spelling, **options) == "said: {}"
    assert engine.statistics.reason == "end"
    assert spelling.masks == len(spelling.accepted) == engine.statistics.new_tokens


def test_a_finished_text_is_complete_even_at_its_length(engine):
    tokens = engine.tokenizer.encode("done")
    assert generate(engine, PROMPT, Spelling(tokens), max_new_tokens=len(tokens)) == "done"
    assert engine.statistics.reason == "end"
    assert generate(engine, PROMPT, Spelling(tokens), max_new_tokens=len(tokens) - 1) == "don"
    assert engine.statistics.reason == "length"


def test_a_stop_string_ends_a_constrained_text(engine):
    assert generate(engine, PROMPT, Spelling(engine.tokenizer.encode("one two")), stop=" t") == "one"
    assert engine.statistics.reason == "stop"


def test_a_constraint_that_restricts_nothing_changes_nothing(engine):
    constraint = Unrestricted([])
    assert generate(engine, PROMPT, constraint, max_new_tokens=20) == engine.generate(PROMPT, 20)
    assert constraint.masks == 20


def test_each_sequence_of_a_batch_has_its_own_constraint(engine):
    made = []

    def new_constraint() -> Spelling:
        made.append(Spelling(engine.tokenizer.encode("alike")))
        return made[-1]

    wanted = dataclasses.replace(request(), new_constraint=new_constraint)
    assert engine._generator.batch([PROMPT, "a"], wanted) == ["alike"] * 2
    assert len(made) == 2


@pytest.mark.parametrize("text", ("abababababababababababab", "the thin man in a hat, he said"))
def test_a_constraint_is_asked_for_each_drafted_token(folder, text, monkeypatch):
    """Guesses are right, wrong, and right until the text is complete."""
    monkeypatch.setattr(
        DraftPolicy, "choose", lambda self, kinds, *_: Choice(3 if len(kinds) >= 3 else 0, 1.0)
    )
    with LayerWiseInferenceEngine(folder, speculative=True) as engine:
        spelling = Spelling(engine.tokenizer.encode(text))
        assert generate(engine, "ababababababababababab", spelling) == text
        assert engine.statistics.drafted_tokens > 0
        assert engine.statistics.new_tokens == len(spelling.tokens) == spelling.masks
        assert engine.statistics.reason == "end"


def test_an_error_of_a_constraint_ends_the_call(engine):
    with pytest.raises(ValueError, match="the mask of 0 tokens allows none"):
        generate(
            engine, PROMPT, type("Nothing", (Unrestricted,), {"mask": lambda self: np.zeros(0, bool)})([])
        )
    assert engine.generate(PROMPT, 3)  # the next one is not affected


def test_a_control_token_is_text_only_if_it_is_shown(engine):
    begin = engine.tokenizer.id_of(speaking_model.BEGIN)
    tokens = [*engine.tokenizer.encode("a"), begin, *engine.tokenizer.encode("b")]
    assert generate(engine, PROMPT, Spelling(tokens)) == "ab"
    assert generate(engine, PROMPT, Spelling(tokens), shown_tokens=[begin]) == f"a{speaking_model.BEGIN}b"


# ------------------------------------------------------------------------------------------------ grammars

SCHEMA = {"type": "object", "properties": {"n": {"enum": [7, 12]}, "s": {"enum": ["x", "y"]}},
          "required": ["n", "s"], "additionalProperties": False}  # fmt: skip


@pytest.fixture
def llguidance():
    return pytest.importorskip("llguidance")


@pytest.mark.parametrize("options", ({}, {"temperature": 2.0, "seed": 3}))
def test_json_schema(engine, llguidance, options):
    spaces = {engine.tokenizer.id_of(letter): -100 for letter in ("\u0120", "\u010a")}  # the context is short
    options = {**options, "json_schema": SCHEMA, "logit_bias": spaces}
    whole = engine.generate(PROMPT, None, **options)
    jsonschema.validate(json.loads(whole), SCHEMA)
    assert engine.statistics.reason == "end"
    assert "".join(engine.stream(PROMPT, None, **options)) == whole


def test_a_batch_and_a_chat_follow_a_grammar(engine, llguidance):
    assert set(engine.generate([PROMPT, "a"], regex="[ab]{3}")[0]) <= {"a", "b"}
    messages = [{"role": "user", "content": "Hi"}]
    assert engine.chat(messages, choices=["yes", "no"]) in ("yes", "no")
    assert "".join(engine.stream_chat(messages, json_schema={"const": [1]})) in (
        "[1]",
        "[ 1]",
        "[1 ]",
        "[ 1 ]",
    )


@pytest.mark.parametrize("options", ({}, {"temperature": 1.5, "seed": 3, "frequency_penalty": 0.3}))
def test_drafts_do_not_change_a_text_with_a_grammar(folder, llguidance, options, monkeypatch):
    monkeypatch.setattr(
        DraftPolicy, "choose", lambda self, kinds, *_: Choice(3 if len(kinds) >= 3 else 0, 1.0)
    )
    texts, drafted = [], 0
    for speculative in (True, False):
        with LayerWiseInferenceEngine(folder, speculative=speculative) as engine:
            texts.append(engine.generate("abcabcabcabc", 40, regex="[abc]{30,}", **options))
            drafted += engine.statistics.drafted_tokens
    assert texts[0] == texts[1] and drafted > 0


def test_errors_of_grammars_are_raised_by_the_call(engine, llguidance):
    with pytest.raises(ValueError, match="json_schema has an unsupported keyword at /not: a grammar cannot"):
        engine.stream(PROMPT, json_schema={"not": {}})
    with pytest.raises(ValueError, match="json_schema and regex are given, expected one of them"):
        engine.generate(PROMPT, json_schema={}, regex="a")


def test_the_package_is_named_where_it_is_missing(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"this needs the package llguidance.*\[structured\]"):
        engine.generate(PROMPT, json_schema={})
