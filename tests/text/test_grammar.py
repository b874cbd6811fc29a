"""Grammars of JSON schemas: what they cannot enforce is refused with the place and the reason; their texts,
limits, and other vocabularies.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from airllm.text.answers import AnswerFormat
from airllm.text.chat_template import ChatTemplate
from airllm.text.gguf_tokenizer import gguf_tokenizer
from airllm.text.grammar import GrammarError, Grammars
from airllm.text.grammar.schema import MOST_BYTES, check_schema
from airllm.text.grammar.vocabulary_table import VocabularyTable
from airllm.text.tokenizer import Tokenizer
from airllm.text.tools.formats import MISTRAL_ARGS, MISTRAL_LIST
from airllm.text.vocabulary import Kind
from tests.support.engines.random_texts import allowed, generate
from tests.support.models import speaking_model, tokenizer_files
from tests.support.schemas import compiled, violations

pytest.importorskip("llguidance")
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("schema", "pointer", "message"),
    (
        ({"not": {}}, "/not", "an unsupported keyword at /not: a grammar cannot enforce it"),
        ({"properties": {"a": {"if": {}}}}, "/properties/a/if", "unsupported keyword"),
        ({"properties": {"a/~": {"x-y": 1}}}, "/properties/a~1~0/x-y", "unsupported keyword"),
        ({"patternProperties": {"a": {}}}, "/patternProperties", "unsupported keyword"),
        ({"anyOf": [{}, {"items": {"uniqueItems": True}}]}, "/anyOf/1/items/uniqueItems", "expected false"),
        ({"x-guidance": {"lenient": True}}, "/x-guidance", "unsupported keyword"),
        ({"nullable": True}, "/nullable", "unsupported keyword"),
        ({"type": "hiccup"}, "/type", "expected one or more of null, boolean, integer"),
        ({"type": []}, "/type", "expected one or more of"),
        ({"type": 123}, "/type", "found 123"),
        ({"properties": [1]}, "/properties", "expected an object of schemas"),
        ({"properties": {"a": 1}}, "/properties/a", "expected a schema: an object, true or false"),
        ({"properties": {"a\x01": {}}}, "/properties", "without control characters"),
        ({"items": [{}]}, "/items", "expected a schema"),
        ({"enum": []}, "/enum", "expected a list of values"),
        ({"const": 2**60}, "/const", "expected a number from -2^53 to 2^53"),
        ({"enum": [{"a": [1, 1e300]}]}, "/enum/0/a/1", "expected a number from"),
        ({"minimum": "1"}, "/minimum", "expected a number"),
        ({"exclusiveMinimum": True}, "/exclusiveMinimum", "expected a number"),
        ({"multipleOf": 0}, "/multipleOf", "expected a number above 0"),
        ({"minLength": -1}, "/minLength", "expected a whole number from 0 to 100000"),
        ({"maxItems": 1e9}, "/maxItems", "expected a whole number from 0 to 100000"),
        ({"minProperties": 2}, "/minProperties", "cannot count properties whose names may repeat"),
        ({"required": "a"}, "/required", "expected a list of names"),
        ({"pattern": "(?=a)b"}, "/pattern", "found a look-around or an option at character 0"),
        ({"pattern": r"(a)\1"}, "/pattern", r"found the escape \1 at character 3"),
        ({"pattern": "a["}, "/pattern", "a [ without its partner"),
        ({"pattern": "a(b"}, "", "the grammar engine says"),
        ({"format": "iri"}, "/format", 'found "iri", expected one of date-time, time'),
        ({"$ref": "other.json"}, "/$ref", "expected a place in this document, such as #/$defs/x"),
        ({"$ref": "#/$defs/none"}, "/$ref", "/$defs/none is no schema of this document"),
        ({"$ref": "#/title", "title": "x"}, "/$ref", "/title is no schema of this document"),
        ({"$ref": "#"}, "/$ref", "it refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "/allOf/0", "no text has this form"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$defs/a/$ref", "to itself"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "/$schema", "expected draft 6, 7"),
        ({"$schema": DRAFT_7, "prefixItems": [{}]}, "/prefixItems", "2020-12"),
        ({"properties": {"a": {"$id": "x"}}}, "/properties/a/$id", "at the root only"),
        ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}}, "/properties/a", "oneOf"),
        ({"type": "string", "enum": [1]}, "", "Unsatisfiable"),
        ("{", "", "expected JSON"),
        ("nonsense", "", "expected JSON"),
        ('{"const": NaN}', "", "the number NaN"),
        ({"const": float("inf")}, "", "expected JSON"),
        ({"const": "\ud800"}, "", "expected JSON"),
        (3, "", "found 3, expected a schema"),
    ),
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(schema, pointer, message, grammars):
    with pytest.raises(GrammarError) as found:
        grammars.json_schema(schema)
    assert found.value.pointer == pointer
    assert message in str(found.value) and str(found.value).startswith("json_schema has an ")


def test_the_message_names_the_argument(grammars):
    with pytest.raises(GrammarError, match="^tools.0. has an unsupported keyword at /not:") as found:
        grammars.json_schema({"not": {}}, "tools[0]")
    assert found.value.parameter == "tools[0]"


def test_descriptions_change_nothing(grammars, tokenizer):
    described = {
        "title": "x",
        "description": "y",
        "examples": [1],
        "default": 5,
        "$comment": "z",
        "deprecated": True,
    }
    assert check_schema({**described, "type": "null"}).document() == check_schema({"type": "null"}).document()


@pytest.mark.parametrize("draft", ("draft-07", "draft-06"))
def test_older_drafts(draft, grammars, tokenizer):
    """As zod and other programs write them."""
    schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "definitions": {"a/b": {"const": 1}},
              "$ref": "#/definitions/a~1b"}  # fmt: skip
    assert generate(grammars.json_schema(schema), tokenizer, 0) == "1"


def test_a_pydantic_model_is_a_schema(grammars, tokenizer):
    class Model:
        @staticmethod
        def model_json_schema():
            return {"type": "boolean"}

    assert generate(grammars.json_schema(Model), tokenizer, 0) in ("true", "false")
    assert generate(grammars.json_schema('{"const": "x"}'), tokenizer, 0) == '"x"'


# ------------------------------------------------------------------------------------------------ the text


def test_white_space_is_bounded(grammars, tokenizer):
    new = grammars.json_schema({"type": "object"})
    for text in ('{"a":1,"b":[1,2]}', '{"a": 1, "b": [1, 2]}', '{\n  "a": [\n    1\n  ]\n}'):
        assert allowed(new, tokenizer, text) is None
    assert allowed(new, tokenizer, '{  "a"') == 2
    assert allowed(new, tokenizer, "{\n\n") == 2
    assert allowed(new, tokenizer, "{\n" + 40 * " ") == 34
    assert allowed(new, tokenizer, " {}") == 0
    assert allowed(new, tokenizer, "{} ") == 2


def test_the_text_ends_where_nothing_may_follow(grammars, tokenizer):
    constraint = grammars.json_schema({"type": "array", "items": {"type": "integer"}})()
    for token in tokenizer.encode("[1]"):
        assert not constraint.finished
        assert not constraint.mask()[list(tokenizer.stop_ids)].any()
        constraint.accept(token)
    assert constraint.finished


def test_a_number_may_end_or_go_on(grammars, tokenizer):
    constraint = grammars.json_schema({"type": "integer"})()
    constraint.accept(tokenizer.encode("7")[0])
    mask = constraint.mask()
    assert not constraint.finished and mask[list(tokenizer.stop_ids)].all()
    assert mask[tokenizer.encode("7")[0]] and not mask[tokenizer.encode("x")[0]]
    constraint.accept(min(tokenizer.stop_ids))
    assert constraint.finished


def test_a_token_that_is_not_allowed_is_refused(grammars, tokenizer):
    constraint = grammars.json_schema({"type": "integer"})()
    with pytest.raises(ValueError, match="token 120 has no place in the grammar here"):
        constraint.accept(120)


def test_control_tokens_are_never_part_of_a_text(grammars, tokenizer):
    constraint = grammars.json_schema({"type": "string"})()
    constraint.accept(tokenizer.encode('"')[0])
    mask = constraint.mask()
    assert mask.sum() > 90
    assert not mask[[tokenizer.id_of(text) for text in (speaking_model.BEGIN, speaking_model.FINISH)]].any()


def test_sequences_have_states_of_their_own(grammars, tokenizer):
    new = grammars.json_schema({"enum": ["ab", "cd"]})
    first, second = new(), new()
    for token in tokenizer.encode('"a'):
        first.accept(token)
    assert first.mask()[tokenizer.encode("b")[0]]
    assert not second.mask()[tokenizer.encode("b")[0]]


def test_regex_and_choices(grammars, tokenizer):
    new = grammars.regex(r"[ab]{2}-\d")
    assert allowed(new, tokenizer, "ab-7") is None
    assert allowed(new, tokenizer, "abb") == 2
    new = grammars.choices(["yes", "no", 'say "no"/é'])
    assert all(allowed(new, tokenizer, text) is None for text in ("yes", "no", 'say "no"/é'))
    assert allowed(new, tokenizer, "yep") == 2
    assert allowed(grammars.regex("a?"), tokenizer, "") is None
    with pytest.raises(GrammarError, match="regex has an unsupported pattern: found a look-around"):
        grammars.regex("(?!a)")
    with pytest.raises(GrammarError, match="choices has an invalid value: found .., expected texts"):
        grammars.choices([])


# ------------------------------------------------------------------------------------------------ limits


def nested(levels: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize("keyword", ("const", "maximum", "exclusiveMinimum", "multipleOf"))
def test_numbers_that_are_no_floats_are_refused(grammars, keyword):
    for number in (10**400, -(10**400)):
        with pytest.raises(GrammarError, match=rf"/{keyword}: found .*, expected a number"):
            grammars.json_schema({keyword: number})


def test_size_and_depth_are_limited(grammars):
    grammars.json_schema(nested(45))
    with pytest.raises(GrammarError, match="expected at most 48 levels"):
        grammars.json_schema(nested(60))
    with pytest.raises(GrammarError, match="nested too deeply|at most 48 levels"):
        grammars.json_schema(nested(100_000))
    with pytest.raises(GrammarError, match=f"expected at most {MOST_BYTES}"):
        grammars.json_schema({"enum": ["x" * 100] * 3000})


@pytest.mark.parametrize(
    "schema",
    (
        {"type": "string", "pattern": "^(((a{1,999}){1,999}){1,999}){1,999}$"},
        {"type": "string", "pattern": "^(a?){999}(a{0,999}b?){99}c$"},
        {"type": "string", "pattern": "(a|b)*a(a|b){18}$"},
        {"type": "array", "items": {"type": "string", "maxLength": 100000}, "minItems": 100000},
        {"enum": [f"value {i}" for i in range(9000)]},
        {"allOf": [{"anyOf": [{"const": i} for i in range(40)]} for _ in range(8)]},
        {"type": "integer", "multipleOf": 9973},
        {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
        {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(400)}},
        {"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(400)]},
        {"anyOf": [{"type": "null"} for _ in range(5000)]},
        {"allOf": [{"$ref": "#"}]},
    ),
    ids=lambda schema: json.dumps(schema)[:50],
)
def test_a_schema_takes_seconds_at_the_most(schema, grammars, tokenizer):
    """Compiling, and fifty tokens: in practice less than half a second."""
    start = time.monotonic()
    if new := compiled(grammars, schema):
        generate(new, tokenizer, 0, 50)
    assert time.monotonic() - start < 5


def test_compiled_grammars_are_kept_up_to_a_number(tokenizer, monkeypatch):
    grammars, compilations = Grammars(tokenizer), []
    compile = grammars._compile
    monkeypatch.setattr(grammars, "_compile", lambda text: compilations.append(text) or compile(text))
    for i in [*range(70), 69, 0]:
        grammars.json_schema({"const": i})
    assert len(compilations) == 71  # 69 was kept, 0 was not


def test_grammars_are_compiled_from_several_threads(tokenizer):
    grammars = Grammars(tokenizer)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: grammars.json_schema({"const": i % 3}), range(24)))
    assert [generate(new, tokenizer, 0) for new in made] == [str(i % 3) for i in range(24)]


# -------------------------------------------------------------------------------- other vocabularies


def with_control(texts: tuple[str, ...], name: str = "sentence pieces") -> Tokenizer:
    """The tokenizer of a SentencePiece vocabulary with more control tokens."""
    found = tokenizer_files.metadata(name)
    key = "tokenizer.ggml."
    found[f"{key}tokens"] = [*found[f"{key}tokens"], *texts]
    for part, value in (("scores", 0), ("token_type", Kind.CONTROL)):
        found[key + part] = np.append(found[key + part], [value] * len(texts)).astype(found[key + part].dtype)
    return gguf_tokenizer(Path("model"), found)


@pytest.mark.parametrize("name", tokenizer_files.SENTENCE_PIECES)
def test_a_table_encodes_exactly_the_bytes(name):
    """Some tokenizers put a space before a text: not here, where the text continues another."""
    table = VocabularyTable(with_control((), name))
    for text in [*tokenizer_files.hard_texts(), "", " ", " a", "a", '{"name": "']:
        assert b"".join(table.tokens[token] for token in table(text)) == text.encode()


@pytest.mark.parametrize("name", tokenizer_files.SENTENCE_PIECES)
def test_json_of_sentence_pieces(name):
    tokenizer = with_control((), name)
    new = Grammars(tokenizer).json_schema(nested(2))
    for seed in range(5):
        text = generate(new, tokenizer, seed)
        assert text is None or not violations(text, nested(2))


@pytest.mark.parametrize("format", (MISTRAL_LIST, MISTRAL_ARGS), ids=lambda format: format.name)
def test_control_tokens_begin_calls_where_a_vocabulary_has_them(format):
    tokenizer = with_control(("[TOOL_CALLS]", "[ARGS]"))
    template = "{{ tools | tojson }}[TOOL_CALLS]" + "[ARGS]" * (format is MISTRAL_ARGS)
    answers = AnswerFormat(tokenizer, ChatTemplate(template, Path("model")))
    tools = [{"type": "function", "function": {"name": "now", "parameters": nested(1)}}]
    question = [{"role": "user", "content": "x"}]
    trigger = tokenizer.id_of("[TOOL_CALLS]")
    for choice in ("auto", "required"):
        plan = answers.plan(question, tools=tools, tool_choice=choice)
        assert trigger in plan.shown_tokens
        first = plan.new_constraint().mask()
        assert first[trigger] and (first.sum() == 1) == (choice == "required")
        before = "See: " if choice == "auto" else ""
        text = before + format.write([("now", '{"a": "b"}'), ("now", '{"a": ""}')])
        assert allowed(plan.new_constraint, tokenizer, text, special=True) is None
        assert (
            allowed(plan.new_constraint, tokenizer, before + format.write([("now", "{}")]), True) is not None
        )
