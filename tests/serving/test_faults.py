"""Clients that leave, read slowly, send nonsense or too much; requests that fail; a server that ends."""

import json
import socket
import threading
import time

import openai
import pytest
import serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airllm.engine.scheduling.requests import Limits
from airllm.serving import chat_plan

MESSAGES = [{"role": "user", "content": "Hello there"}]
LONG = {"model": serving.NAME, "messages": MESSAGES, "max_tokens": 1900, "temperature": 0}
SHORT = {**LONG, "max_tokens": 4}


@pytest.fixture
def paced(model):
    """A server of few places whose steps take 5 ms."""
    limits = Limits(max_running=2, max_waiting=2)
    with serving.serve(model, limits, write_timeout=0.5, body_bytes=100_000, read_timeout=0.5) as server:
        server.scheduler.pause = 0.005
        yield server


def wait_for(what, seconds=5):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def send(server, body, method="/v1/chat/completions", receive_bytes=0):
    """A socket on which a request was sent, and nothing was read."""
    host, port = server.address.removeprefix("http://").split(":")
    sent = socket.socket()
    if receive_bytes:
        sent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sent.settimeout(10)
    sent.connect((host, int(port)))
    content = json.dumps(body).encode()
    head = f"POST {method} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return sent


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place_within_a_step(paced, stream):
    sent = send(paced, {**LONG, "stream": stream})
    wait_for(lambda: paced.service.thread.load.running == 1)
    time.sleep(0.05)
    before = paced.service.thread.load.counters.decode_passes
    sent.close()
    paced.wait_until_idle(2)
    # a pass was running, and the event loop may have been late by some
    assert paced.service.thread.load.counters.decode_passes - before <= 20
    assert paced.service.thread.load.counters.ended["cancelled"] == 1


def test_a_client_that_leaves_the_queue_frees_its_place(paced):
    running = [send(paced, LONG) for _ in range(2)]
    wait_for(lambda: paced.service.thread.load.running == 2)
    waiting = send(paced, LONG)
    wait_for(lambda: paced.service.thread.load.waiting == 1)
    waiting.close()
    wait_for(lambda: paced.service.thread.load.waiting == 0)
    for each in running:
        each.close()
    paced.wait_until_idle()


def test_a_full_queue_says_so_at_once_and_takes_requests_again(paced):
    sockets = [send(paced, {**LONG, "stream": True}) for _ in range(4)]
    wait_for(lambda: paced.service.thread.load.waiting == 2)
    with paced.client() as client, pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**SHORT)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.code == "queue_full"
    with paced.client() as client, pytest.raises(openai.RateLimitError):
        client.chat.completions.create(**SHORT, n=2)
    for each in sockets:
        each.close()
    paced.wait_until_idle()
    with paced.client() as client:
        assert client.chat.completions.create(**SHORT, n=4).usage.completion_tokens == 16


def test_more_choices_than_places_are_refused(paced):
    with paced.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**SHORT, n=5)
    assert caught.value.param == "n"
    paced.wait_until_idle()


def test_a_deadline_ends_a_request_that_runs_and_one_that_waits(model):
    limits = Limits(max_running=1, max_waiting=2)
    with serving.serve(model, limits, request_timeout=0.3) as server:
        server.scheduler.pause = 0.01
        with server.client() as client:
            stream = client.chat.completions.create(**LONG, stream=True)
            start = time.monotonic()
            with pytest.raises(openai.APIStatusError) as waiting:
                client.chat.completions.create(**LONG)
            with pytest.raises(openai.APIError) as running:
                list(stream)
        assert 0.2 < time.monotonic() - start < 2
        assert waiting.value.status_code == 504
        assert waiting.value.response.headers["x-should-retry"] == "false"
        assert waiting.value.code == running.value.code == "deadline_exceeded"
        server.wait_until_idle()


def test_a_stream_that_waits_is_kept_open_by_comments(paced):
    paced.scheduler.pause = 0.5
    with paced.http() as client:
        answer = client.post("/v1/chat/completions", json={**SHORT, "max_tokens": 2, "stream": True})
    lines = answer.text.split("\n\n")
    assert lines.count(": ping") >= 2
    assert lines[-2] == "data: [DONE]"


def test_a_slow_reader_is_left_and_holds_nobody_up(paced):
    """The sockets take a part of eight megabytes; the rest waits in the server, for half a second."""
    sent = send(
        paced, {**LONG, "stream": True, "logprobs": True, "top_logprobs": 20, "n": 2}, receive_bytes=4096
    )
    paced.scheduler.pause = 0
    start = time.monotonic()
    with paced.client() as client:
        assert client.chat.completions.create(**SHORT).usage.completion_tokens == 4
    assert time.monotonic() - start < 10  # it waits for two texts of 1900 tokens, and not for their reader
    paced.wait_until_idle(15)
    time.sleep(1)
    received = 0
    sent.settimeout(5)
    try:
        while part := sent.recv(1 << 16):
            received += len(part)
            assert b"[DONE]" not in part, "the socket took all of the answer: the test shows nothing"
    except ConnectionResetError:
        pass
    assert received > 0
    wait_for(lambda: not paced.service.thread._streams)


def test_a_reader_that_pauses_gets_the_whole_text(paced):
    with paced.client() as client:
        whole = client.chat.completions.create(**{**LONG, "max_tokens": 60})
        text = ""
        for chunk in client.chat.completions.create(**{**LONG, "max_tokens": 60}, stream=True):
            time.sleep(0.02)
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == whole.choices[0].message.content


class Broken:
    """A constraint with a defect that shows after some tokens."""

    finished = False

    def __init__(self):
        self.left = 3

    def mask(self):
        if not self.left:
            raise RuntimeError("the grammar lost its way")
        self.left -= 1

    def accept(self, token):
        pass


def test_a_defect_in_one_request_ends_that_request_only(paced, monkeypatch):
    original = chat_plan.ends_later
    monkeypatch.setattr(
        chat_plan,
        "ends_later",
        lambda asked, *rest: Broken() if asked.user == "x" else original(asked, *rest),
    )
    asked = {**LONG, "max_tokens": 40}
    with paced.client() as client:
        alone = client.chat.completions.create(**asked)
        neighbour = client.chat.completions.create(**asked, stream=True)
        with pytest.raises(openai.InternalServerError, match="lost its way"):
            client.chat.completions.create(**asked, user="x")
        with pytest.raises(openai.APIError, match="lost its way"):
            list(client.chat.completions.create(**asked, user="x", stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in neighbour if chunk.choices)
    assert text == alone.choices[0].message.content
    paced.wait_until_idle()


def test_a_template_that_refuses_a_conversation_is_the_clients_error(server):
    with server.http() as client:
        deep = {"x": {}}
        for _ in range(200):
            deep = {"x": deep}
        for messages in (
            [{"role": "user", "content": "x", "deep": deep}],
            [{"role": "user", "content": "\ud800"}],
        ):
            body = json.dumps({"messages": messages, "max_tokens": 1})
            answer = client.post(
                "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
            )
            assert answer.status_code in (200, 400)


def test_a_step_that_fails_ends_its_requests_and_not_the_server(paced, monkeypatch, caplog):
    def fail():
        raise RuntimeError("a defect of the scheduler")

    with paced.client() as client:
        stream = client.chat.completions.create(**LONG, stream=True)
        next(iter(stream))
        monkeypatch.setattr(paced.scheduler, "_decode", fail)
        with pytest.raises(openai.APIError, match="a defect of the scheduler"):
            list(stream)
        monkeypatch.undo()
        paced.wait_until_idle()
        assert client.chat.completions.create(**SHORT).usage.completion_tokens == 4
    assert "a step of the engine failed" in caplog.text


def test_health_fails_while_a_step_takes_too_long(model):
    with serving.serve(model, stuck_after=0.2) as server, server.http() as client:
        assert client.get("/health").status_code == 200
        server.scheduler.pause = 0.6
        thread = threading.Thread(
            target=client.post, args=("/v1/completions",), kwargs={"json": {"prompt": "x"}}
        )
        thread.start()
        with server.http() as other:
            wait_for(lambda: other.get("/health").status_code == 503)
            server.scheduler.pause = 0
            thread.join()
            assert other.get("/health").status_code == 200


def test_sizes_are_limited(paced):
    with paced.http() as client:
        large = client.post("/tokenize", json={"prompt": "x" * 200_000})
        assert large.status_code == 413 and large.json()["error"]["code"] == "body_too_large"
        headers = {"content-type": "application/json"}
        deep = client.post("/tokenize", content=b'{"prompt":' + b"[" * 90_000, headers=headers)
        assert deep.status_code == 400
        chunked = client.post("/tokenize", content=(b"x" * 1000 for _ in range(200)), headers=headers)
        assert chunked.status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for(paced):
    host, port = paced.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as sent:
        sent.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert sent.recv(1000).startswith(b"HTTP/1.1 408")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = {
    "/v1/chat/completions": chat_plan.ChatRequest.__struct_fields__,
    "/v1/completions": ("prompt", "n", "echo", "logprobs", "stop", "max_tokens", "stream", "seed", "best_of"),
    "/v1/responses": (
        "input",
        "instructions",
        "text",
        "tools",
        "include",
        "reasoning",
        "stream",
        "top_logprobs",
    ),
    "/v1/embeddings": ("input", "dimensions", "truncate", "truncate_prompt_tokens"),
    "/tokenize": ("prompt", "messages", "content", "tools", "with_pieces"),
    "/detokenize": ("tokens",),
}
VALID = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}


@st.composite
def malformed(draw):
    """A path, and a body that is valid but for some fields."""
    path = draw(st.sampled_from(sorted(FIELDS)))
    wrong = draw(st.dictionaries(st.sampled_from(FIELDS[path]), JSON, min_size=1, max_size=3))
    return path, {**VALID[path], **wrong}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(malformed())
def test_no_body_is_answered_with_a_failure_of_the_server(server, asked):
    path, body = asked
    with server.http() as client:
        answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
    assert '"code":"internal_error"' not in answer.text


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(FIELDS)), st.binary(max_size=60))
def test_bytes_that_are_no_json_are_refused(server, path, body):
    with server.http() as client:
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
