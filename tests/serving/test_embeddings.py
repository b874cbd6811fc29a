"""POST /v1/embeddings, by OpenAI's client and by hand."""

import base64
import json

import numpy as np
import openai
import pytest

from tests.support.models import encoder_files, speaking_model
from tests.support.servers import serving

MODULES = [
    {"type": f"sentence_transformers.models.{kind}", "path": kind}
    for kind in ("Transformer", "Pooling", "Normalize")
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = speaking_model.write(tmp_path_factory.mktemp("model"))
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "Pooling").mkdir()
    (folder / "Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    with serving.serve(folder) as running:
        yield running


def test_vectors_are_the_engine_s_in_the_order_of_the_texts(server):
    texts = ["a text", "another", "a third one"]
    with server.client() as client:
        found = client.embeddings.create(model=serving.NAME, input=texts, encoding_format="float")
    assert [each.index for each in found.data] == [0, 1, 2]
    wanted = server.engine.embed(texts)
    np.testing.assert_allclose([each.embedding for each in found.data], wanted, atol=1e-7)
    count = sum(len(server.engine.tokens_to_embed(text)) for text in texts)
    assert found.usage.prompt_tokens == found.usage.total_tokens == count
    assert found.model == serving.NAME


def test_base64_tokens_and_fewer_dimensions(server):
    tokens = server.engine.tokens_to_embed("a text")
    ask = {"input": tokens, "encoding_format": "base64", "dimensions": 10}
    with server.http() as client:
        (data,) = client.post("/v1/embeddings", json=ask).json()["data"]
        several = client.post("/v1/embeddings", json={"input": [tokens, tokens[:2]]}).json()["data"]
    vector = np.frombuffer(base64.b64decode(data["embedding"]), "<f4")
    whole = server.engine.embed("a text")
    np.testing.assert_allclose(vector, whole[:10] / np.linalg.norm(whole[:10]), atol=1e-6)
    np.testing.assert_allclose(several[0]["embedding"], whole, atol=1e-7)


@pytest.mark.parametrize(
    ("ask", "param"),
    (
        ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 1.5]}, "input[1]"), ({"input": [1, 10**9]}, "input[1]"),
        ({"input": "a", "dimensions": 65}, "dimensions"), ({"input": "a" * 1000}, "input"),
        ({"input": "a" * 1000, "truncate": False}, "input"),
        ({"input": "a", "truncate": False, "truncate_prompt_tokens": 5}, "truncate"),
        ({"input": "a", "truncate_prompt_tokens": 10**9}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ),
)  # fmt: skip
def test_what_is_refused(server, ask, param):
    with server.http() as client:
        answer = client.post("/v1/embeddings", json=ask)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_text_that_is_too_long_may_be_cut(server):
    text = "the hen sings " * 90
    tokens = server.engine.tokens_to_embed(text)
    asked = {5: {"truncate_prompt_tokens": 5}, True: {"truncate": True}}
    with server.http() as client:
        for truncate, fields in (*asked.items(), (True, {"truncate_prompt_tokens": -1})):
            ask = {"input": [text, tokens, "a"], **fields}
            whole = client.post("/v1/embeddings", json=ask).json()
            found = [each["embedding"] for each in whole["data"]]
            cut = server.engine.tokens_to_embed(text, truncate=truncate)
            np.testing.assert_allclose(found[0], server.engine.embed_tokens([cut])[0], atol=1e-7)
            assert found[1] == found[0] and whole["usage"]["prompt_tokens"] == 2 * len(cut) + 1
            np.testing.assert_allclose(found[2], server.engine.embed("a"), atol=1e-7)


def test_another_model(server):
    with server.client() as client, pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="a")


# ------------------------------------------------------------------------------------------- of an encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = encoder_files.whole_folder("bert", tmp_path_factory.mktemp("models") / "bert")
    prompts = {"prompts": {"query": "q: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with serving.serve(folder) as running:
        yield running


def test_an_encoder_serves_vectors_with_prompts(encoder):
    texts = ["the hen", "a text", "sing", "the hens sing, a text."] * 10
    with encoder.http() as client:
        plain, query = (
            client.post("/v1/embeddings", json={"input": texts, "prompt_name": name}).json()
            for name in (None, "query")
        )
        refused = client.post("/v1/embeddings", json={"input": "a", "prompt_name": "other"})
    for found, name in ((plain, None), (query, "query")):
        wanted = encoder.engine.embed(texts, prompt_name=name)
        np.testing.assert_allclose([each["embedding"] for each in found["data"]], wanted, atol=1e-6)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt_name"


@pytest.mark.parametrize(
    ("path", "ask"),
    (
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("completions", {"prompt": "Hi"}),
        ("responses", {"input": "Hi"}),
    ),
)
def test_an_encoder_does_not_generate(encoder, path, ask):
    with encoder.http() as client:
        answer = client.post(f"/v1/{path}", json=ask | {"model": serving.NAME})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "model_does_not_generate" and "at /v1/embeddings" in error["message"]


def test_an_encoder_is_listed_and_its_tokens_are_told(encoder):
    with encoder.http() as client:
        (model,) = client.get("/v1/models").json()["data"]
        tokens = client.post("/tokenize", json={"content": "the hen"}).json()["tokens"]
        assert client.get("/health").status_code == 200
    assert model["id"] == serving.NAME and model["max_model_len"] == 64
    assert tokens == encoder.engine.tokenizer.encode("the hen")
