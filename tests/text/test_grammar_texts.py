"""Grammars of JSON schemas allow what is valid by the package jsonschema, and little less: the suite of that
standard, made schemas, numbers and patterns.
"""

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airllm.text.grammar import GrammarError
from tests.support.engines.random_texts import allowed, generate
from tests.support.schemas import compiled, violations

pytest.importorskip("llguidance")
SUITE = json.loads((Path(__file__).parents[1] / "data" / "json_schema_suite.json").read_text())["cases"]


@pytest.mark.parametrize("file", sorted({case["file"] for case in SUITE}))
def test_no_text_that_the_suite_calls_invalid_is_allowed(file, grammars, tokenizer):
    for case in SUITE:
        new = compiled(grammars, case["schema"]) if case["file"] == file else None
        for test in case["tests"] if new else ():
            text = json.dumps(test["data"], ensure_ascii=False)
            if allowed(new, tokenizer, text) is None:
                assert test["valid"], (case["schema"], text)


def test_most_of_the_suites_valid_texts_are_allowed(grammars, tokenizer):
    """Of the schemas that are not refused. The others have names in another order, or 1.0 for 1."""
    valid = found = 0
    for case in SUITE:
        if (new := compiled(grammars, case["schema"])) and case["file"] != "format":
            texts = [json.dumps(test["data"], ensure_ascii=False) for test in case["tests"] if test["valid"]]
            valid += len(texts)
            found += sum(allowed(new, tokenizer, text) is None for text in texts)
    assert valid > 250
    assert found > 0.95 * valid


REFUSED = {
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$ref", "$schema", "$vocabulary", "contains",
    "contentSchema", "dependentRequired", "dependentSchemas", "else", "format", "if", "maxContains",
    "minContains", "minProperties", "multipleOf", "not", "oneOf", "patternProperties", "propertyNames",
    "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
}  # fmt: skip


def test_refused_schemas_of_the_suite_have_a_reason(grammars):
    for case in SUITE:
        try:
            grammars.json_schema(case["schema"])
        except GrammarError as error:
            text = str(error)
            unsatisfiable = "Unsatisfiable" in text or "names no" in text or "refers to itself" in text
            known = error.pointer.rpartition("/")[2] in REFUSED or any(name in text for name in REFUSED)
            assert unsatisfiable or known or "control characters" in text or "2^53" in text, (
                case["schema"],
                text,
            )


def test_texts_of_the_suites_schemas_are_valid(grammars, tokenizer):
    checked = 0
    for seed, case in enumerate(SUITE):
        if new := compiled(grammars, case["schema"]):
            text = generate(new, tokenizer, seed)
            checked += text is not None
            assert text is None or not violations(text, case["schema"]), (case["schema"], text)
    assert checked > 100


NAMES = st.sampled_from(["a", "b", "a.b", 'q"t', "é", "/~"])
NUMBERS = st.sampled_from([0, 1, -3, 17, 100000, -0.5, 0.1, 2.5e-3, 1e-7, 123456.75, -1e5])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "x", '"', "é\n", "\\"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
COUNTS = st.integers(0, 4)
PATTERNS = ["^a", "b$", "^[a-z]{2,4}$", "x|y", "^(a|bc)*$", r"\d", '^[^"]+$', r"^\w+-\d{1,3}$", ".", "^.{3}$"]


def schemas(inner):
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "number", "array", "object", ["object", "null"]]),
            "minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS,
            "multipleOf": st.sampled_from([1, 2, 7, 0.5, 0.25, 0.01]),
            "minLength": COUNTS, "maxLength": st.integers(0, 9),
            "pattern": st.sampled_from(PATTERNS), "format": st.sampled_from(["ipv4", "ipv6", "uuid"]),
            "items": inner, "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": COUNTS, "maxItems": COUNTS,
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "additionalProperties": st.booleans() | inner, "required": st.lists(NAMES, max_size=2),
            "minProperties": st.integers(0, 1), "maxProperties": COUNTS,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2), "$ref": st.just("#/$defs/x"),
            "const": VALUES, "enum": st.lists(VALUES, min_size=1, max_size=3),
        },
    )  # fmt: skip


SCHEMAS = st.recursive(st.booleans() | schemas(st.just({})), schemas, max_leaves=5).filter(
    lambda schema: isinstance(schema, dict)
)


@pytest.mark.parametrize("pattern", ('^[^"]+$', r"^[^\\]+$", r"^[^x\"\\]+$", r"^[\x00-!#-\[\]-\uffff]+$"))
def test_a_class_does_not_have_the_escapes_of_characters_that_it_lacks(grammars, tokenizer, pattern):
    new = grammars.json_schema({"type": "string", "pattern": pattern})
    for value in ('"', "\\", "a\n", "\t"):
        text = json.dumps(value)
        assert (allowed(new, tokenizer, text) is None) == bool(re.search(pattern, value)), text


@settings(max_examples=60, deadline=None)
@given(schema=SCHEMAS, x=SCHEMAS, seed=st.integers(0, 1000))
def test_texts_of_made_schemas_are_valid(grammars, tokenizer, schema, x, seed):
    schema = {**schema, "$defs": {"x": x}}
    if new := compiled(grammars, schema):
        text = generate(new, tokenizer, seed, 150)
        assert text is None or not violations(text, schema), text


BOUNDS = list(itertools.product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")))


@pytest.mark.parametrize("names", BOUNDS)
def test_bounds_of_numbers(names, grammars, tokenizer):
    """The engine itself takes a whole exclusive bound for a number within, if the bounds are close."""
    texts = [
        "0",
        "-0",
        "0.0",
        "0.1",
        "-0.1",
        "0.5",
        "1",
        "1.0",
        "1.2",
        "1.5",
        "0.0000001",
        "1.0000001",
        "9e-1",
    ]
    for values in itertools.product((-1, -0.3, 0, 0.1, 1, 1.2), (0, 0.001, 0.5, 1, 1.5, 2)):
        bounds = dict(zip(names, values, strict=True))
        new = compiled(grammars, {"type": "number", **bounds})
        for text in texts if new else ():
            assert allowed(new, tokenizer, text) is not None or not violations(text, bounds), (text, bounds)


PATTERN_TEXTS = ("", "a", "b", "ab", "ba", "aab", "a.b", "axb", "a\nb", "a-1", "_", "é", "a b", "]", "^", "1",
                 "\t", "a&b", "{", "a{1}", "/", "\U0001f642")  # fmt: skip


PATTERNS_OF_ECMASCRIPT = (
    "^a|b$", "(^a|b)b", "^(a|b)+$", "a{2}", "^a{1,}b?$", "^[^a]*$", r"^\w-\d$", r"^[\w]+$", r"^[^\s]b?$",
    r"^\S+$", r"^a\.b$", "^.$", "^..$", r"^[\]^]$", r"^[a&&b]+$", r"^[[]$|^[a-]$", "^(?:a+?)b$", "^(?<x>a)$",
    r"^\x61$", r"^[\t]$", r"^a\{1\}$", "/", r"^\/$", "^$", "", r"^[^\d\n]$", r"\^", "^a[-x.]b$", "^[.]$",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Possible")  # of Python's own expressions
@pytest.mark.parametrize("pattern", PATTERNS_OF_ECMASCRIPT)
def test_patterns_mean_what_they_mean_in_ecmascript(pattern, grammars, tokenizer):
    new = grammars.json_schema({"type": "string", "pattern": pattern})
    python = re.compile(pattern.replace("(?<", "(?P<"), re.ASCII)
    for text in PATTERN_TEXTS:
        found = allowed(new, tokenizer, json.dumps(text, ensure_ascii=False)) is None
        assert found == bool(python.search(text)), text


def test_ends_of_lines_and_spaces_are_those_of_ecmascript(grammars, tokenizer):
    def matches(pattern, text):
        new = grammars.json_schema({"type": "string", "pattern": pattern})
        return allowed(new, tokenizer, json.dumps(text, ensure_ascii=False)) is None

    assert [text for text in "x\n\r\u2028\u2029\x85" if matches("^.$", text)] == ["x", "\x85"]
    assert [text for text in "x \xa0\ufeff\u2003\x85" if matches(r"^\s$", text)] == list(" \xa0\ufeff\u2003")
    assert [text for text in "5٥" if matches(r"^\d$", text)] == ["5"]
