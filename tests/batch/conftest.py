"""A tiny model, and a file of requests that it can answer."""

import json

import pytest
import serving


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return serving.write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def requests(tmp_path_factory):
    """Greedy and seeded chats, texts and responses of unequal length; one is refused by its body."""
    lines = []
    for i in range(48):
        sampling = {"temperature": 0} if i % 2 else {"temperature": 1, "seed": i}
        length, text = 10 + 7 * (i % 9), "Hello " * (i % 5) + str(i)
        url, body = (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": length}),
            ("/v1/completions", {"prompt": [text, "x"], "max_tokens": length, "logprobs": 1}),
            ("/v1/responses", {"input": text, "max_output_tokens": length}),
        )[i % 3]
        body = {"model": "tiny", **body, **sampling}
        lines.append({"custom_id": f"request-{i}", "method": "POST", "url": url, "body": body})
    lines[3]["body"]["temperature"] = 9
    path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
