"""`airllm serve` as a process: what it prints, and how signals end it."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import checkouts
import httpx
import openai
import pytest
import serving

from airllm.cli import main
from airllm.files.hub import public_name

LONG = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 2000,
    "temperature": 0,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture
def process(model):
    """A server process, its address and an OpenAI client."""
    started = []

    def start(*options, **environment):
        command = [sys.executable, "-m", "airllm", "serve", str(model), "--port", "0", "--model-name", "tiny"]
        paths = os.pathsep.join([str(checkouts.ROOT), str(checkouts.ROOT / "cpp_ext")])
        variables = {**os.environ, "PYTHONPATH": paths, "AIRLLM_NUM_THREADS": "1", **environment}
        started.append(
            subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=variables)
        )
        lines = []
        for line in started[-1].stderr:
            lines.append(line)
            if found := re.search(r"OpenAI's interface: (\S+);", line):
                return started[-1], found[1]
        raise AssertionError(f"the server did not start: {lines}")

    yield start
    for each in started:
        each.kill()
        each.communicate()


def client(address):
    return openai.OpenAI(base_url=address, api_key="k", max_retries=0, timeout=20)


def test_sigterm_finishes_the_answers_that_run(process):
    server, address = process()
    asked = {**LONG, "max_tokens": 400, "stream_options": {"include_usage": True}}
    stream = iter(client(address).chat.completions.create(**asked))
    next(stream)
    server.send_signal(signal.SIGTERM)
    assert list(stream)[-1].usage.completion_tokens == 400
    assert server.wait(10) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(address + "/models")


def test_sigterm_ends_answers_that_take_longer_than_the_limit(process):
    server, address = process("--drain-timeout", "0.2")
    with serving_slowly(address) as stream:
        server.send_signal(signal.SIGTERM)
        start = time.monotonic()
        with pytest.raises(openai.APIError, match="The server ends"):
            list(stream)
        assert server.wait(10) == 0
        assert time.monotonic() - start < 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFO")
def test_sigterm_before_the_model_is_open_ends_the_command(model, tmp_path):
    """By a handler: the first process of a container ignores a signal that it has none for."""
    os.mkfifo(tmp_path / "keys")  # the command waits for somebody who writes the keys
    command = [sys.executable, "-m", "airllm", "serve", str(model), "--port", "0"]
    variables = {**os.environ, "PYTHONPATH": str(checkouts.ROOT)}
    server = subprocess.Popen([*command, "--api-key-file", str(tmp_path / "keys")], env=variables)
    writer = os.open(tmp_path / "keys", os.O_WRONLY)  # opened when the command has
    try:
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0
    finally:
        server.kill()
        os.close(writer)


def test_sigint_ends_at_once(process):
    server, address = process("--drain-timeout", "60")
    with serving_slowly(address) as stream:
        server.send_signal(signal.SIGINT)
        start = time.monotonic()
        with pytest.raises(openai.APIError):
            list(stream)
        assert server.wait(10) == 130
        assert time.monotonic() - start < 3
    assert "Traceback" not in server.stderr.read()


class serving_slowly:
    """Many long answers at once: they take seconds."""

    def __init__(self, address):
        self._client = client(address)

    def __enter__(self):
        self._streams = [self._client.chat.completions.create(**{**LONG, "n": 8}) for _ in range(4)]
        stream = iter(self._streams[0])
        next(stream)
        return stream

    def __exit__(self, *error):
        self._client.close()


def test_the_address_and_the_key(process):
    server, address = process(AIRLLM_API_KEY="from-the-environment")
    assert address.startswith("http://127.0.0.1:")
    answer = httpx.get(address + "/models")
    assert answer.status_code == 401
    answer = httpx.get(address + "/models", headers={"authorization": "Bearer from-the-environment"})
    assert [each["id"] for each in answer.json()["data"]] == ["tiny"]


def fails(capsys, *arguments):
    status = main(["serve", *arguments])
    return status, capsys.readouterr().err


def test_what_is_not_safe_or_possible_is_refused_before_the_model_is_opened(
    capsys, model, tmp_path, monkeypatch
):
    monkeypatch.delenv("AIRLLM_API_KEY", raising=False)
    status, error = fails(capsys, str(model), "--host", "0.0.0.0")
    assert status == 1
    assert "--no-key" in error and "AIRLLM_API_KEY" in error
    empty = tmp_path / "keys"
    empty.write_text("\n")
    assert "has no key" in fails(capsys, str(model), "--api-key-file", str(empty))[1]
    assert "--cors-origin has value '*'" in fails(capsys, str(model), "--cors-origin", "*")[1]
    assert "cannot listen" in fails(capsys, str(model), "--port", "99999")[1]
    assert "--max-running has value 0" in fails(capsys, str(model), "--port", "0", "--max-running", "0")[1]


@pytest.mark.parametrize("timeout", ["0", "-1", "nan"])
def test_a_limit_that_is_none_is_refused(capsys, model, timeout):
    error = fails(capsys, str(model), "--request-timeout", timeout)[1]
    assert error.startswith("airllm: --request-timeout has value")


def test_the_name_of_a_model_does_not_tell_where_it_is(model, tmp_path, monkeypatch):
    (tmp_path / "small.gguf").touch()
    assert public_name(str(tmp_path / "small.gguf")) == "small"
    assert public_name(f"{model}/") == model.name
    monkeypatch.chdir(model)
    assert public_name(".") == model.name
    assert public_name("owner/repository:Q4_K_M") == "owner/repository:Q4_K_M"


def test_a_port_in_use_is_named(capsys, model):
    with serving.serve(model) as server:
        port = server.address.rpartition(":")[2]
        status, error = fails(capsys, str(model), "--port", port)
    assert status == 1 and f"--port {port}" in error


def test_a_model_has_the_names_that_it_is_given(process):
    server, address = process("--model-name", "gpt-4o-mini")
    for name in ("tiny", "gpt-4o-mini"):
        body = {"model": name, "prompt": "x", "max_tokens": 1}
        assert json.loads(httpx.post(address + "/completions", json=body).text)["model"] == "tiny"
