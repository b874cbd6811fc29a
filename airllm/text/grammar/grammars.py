"""Grammars for a tokenizer, compiled once and kept."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from airllm.extras import require_extra
from airllm.text.grammar.constraint import GrammarConstraint, reason
from airllm.text.grammar.errors import GrammarError, Place
from airllm.text.grammar.patterns import escape, translate
from airllm.text.grammar.schema import EngineSchema, check_schema
from airllm.text.grammar.vocabulary_table import VocabularyTable
from airllm.text.tokenizer import Tokenizer

NewGrammarConstraint = Callable[[], GrammarConstraint]

_KEPT = 64  # compiled grammars
_SEARCH_SECONDS = 0.2
# White space between the parts of JSON: a space, or the end of a line and an indentation. Without a limit,
# some models write spaces until their tokens are used up.
_WHITE_SPACE = r"\x20|\x0A\x20{0,32}"
# Only control characters may be written as \u0001, so other characters have one form.
_ENGINE_OPTIONS = {"whitespace_pattern": _WHITE_SPACE, "json_allow_general_unicode_escapes": False}
# About 20 ms for a compilation and 15 ms for a token at the most, and some 40 MB of states.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000, "step_max_items": 50_000,
    "max_lexer_states": 20_000, "max_grammar_size": 200_000, "verbose_errors": False,
}  # fmt: skip


class Grammars:
    """Compiles grammars for one tokenizer. Its methods return a function that makes the constraint of a
    sequence, and may be called from any thread. They raise GrammarError for a grammar that is invalid or
    cannot be enforced, and MissingExtra without the package `llguidance`.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._compiled: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def json_schema(self, schema: Any, parameter: str = "json_schema") -> NewGrammarConstraint:
        """JSON that a schema describes: a dict, JSON text, or a Pydantic model. `{"type": "object"}` is any
        object. `parameter` is the name of the schema in messages.
        """
        checked = check_schema(schema, parameter)
        try:
            return self._new(json.dumps({"grammars": [{"json_schema": with_options(checked.document())}]}))
        except ValueError as error:
            place = self._place_of_error(checked)
            raise GrammarError(
                parameter, "unsupported schema", place, f"the grammar engine says: {error}"
            ) from None

    def regex(self, pattern: str, parameter: str = "regex") -> NewGrammarConstraint:
        """Texts that match an expression of ECMAScript, from the first to the last character."""
        try:
            if not isinstance(pattern, str):
                raise ValueError(f"a {type(pattern).__name__}, expected a str")
            return self._new(_lark_grammar(f"start: /{translate(pattern)}/"))
        except ValueError as error:
            raise GrammarError(parameter, "unsupported pattern", detail=f"found {error}") from None

    def choices(self, texts: Sequence[str], parameter: str = "choices") -> NewGrammarConstraint:
        """One of these texts."""
        if isinstance(texts, str) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise GrammarError(
                parameter, "invalid value", detail=f"found {texts!r}, expected texts to choose from"
            )
        return self.lark(f"start: {' | '.join(f'/{escape(text)}/' for text in texts)}", parameter)

    def lark(self, grammar: str, parameter: str = "grammar") -> NewGrammarConstraint:
        """Texts of a grammar in the engine's variant of Lark."""
        try:
            return self._new(_lark_grammar(grammar))
        except ValueError as error:
            raise GrammarError(
                parameter, "unsupported grammar", detail=f"the grammar engine says: {error}"
            ) from None

    def _place_of_error(self, schema: EngineSchema) -> Place:
        """The place of the deepest schema that the engine refuses; the root if that takes long to find."""
        latest = time.monotonic() + _SEARCH_SECONDS
        for place in schema.places():
            if time.monotonic() > latest:
                break
            try:
                self._compile(
                    json.dumps({"grammars": [{"json_schema": with_options(schema.document(place))}]})
                )
            except ValueError:
                return place
        return ()

    def _new(self, grammar: str) -> NewGrammarConstraint:
        key = hashlib.sha256(grammar.encode()).digest()
        with self._lock:
            matcher = self._compiled.get(key)
        if matcher is None:
            matcher = self._compile(grammar)
        with self._lock:
            self._compiled[key] = matcher
            self._compiled.move_to_end(key)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return lambda: GrammarConstraint(matcher.deep_copy(), len(self._tokenizer))

    def _compile(self, grammar: str) -> Any:
        """The engine's state at the beginning of a text. ValueError if it refuses the grammar."""
        with require_extra("structured"):
            from llguidance import LLMatcher, LLParserLimits

        matcher = LLMatcher(self._engine_tokenizer, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))
        if not matcher.is_error():
            matcher.compute_bitmask()  # prepares states for all sequences, and fails if there is no text
        if matcher.is_error():
            raise ValueError(reason(matcher.get_error()))
        return matcher

    @cached_property
    def _engine_tokenizer(self) -> Any:
        """The tokenizer, prepared on first use: half a second."""
        from llguidance import LLTokenizer, TokenizerWrapper

        table = VocabularyTable(self._tokenizer)
        return LLTokenizer(TokenizerWrapper(table), eos_token=table.stop_ids)


def with_options(document: dict[str, Any]) -> dict[str, Any]:
    """A document of `EngineSchema` with the engine's options."""
    return {**document, "x-guidance": _ENGINE_OPTIONS}


def _lark_grammar(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f"%llguidance {{}}\n{text}"}]})
