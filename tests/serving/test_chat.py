"""/v1/chat/completions through OpenAI's own client, which checks the answers against its types."""

import json

import httpx
import numpy as np
import openai
import pytest
import serving

ASK = {"model": serving.NAME, "messages": [{"role": "user", "content": "Hello there"}], "temperature": 0}


def stream_of(server, **asked):
    with server.client() as client:
        return list(client.chat.completions.create(**{**ASK, "stream": True, **asked}))


def text_of(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_an_answer_is_the_text_of_the_engine(server, alone):
    with server.client() as client:
        answer = client.chat.completions.create(**ASK, max_completion_tokens=12)
    assert answer.choices[0].message.content == alone.chat(ASK["messages"], 12)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == alone.statistics.prompt_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


@pytest.mark.parametrize(
    "asked",
    [
        {"max_tokens": 20},
        {"max_tokens": 20, "temperature": 1.1, "seed": 7},
        {"max_tokens": 20, "temperature": 1.1, "seed": -7, "top_p": 0.9, "n": 3},
        {"max_tokens": 20, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"max_tokens": 20, "temperature": 1, "seed": 1, "extra_body": {"top_k": 5, "min_p": 0.01}},
        {"max_tokens": 20, "logprobs": True, "top_logprobs": 3},
    ],
)
def test_a_stream_adds_up_to_the_whole_answer(server, asked):
    with server.client() as client:
        whole = client.chat.completions.create(**{**ASK, **asked})
    chunks = stream_of(server, **asked)
    for choice in whole.choices:
        assert text_of(chunks, choice.index) == choice.message.content
        of_choice = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert [each.finish_reason for each in of_choice if each.finish_reason] == [choice.finish_reason]
        assert of_choice[0].delta.role == "assistant"
        if choice.logprobs:
            streamed = [one for each in of_choice if each.logprobs for one in each.logprobs.content]
            assert streamed == choice.logprobs.content


def test_choices_of_a_seed_differ_and_the_first_is_that_of_one_choice(server):
    asked = {**ASK, "temperature": 1.2, "seed": 3, "max_tokens": 12}
    with server.client() as client:
        one = client.chat.completions.create(**asked)
        several = client.chat.completions.create(**asked, n=4)
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] == one.choices[0].message.content
    assert len(set(texts)) == 4
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.usage.prompt_tokens == one.usage.prompt_tokens
    assert several.usage.completion_tokens == 48


def test_a_stop_text_ends_the_answer_before_it(server, alone):
    text = alone.chat(ASK["messages"], 30)
    stop = text[8:11]
    with server.client() as client:
        answer = client.chat.completions.create(**ASK, max_tokens=30, stop=[stop, "never said"])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert text_of(stream_of(server, max_tokens=30, stop=stop)) == text[: text.index(stop)]


def test_a_bias_forces_a_token(server, alone):
    token = alone.tokenizer.encode("Z")[0]
    with server.client() as client:
        answer = client.chat.completions.create(**ASK, max_tokens=5, logit_bias={str(token): 100})
    assert answer.choices[0].message.content == "ZZZZZ"


def test_log_probabilities_are_those_of_the_logits(server, alone):
    with server.client() as client:
        answer = client.chat.completions.create(**ASK, max_tokens=3, logprobs=True, top_logprobs=5)
    tokens = alone.tokenizer.encode(alone.chat_template.render(ASK["messages"]), add_bos=False)
    for found in answer.choices[0].logprobs.content:
        logits = alone.forward(tokens).astype("float64")
        exact = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        best = exact.argsort()[::-1][:5]
        assert [each.logprob for each in found.top_logprobs] == pytest.approx(
            sorted(exact)[::-1][:5], abs=1e-3
        )
        assert [bytes(each.bytes) for each in found.top_logprobs] == [
            alone.tokenizer.piece(token, special=True) for token in best
        ]
        tokens.append(int(best[0]))
        assert bytes(found.bytes) == alone.tokenizer.piece(tokens[-1])


def test_the_usage_comes_last_if_it_is_asked_for(server):
    chunks = stream_of(server, max_tokens=5, stream_options={"include_usage": True})
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in stream_of(server, max_tokens=5))
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_ends_with_done_and_every_line_is_an_event(server):
    with server.http() as client:
        answer = client.post("/v1/chat/completions", json={**ASK, "stream": True, "max_tokens": 3})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in (each for each in events[:-2] if not each.startswith(":")):
        assert json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk"


def test_timings_and_tokens_come_if_they_are_wanted(server, alone):
    with server.client() as client:
        answer = client.chat.completions.create(**ASK, max_tokens=4, extra_body={"return_token_ids": True})
        plain = client.chat.completions.create(**ASK, max_tokens=4, extra_body={"timings": False})
    found = answer.model_dump()
    assert found["timings"]["predicted_n"] == 4 and found["timings"]["predicted_per_second"] > 0
    assert alone.tokenizer.decode(found["choices"][0]["token_ids"]) == answer.choices[0].message.content
    text = alone.tokenizer.decode(found["prompt_token_ids"], special=True)
    assert text == alone.chat_template.render(ASK["messages"])
    assert "timings" not in plain.model_dump()


def test_a_prompt_that_comes_again_is_not_computed_again(server):
    long = [{"role": "user", "content": "What did the fox say to the other animals? " * 20}]
    with server.client() as client:
        client.chat.completions.create(**{**ASK, "messages": long}, max_tokens=1)
        again = client.chat.completions.create(**{**ASK, "messages": long}, max_tokens=1)
        other = client.chat.completions.create(
            **{**ASK, "messages": long}, max_tokens=1, extra_body={"cache_salt": "another"}
        )
    assert again.usage.prompt_tokens_details.cached_tokens > 0.8 * again.usage.prompt_tokens
    assert other.usage.prompt_tokens_details.cached_tokens == 0
    assert again.choices == other.choices


def test_ignore_eos_and_min_tokens_go_past_the_end(server, alone):
    end = alone.tokenizer.encode("<|endoftext|>")[0]
    asked = {**ASK, "max_tokens": 6, "logit_bias": {str(end): 100}}
    with server.client() as client:
        ended = client.chat.completions.create(**asked)
        later = client.chat.completions.create(**asked, extra_body={"min_tokens": 3})
        never = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    assert [each.usage.completion_tokens for each in (ended, later, never)] == [1, 4, 6]
    assert [each.choices[0].finish_reason for each in (ended, later, never)] == ["stop", "stop", "length"]


def test_the_final_message_is_continued(server, alone):
    messages = [*ASK["messages"], {"role": "assistant", "content": "Well, it"}]
    with server.client() as client:
        answer = client.chat.completions.create(
            **{**ASK, "messages": messages},
            max_tokens=8,
            extra_body={"continue_final_message": True, "return_token_ids": True},
        )
    prompt = alone.tokenizer.decode(answer.model_dump()["prompt_token_ids"], special=True)
    assert prompt.endswith("<|im_start|>assistant\nWell, it")
    assert answer.choices[0].message.content == alone.generate(prompt, 8)


def test_a_template_gets_its_variables_and_parts_and_developers(server):
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    ]
    asked = {**ASK, "messages": messages, "max_tokens": 1}
    with server.client() as client:
        answer = client.chat.completions.create(
            **asked, extra_body={"return_token_ids": True, "chat_template_kwargs": {"enable_thinking": False}}
        )
    prompt = server.engine.tokenizer.decode(answer.model_dump()["prompt_token_ids"], special=True)
    assert "<|im_start|>system\nBe short." in prompt
    assert "one\ntwo" in prompt


def test_fields_that_change_nothing_are_accepted(server):
    with server.client() as client:
        client.chat.completions.create(
            **ASK,
            max_tokens=1,
            user="me",
            metadata={"a": "b"},
            store=True,
            service_tier="auto",
            stop=None,
            logit_bias=None,
            parallel_tool_calls=True,
            extra_body={"top_k": -1, "cache_prompt": True},
        )


def refused(server, **asked):
    with server.client() as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{**ASK, "max_tokens": 1, **asked})
    return caught.value


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ({"temperature": 3}, "temperature", "<= 2"),
        ({"temperature": "hot"}, "temperature", "float"),
        ({"n": 0}, "n", ">= 1"),
        ({"n": 99}, "n", "<= 16"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"messages": []}, "messages", ">= 1"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "king"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "Missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "text",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
                        ],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
            "JSON object",
        ),
        ({"stop": ["a", ""]}, "stop[1]", ">= 1"),
        ({"stop": ["a"] * 17}, "stop", "<= 16"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "token"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]", "100"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"seed": 2**64}, "seed", ""),
        ({"extra_body": {"colour": "red"}}, "colour", "Unrecognized request argument supplied: colour"),
        ({"extra_body": {"modalities": ["audio"]}}, "modalities", "not supported"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs", "messages"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "name"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(server, asked, param, says):
    error = refused(server, **asked)
    assert error.status_code == 400
    assert error.body["param"] == param
    assert error.body["type"] == "invalid_request_error"
    assert says in error.body["message"]


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(server):
    error = refused(server, messages=[{"role": "user", "content": "x" * serving.CONTEXT}])
    assert isinstance(error, openai.BadRequestError)
    assert error.code == "context_length_exceeded"
    assert error.param == "messages"
    prompt = server.engine.tokenizer.encode(
        server.engine.chat_template.render([{"role": "user", "content": "x" * serving.CONTEXT}])
    )
    assert str(serving.CONTEXT) in error.body["message"] and str(len(prompt)) in error.body["message"]


def test_a_model_that_is_not_served_is_not_found(server):
    error = refused(server, model="gpt-99")
    assert isinstance(error, openai.NotFoundError)
    assert error.code == "model_not_found" and "gpt-99" in error.body["message"]


def test_an_answer_that_fills_the_context_says_length(server):
    prompt = "x" * (serving.CONTEXT - 60)
    with server.client() as client:
        answer = client.chat.completions.create(
            **{**ASK, "messages": [{"role": "user", "content": prompt}]}, extra_body={"ignore_eos": True}
        )
    assert answer.choices[0].finish_reason == "length"
    # the last token needs no place: nothing follows it
    assert answer.usage.total_tokens == serving.CONTEXT + 1


def test_a_body_of_another_type_is_refused(server):
    with server.http() as client:
        answer = client.post(
            "/v1/chat/completions", content=json.dumps(ASK), headers={"content-type": "text/plain"}
        )
    assert answer.status_code == 415
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_client_sees_nothing_but_openai_shapes(server):
    with server.http() as client:
        for answer in (client.get("/nothing"), client.get("/v1/chat/completions"), client.post("/health")):
            assert isinstance(answer, httpx.Response)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert answer.status_code in (404, 405)
