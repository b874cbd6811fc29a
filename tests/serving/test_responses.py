"""/v1/responses through OpenAI's own client, which checks answers and events against its types."""

import openai
import pytest
import serving

ASK = {"model": serving.NAME, "input": "Hello there", "temperature": 0}


def test_a_response_is_the_text_of_the_engine(server, alone):
    with server.client() as client:
        answer = client.responses.create(**ASK, max_output_tokens=8, instructions="Be short.")
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello there"}]
    assert answer.output_text == alone.chat(messages, 8)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 8
    assert answer.usage.input_tokens == alone.statistics.prompt_tokens


def test_a_text_that_ends_is_complete(server, alone):
    end = alone.tokenizer.encode("<|endoftext|>")[0]
    with server.client() as client:
        answer = client.responses.create(**ASK, extra_body={"logit_bias": {str(end): 100}})
    assert answer.status == "completed" and answer.output_text == ""
    assert [item.type for item in answer.output] == ["message"]


def test_events_come_in_order_and_add_up(server):
    with server.client() as client:
        whole = client.responses.create(**ASK, max_output_tokens=8)
        events = list(client.responses.create(**ASK, max_output_tokens=8, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage == whole.usage


def test_the_clients_own_accumulation_agrees(server):
    with server.client() as client:
        whole = client.responses.create(**ASK, max_output_tokens=8)
        with client.responses.stream(**ASK, max_output_tokens=8) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text


def test_a_conversation_is_a_list_of_items(server, alone):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Me."}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"role": "user", "content": "Why?"},
    ]
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Me."},
        {"role": "user", "content": "Why?"},
    ]
    with server.client() as client:
        answer = client.responses.create(**{**ASK, "input": items}, max_output_tokens=6)
    assert answer.output_text == alone.chat(messages, 6)


def test_log_probabilities_are_included_if_they_are_wanted(server):
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    with server.client() as client:
        answer = client.responses.create(**ASK, max_output_tokens=4, **wanted)
        plain = client.responses.create(**ASK, max_output_tokens=4)
    assert [len(each.top_logprobs) for each in answer.output[0].content[0].logprobs] == [2] * 4
    assert plain.output[0].content[0].logprobs == []


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_is_not_supported_is_refused(server, asked, param):
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{**ASK, **asked})
    assert caught.value.param == param
