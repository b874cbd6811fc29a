"""Schemas and tools: what is promised holds, streamed and whole; what cannot be is refused."""

import json
import re

import jsonschema
import openai
import pytest
import serving

MESSAGES = [{"role": "user", "content": "Tell me something"}]
ASK = {"model": serving.NAME, "messages": MESSAGES, "temperature": 1, "seed": 5, "max_tokens": 300}
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": None, "parameters": SCHEMA},
}


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": FORMAT},
        {"extra_body": {"json_schema": SCHEMA}},
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
    ],
)
def test_an_answer_follows_its_schema_however_it_is_asked_for(server, asked):
    with server.client() as client:
        answer = client.chat.completions.create(**ASK, n=3, **asked)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_a_completion_follows_its_schema(server):
    with server.client() as client:
        answer = client.completions.create(
            model=serving.NAME, prompt="A pet: ", max_tokens=300, extra_body={"response_format": FORMAT}
        )
    jsonschema.validate(json.loads(answer.choices[0].text), SCHEMA)


def test_a_response_follows_its_schema(server):
    format = {"type": "json_schema", "name": "pet", "schema": SCHEMA, "strict": True}
    with server.client() as client:
        answer = client.responses.create(model=serving.NAME, input="A pet", text={"format": format})
    jsonschema.validate(json.loads(answer.output_text), SCHEMA)


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [({"regex": "[ab]{3}-[0-9]"}, r"[ab]{3}-[0-9]"), ({"choice": ["yes", "no"]}, "yes|no")],
)
def test_an_answer_follows_an_expression_or_a_choice(server, wanted, pattern):
    asked = {**ASK, "extra_body": {"structured_outputs": wanted}}
    with server.client() as client:
        text = client.chat.completions.create(**asked).choices[0].message.content
    assert re.fullmatch(pattern, text)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_tool_is_called_with_arguments_of_its_schema_streamed_and_whole(server, choice):
    asked = {**ASK, "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    with server.client() as client:
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.choices[0].message.content is None
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "look_up" and call.type == "function" and call.id
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [each.function.name for each in deltas if each.function.name] == ["look_up"]
    assert {each.index for each in deltas} == {0} and deltas[0].id
    streamed = "".join(each.function.arguments or "" for each in deltas)
    assert streamed == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_response_calls_a_tool(server):
    tool = {"type": "function", "name": "look_up", "description": "x", "parameters": SCHEMA, "strict": True}
    asked = {"model": serving.NAME, "input": "A pet", "tools": [tool], "tool_choice": "required"}
    asked |= {"parallel_tool_calls": False, "extra_body": {"seed": 5}}
    with server.client() as client:
        whole = client.responses.create(**asked)
        events = list(client.responses.create(**asked, stream=True))
    (call,) = whole.output
    assert call.type == "function_call" and call.name == "look_up"
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    done = [each for each in events if each.type == "response.function_call_arguments.done"]
    assert [each.arguments for each in done] == [call.arguments]
    items = [
        {"role": "user", "content": "A pet"},
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "found"},
    ]
    with server.client() as client:
        assert client.responses.create(model=serving.NAME, input=items, max_output_tokens=3).output_text


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        ({"extra_body": {"grammar": "root ::= 'x'"}}, "grammar"),
        ({"extra_body": {"structured_outputs": {"grammar": "x"}}}, "structured_outputs.grammar"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs.regex"),
        ({"extra_body": {"json_schema": {}, "structured_outputs": {"json": {}}}}, "json_schema"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, None),
        ({"tools": [TOOL] * 129}, "tools"),
    ],
)
def test_what_cannot_be_enforced_is_refused(server, asked, param):
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK, **asked)
    assert param is None or caught.value.param == param


def test_an_answer_that_is_cut_says_so(server):
    with server.client() as client:
        answer = client.chat.completions.create(**{**ASK, "max_tokens": 3}, response_format=FORMAT)
    assert answer.choices[0].finish_reason == "length"
