"""/v1/completions, /tokenize, /detokenize and the state of a server."""

import numpy as np
import openai
import pytest
import serving

ASK = {"model": serving.NAME, "prompt": "Hello there, said the", "temperature": 0}
# OpenAI's server sends null as the reason of a chunk that is not the last one, and as the log probability of
# a first token. The types of its client do not know that.
LENIENT = {"_strict_response_validation": False}


def exact_logprobs(alone, tokens):
    """Natural logarithms of the probabilities after each token, in float64."""
    logits = alone.forward(tokens, all_positions=True).astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_a_completion_is_the_text_of_the_engine(server, alone):
    with server.client() as client:
        answer = client.completions.create(**ASK)
    assert answer.choices[0].text == alone.generate(ASK["prompt"], 16)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 16  # OpenAI's default


def test_prompts_are_texts_or_tokens_or_lists_of_them(server, alone):
    texts = ["One", "Two apples", "Three red apples"]
    tokens = [alone.tokenizer.encode(text) for text in texts]
    expected = [alone.generate(text, 6) for text in texts]
    with server.client() as client:
        for prompt in (texts, tokens):
            answer = client.completions.create(**{**ASK, "prompt": prompt}, max_tokens=6)
            assert [choice.text for choice in answer.choices] == expected
            assert answer.usage.prompt_tokens == sum(map(len, tokens))
        one = client.completions.create(**{**ASK, "prompt": tokens[2]}, max_tokens=6)
        assert one.choices[0].text == expected[2]
        two = client.completions.create(**{**ASK, "prompt": texts[:2]}, max_tokens=6, n=2)
        assert [choice.text for choice in two.choices] == [expected[0], expected[0], expected[1], expected[1]]
        assert two.usage.prompt_tokens == sum(map(len, tokens[:2]))
        assert two.usage.completion_tokens == 24


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_echo_scores_the_prompt(server, alone, max_tokens):
    """What lm-eval's local-completions asks for."""
    tokens = alone.tokenizer.encode(ASK["prompt"])
    with server.client(**LENIENT) as client:
        answer = client.completions.create(
            **{**ASK, "prompt": tokens}, max_tokens=max_tokens, echo=True, logprobs=2
        )
    choice = answer.choices[0]
    found = choice.logprobs
    assert choice.text.startswith(ASK["prompt"])
    assert "".join(found.tokens[: len(tokens)]) == ASK["prompt"]
    offsets = [len("".join(found.tokens[:i])) for i in range(len(tokens) + 1)]
    assert found.text_offset[: len(tokens) + 1] == offsets[: len(found.tokens)]
    assert len(found.tokens) == len(tokens) + max_tokens
    assert answer.usage.completion_tokens == max_tokens
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    exact = exact_logprobs(alone, tokens)
    for i, token in enumerate(tokens[1:], 1):
        assert found.token_logprobs[i] == pytest.approx(exact[i - 1, token], abs=2e-3)
        best = sorted(exact[i - 1])[::-1][:2]
        assert sorted(found.top_logprobs[i].values())[::-1][:2] == pytest.approx(best, abs=2e-3)
        assert len(found.top_logprobs[i]) <= 3 and found.tokens[i] in found.top_logprobs[i]


@pytest.mark.parametrize(
    "asked", [{}, {"echo": True}, {"echo": True, "logprobs": 1}, {"n": 2, "temperature": 1, "seed": 5}]
)
def test_a_stream_adds_up_to_the_whole_completion(server, asked):
    with server.client(**LENIENT) as client:
        whole = client.completions.create(**{**ASK, **asked}, max_tokens=9)
        options = {"include_usage": True}
        chunks = list(
            client.completions.create(**{**ASK, **asked}, max_tokens=9, stream=True, stream_options=options)
        )
    assert chunks[-1].usage == whole.usage or asked.get("n")
    for choice in whole.choices:
        parts = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[-1].finish_reason == choice.finish_reason
        if choice.logprobs:
            for name in ("tokens", "token_logprobs", "text_offset"):
                streamed = [one for part in parts if part.logprobs for one in getattr(part.logprobs, name)]
                assert streamed == getattr(choice.logprobs, name)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt[1]"),
        ({"prompt": [[1], [2, 999999]]}, "prompt[1][1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": "x" * (serving.CONTEXT + 1)}, "prompt"),
        ({"prompt": [65] * (serving.CONTEXT + 1)}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(server, asked, param):
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{**ASK, **asked})
    assert caught.value.param == param


def test_tokens_are_those_of_the_tokenizer(server, alone):
    text = "<|im_start|>the thin man, é"
    with server.http() as client:
        for name in ("prompt", "content"):
            found = client.post("/tokenize", json={name: text}).json()
            assert found["tokens"] == alone.tokenizer.encode(text)
            assert found["count"] == len(found["tokens"])
            assert found["max_model_len"] == serving.CONTEXT
        plain = client.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
        assert plain == alone.tokenizer.encode(text, special=False)
        back = client.post("/detokenize", json={"tokens": found["tokens"]}).json()
        assert back == {"prompt": text, "content": text}
        messages = [{"role": "user", "content": "Hi"}]
        chat = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
        assert alone.tokenizer.decode(chat, special=True) == alone.chat_template.render(messages)
        pieces = client.post("/tokenize", json={"content": "é", "with_pieces": True}).json()["tokens"]
        assert [piece["piece"] for piece in pieces] == [[0xC3], [0xA9]]
        long = client.post("/tokenize", json={"prompt": "x" * 5000}).json()
        assert long["count"] == 5000  # more than the context has room for


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "content": "b"}, {"prompt": 3}, {"tokens": [10**9]}])
def test_wrong_tokens_are_refused(server, body):
    with server.http() as client:
        answer = client.post("/detokenize" if "tokens" in body else "/tokenize", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_the_model_is_listed(server):
    with server.client() as client:
        assert [each.id for each in client.models.list()] == [serving.NAME]
        assert client.models.retrieve(serving.NAME).id == serving.NAME
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


def test_a_model_without_embeddings_says_so(server):
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=serving.NAME, input="text")
    assert caught.value.code == "model_has_no_embeddings"


def test_health_and_metrics(server):
    server.wait_until_idle()
    with server.http() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json() == {"status": "ready", "running": 0, "waiting": 0}
        before = samples(client.get("/metrics").text)
        tokens = client.post("/v1/completions", json={**ASK, "max_tokens": 7}).json()["usage"]
        client.post("/v1/completions", json={"nonsense": 1})
        client.get("/some/address/of/a/client")
        server.wait_until_idle()
        after = samples(client.get("/metrics").text)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    assert grown["airllm_generated_tokens_total"] == 7
    assert grown["airllm_prompt_tokens_total"] == tokens["prompt_tokens"]
    assert grown["airllm_between_tokens_seconds_count"] == 6
    assert grown["airllm_first_token_seconds_count"] == 1
    assert grown['airllm_sequences_total{reason="length"}'] == 1
    assert grown['airllm_requests_total{endpoint="/v1/completions",status="200"}'] == 1
    assert grown['airllm_requests_total{endpoint="/v1/completions",status="400"}'] == 1
    assert not any("address" in name for name in after)


def samples(text):
    """The values of a page of metrics, read by Prometheus' own parser."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found
