"""Answers: thoughts, text and tool calls, whole and in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airllm.text.answers import AnswerReader
from airllm.text.reasoning import ReasoningReader, ReasoningTags
from airllm.text.tools.formats import (
    COHERE,
    DEEPSEEK,
    DEEPSEEK_FENCED,
    HERMES,
    HUNYUAN,
    KIMI,
    LLAMA,
    MISTRAL_ARGS,
    MISTRAL_LIST,
    NEMOTRON,
)
from airllm.text.tools.reader import ToolCallReader
from tests.support.answers import FORMATS, cuts, read_in_pieces

THINK = ReasoningTags("<think>", "</think>")
ARGUMENTS = ('{"city": "Rome"}', "{}", '{"a": {"b": "}\\"]{"}, "c": "\\\\"}', '{"x": "</tool_call>"}')


# ------------------------------------------------------------------------------------------------ calls


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_calls_that_a_format_writes_are_read(format):
    calls = [("weather", ARGUMENTS[0]), ("f_2-x", ARGUMENTS[2]), ("now", "{}")]
    calls = calls if format.between is not None else calls[1:2]
    before = "Let me see.\n\n" if format.trigger else ""
    reader = AnswerReader(None, ToolCallReader(format))
    found = read_in_pieces(reader, [before + format.write(calls) + "\n"])
    assert found == (before.strip(), "", calls)


@pytest.mark.parametrize(
    ("format", "text"),
    (
        (HERMES, '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'),
        (HERMES, '<tool_call>\n\n{ "name" : "f", "arguments" :\n{"a":1} }\n</tool_call>\n\n'),
        (MISTRAL_LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {"a":1}, "id": "abc123def"}]'),
        (MISTRAL_ARGS, '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a":1}'),
        (HUNYUAN, '<tool_calls>\n[{"name":"f","arguments":{"a":1}}]\n</tool_calls>'),
        (NEMOTRON, '<TOOLCALL>[ {"name": "f", "arguments": {"a":1}}\n]</TOOLCALL>\n'),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"a":1}}'),
        (LLAMA, '\n{"name": "f", "arguments": {"a":1}}'),
        (COHERE, '<|START_ACTION|>[{"tool_name":"f","parameters":{"a":1}}]<|END_ACTION|>'),
        (
            COHERE,
            '<|START_ACTION|>[\n    {"tool_call_id": "12", "tool_name": "f", "parameters": {"a":1}}\n]'
            "<|END_ACTION|>",
        ),
        (
            DEEPSEEK,
            '<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>f<｜tool▁sep｜> {"a":1}<｜tool▁call▁end｜>\n'
            "<｜tool▁calls▁end｜>",
        ),
        (
            DEEPSEEK_FENCED,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜> f\n```json\n"
            '{"a":1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ),
        (
            KIMI,
            '<|tool_calls_section_begin|> <|tool_call_begin|> f:12 <|tool_call_argument_begin|>\n{"a":1}\n'
            "<|tool_call_end|>\n<|tool_calls_section_end|>",
        ),
    ),
)
def test_calls_in_other_hands(format, text):
    assert read_in_pieces(AnswerReader(None, ToolCallReader(format)), [text]) == ("", "", [("f", '{"a":1}')])


@pytest.mark.parametrize(
    "text",
    ("<tool_call>\nnothing", "a <tool_call", "<tool_call>",
     '<tool_call>{"name": "f", "arguments": 1}</tool_call>',
     '<tool_call>{"name": "f"', "  white  ", "", "<tool_call>" + "x" * 400, "[TOOL_CALLS]", '{"name": "f"}'),
)  # fmt: skip
def test_what_is_no_call_is_text(text):
    assert read_in_pieces(AnswerReader(None, ToolCallReader(HERMES)), [text]) == (text, "", [])
    assert read_in_pieces(AnswerReader(None, ToolCallReader(LLAMA)), [text]) == (text, "", [])


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_call_that_is_cut_off_keeps_what_it_has(format):
    """From its arguments on it is a call, and its arguments are a beginning of the whole."""
    whole = format.write([("weather", ARGUMENTS[2])])
    for end in range(len(whole)):
        text, _, calls = read_in_pieces(AnswerReader(None, ToolCallReader(format)), [whole[:end]])
        if calls:
            assert text == "" and calls[0][0] == "weather" and ARGUMENTS[2].startswith(calls[0][1])
        else:
            assert text == whole[:end] and end <= whole.index(ARGUMENTS[2])


FRAGMENTS = st.sampled_from([
    "<tool_call>", "\n", " ", "</tool_call>", "<tool_calls>",
    "]</tool_calls>", '{"name": "f", "arguments": ', '{"name": "f", "parameters": ',
    "{", "}", '{"a": "x}"}', '"', "\\", "text", "[TOOL_CALLS]", "[", "]", ", ", "f[ARGS]",
    "<think>", "</think>", "<",
    "<|python_tag|>", "x" * 300, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    '<|START_ACTION|>[{"tool_name": "f", "parameters": ', "}]<|END_ACTION|>", "<|END_ACTION|>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "<|tool_call_end|>",
])  # fmt: skip


@given(
    parts=st.lists(FRAGMENTS, max_size=12),
    places=st.lists(st.integers(0, 3000), max_size=12),
    format=st.sampled_from(FORMATS),
    thinking=st.sampled_from([None, False, True]),
)
def test_pieces_make_no_difference(parts, places, format, thinking):
    text = "".join(parts)

    def read(pieces):
        thoughts = None if thinking is None else ReasoningReader(THINK, thinking)
        return read_in_pieces(AnswerReader(thoughts, ToolCallReader(format)), pieces)

    whole = read([text])
    assert read(cuts(text, places)) == whole
    assert read([*text, ""]) == whole


def test_text_is_passed_on_as_soon_as_it_is_no_call():
    reader = AnswerReader(None, ToolCallReader(HERMES))
    assert [reader.read(piece).text for piece in ("Hi ", "you <b", "> <too", "l> x")] == [
        "Hi",
        " you <b",
        ">",
        " <tool> x",
    ]


def test_arguments_are_passed_on_as_they_come():
    reader = AnswerReader(None, ToolCallReader(HERMES, lambda: "call_1"))
    pieces = ('<tool_call>\n{"name": "f", "arguments": {', '"a": ', "1}", "}\n</tool_call>")
    deltas = [reader.read(piece).calls for piece in pieces]
    assert [[(call.id, call.name, call.arguments) for call in each] for each in deltas] == [
        [("call_1", "f", ""), (None, None, "{")], [(None, None, '"a": ')], [(None, None, "1}")], [],
    ]  # fmt: skip


def test_ids_differ_and_suit_their_templates():
    ids = {format.new_id() for format in FORMATS for _ in range(50)}
    assert len(ids) == 50 * len(FORMATS)
    assert all(len(MISTRAL_LIST.new_id()) == 9 and MISTRAL_LIST.new_id().isalnum() for _ in range(20))


def test_calls_that_say_their_ids_keep_them():
    reader = ToolCallReader(KIMI)
    _, deltas = reader.read(KIMI.write([("f", "{}"), ("g-h", "{}")]), is_last=True)
    assert [each.id for each in deltas if each.id] == ["functions.f:0", "functions.g-h:1"]


# ------------------------------------------------------------------------------------------------ thoughts


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    (
        ("<think>\nhm\n</think>\n\nYes", False, ("Yes", "hm")),
        ("hm\n</think>\n\nYes", True, ("Yes", "hm")),
        ("\n <think>a\n\nb</think> x</think>", False, ("x</think>", "a\n\nb")),
        ("Yes <think>no</think>", False, ("Yes <think>no</think>", "")),
        ("<think>cut off </thi", False, ("", "cut off </thi")),
        ("<thin", False, ("<thin", "")),
        ("  Yes", False, ("  Yes", "")),
        ("<think></think>Yes", False, ("Yes", "")),
    ),
)
def test_thoughts(text, thinking, expected):
    for pieces in ([text], [*text, ""]):
        reader = AnswerReader(ReasoningReader(THINK, thinking))
        assert read_in_pieces(reader, pieces)[:2] == expected
