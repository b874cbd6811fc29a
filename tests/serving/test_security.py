"""Who may call a server: by which name, from which page, with which key."""

import http.client
import logging

import pytest
import serving

from airllm.serving.options import Options, is_loopback

ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PAGE = "https://chat.example.org"


@pytest.fixture(scope="module")
def keyed(model):
    with serving.serve(
        model, keys=(serving.KEY, "other"), origins=(PAGE,), hosts=("model.example.org",), log_requests=True
    ) as server:
        yield server


def status(server, path="/v1/models", method="GET", **headers):
    with server.http() as client:
        json = ASK if method == "POST" else None
        return client.request(
            method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}, json=json
        )


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:8080", 200),
        ("10.0.0.7:8080", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1@evil.example", 403),
        ("model.example.org", 403),
        ("localhost:80:80", 403),
        ("", 403),
    ],
)
def test_the_name_of_the_server(server, host, expected):
    assert status(server, host=host).status_code == expected


def test_a_named_host_is_accepted(keyed):
    assert status(keyed, "/health", host="model.example.org:443").status_code == 200


def test_a_request_with_two_hosts_or_none_is_refused(server):
    for hosts in ([], ["localhost", "evil.example"]):
        connection = http.client.HTTPConnection(server.address.removeprefix("http://"))
        connection.putrequest("GET", "/health", skip_host=True)
        for host in hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status in (400, 403)
        connection.close()


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:8080", 200),
        ("https://localhost:8080", 200),
        ("http://localhost:8081", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("file://", 403),
        ("http://localhost:8080.evil.example", 403),
        (PAGE, 403),
    ],
)
def test_the_page_that_calls(server, origin, expected):
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
        answer = status(server, path, method, host="localhost:8080", origin=origin)
        assert answer.status_code == expected
        assert "access-control-allow-origin" not in answer.headers


def test_a_named_page_may_call(keyed):
    asked = {"origin": PAGE, "access_control_request_method": "POST"}
    preflight = status(
        keyed, "/v1/chat/completions", "OPTIONS", access_control_request_headers="authorization", **asked
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "access-control-allow-credentials" not in preflight.headers
    answer = status(keyed, origin=PAGE, authorization=f"Bearer {serving.KEY}")
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
    other = status(keyed, origin="https://other.example", authorization=f"Bearer {serving.KEY}")
    assert other.status_code == 403 and "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Bearer {serving.KEY}", 200),
        (f"bearer  {serving.KEY}", 200),
        ("Bearer other", 200),
        ("", 401),
        ("Bearer", 401),
        (f"Bearer {serving.KEY}x", 401),
        (f"Bearer {serving.KEY[:-1]}", 401),
        (f"Basic {serving.KEY}", 401),
        (serving.KEY, 401),
        ("Bearer \xe9", 401),
    ],
)
def test_the_key(keyed, header, expected):
    with keyed.http() as client:
        answer = client.get("/v1/models", headers={"authorization": header.encode("latin-1")})
    assert answer.status_code == expected
    if expected == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/health", 200),
        ("GET", "/ready", 200),
        ("GET", "/metrics", 401),
        ("GET", "/v1/models/tiny", 401),
        ("GET", "/v1", 401),
        ("GET", "/v1x", 404),
        ("POST", "/v1/chat/completions", 401),
        ("POST", "/v1/completions", 401),
        ("POST", "/v1/responses", 401),
        ("POST", "/v1/embeddings", 401),
        ("POST", "/tokenize", 401),
        ("POST", "/detokenize", 401),
        ("GET", "//v1/models", 404),
        ("GET", "/%761/models", 401),
    ],
)
def test_what_needs_a_key(keyed, method, path, expected):
    assert status(keyed, path, method).status_code == expected


def test_keys_and_queries_are_not_logged(keyed, caplog):
    keyed.wait_until_idle()
    with caplog.at_level(logging.DEBUG):
        status(keyed, f"/v1/models?api_key={serving.KEY}", authorization=f"Bearer {serving.KEY}")
        status(keyed, "/v1/models%1b[31m", authorization="Bearer wrong-key")
        keyed.wait_until_idle()
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("airllm")]
    assert len(lines) == 2 and lines[0].startswith("GET /v1/models 200")
    assert serving.KEY not in "".join(lines) and "wrong-key" not in "".join(lines)
    assert "\x1b" not in "".join(lines)


def test_browsers_are_told_to_be_careful(server):
    for path in ("/health", "/nothing"):
        headers = status(server, path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_an_address_that_others_reach_needs_a_key():
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.example.org"):
        with pytest.raises(ValueError, match="API key"):
            Options(("m",), host=host)
        Options(("m",), host=host, no_key=True)
        Options(("m",), host=host, keys=("k",))
    for host in ("127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"):
        assert is_loopback(host)
        Options(("m",), host=host)


@pytest.mark.parametrize(
    "origin", ["*", "chat.example.org", "https://chat.example.org/", "null", "ftp://a.b"]
)
def test_an_origin_that_is_none_is_refused(origin):
    with pytest.raises(ValueError, match="origins"):
        Options(("m",), origins=(origin,))


def test_prefixes_are_not_shared_between_keys(keyed):
    """Else the time of an answer would tell what others asked."""
    messages = [{"role": "user", "content": "A long secret that is asked for. " * 30}]
    cached = []
    for key in (serving.KEY, serving.KEY, "other"):
        with keyed.client(api_key=key) as client:
            answer = client.chat.completions.create(model=serving.NAME, messages=messages, max_tokens=1)
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[0] == 0 and cached[1] > 0 and cached[2] == 0
