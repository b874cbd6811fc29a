"""A server of the chat page on 127.0.0.1 whose answers a test writes piece by piece."""

import contextlib
import json
import queue
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "airllm" / "serving" / "page"
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "max-age=600",  # the real one asks each time; most of a test is loading the page
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PING = 0.05  # seconds between two remarks in a stream without news: so the end of its client is found out


@dataclass
class Refusal:
    """A response without an answer."""

    status: int
    message: str
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        error = {"message": self.message, "type": "error", "param": None, "code": self.code}
        return json.dumps({"error": error}).encode()


class Answer:
    """An answer that a test writes while the page reads it."""

    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.asked = threading.Event()
        self.gone = threading.Event()  # the client left before the end
        self.body: dict[str, Any] = {}

    def write(self, content: str = "", **delta: str) -> None:
        given = {"content": content, **delta} if content else delta
        self.frame({"choices": [{"index": 0, "delta": given, "finish_reason": None}]})

    def frame(self, chunk: dict[str, Any]) -> None:
        self.raw(f"data: {json.dumps(chunk)}\n\n".encode())

    def raw(self, frame: bytes) -> None:
        self.frames.put(frame)

    def finish(self, reason: str = "stop", tokens: int = 7, rate: float = 123.4) -> None:
        ending = {"index": 0, "delta": {}, "finish_reason": reason}
        self.frame({"choices": [ending], "usage": None, "timings": {"predicted_per_second": rate}})
        details = {"cached_tokens": 5}
        usage = {"prompt_tokens": 11, "completion_tokens": tokens, "prompt_tokens_details": details}
        self.frame({"choices": [], "usage": usage})
        self.raw(b"data: [DONE]\n\n")
        self.cut()

    def cut(self) -> None:
        """Ends the connection, whatever came before."""
        self.frames.put(None)


def complete(content: str, **delta: str) -> Answer:
    """An answer that is there at once."""
    answer = Answer()
    answer.write(content, **delta)
    answer.finish()
    return answer


class FakeChatServer:
    """`script` has the next answers and refusals; `bodies` what was asked."""

    def __init__(self) -> None:
        self.script: deque[Answer | Refusal] = deque()
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.key = ""
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def reset(self) -> None:
        self.script.clear()
        self.bodies.clear()
        self.paths.clear()
        self.key = ""
        if not self._server:
            self.start()

    def next(self) -> Answer:
        """A new answer, which the next question gets."""
        answer = Answer()
        self.script.append(answer)
        return answer


class _Handler(BaseHTTPRequestHandler):
    fake: FakeChatServer
    protocol_version = "HTTP/1.1"  # a page has many files, which come over a few connections
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: pytest shows what tests say."""

    def do_GET(self) -> None:
        self.fake.paths.append(self.path)
        if self.path == "/v1/models":
            self._refuse_strangers() or self._send_models()
        else:
            self._send_file(PAGE / (self.path.lstrip("/") or "index.html"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.paths.append(self.path)
        if self._refuse_strangers():
            return
        self.fake.bodies.append(body)
        found = self.fake.script.popleft()
        if isinstance(found, Refusal):
            self._send(found.status, found.body, "application/json", found.headers)
        else:
            self._stream(found, body)

    def _refuse_strangers(self) -> bool:
        if self.fake.key and self.headers["Authorization"] != f"Bearer {self.fake.key}":
            self._send(401, Refusal(401, "The API key is wrong.").body, "application/json")
            return True
        return False

    def _send_models(self) -> None:
        models = {"object": "list", "data": [{"id": "tiny-model", "object": "model"}]}
        self._send(200, json.dumps(models).encode(), "application/json")

    def _send_file(self, path: Path) -> None:
        if path.is_file() and path.is_relative_to(PAGE):
            self._send(200, path.read_bytes(), TYPES[path.suffix], HEADERS)
        else:
            self._send(404, b"", "text/plain")

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        sent = {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def _stream(self, answer: Answer, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        answer.body = body
        answer.asked.set()
        try:
            for frame in _frames(answer):
                self.wfile.write(frame)
        except ConnectionError:
            answer.gone.set()


def _frames(answer: Answer):
    while True:
        try:
            frame = answer.frames.get(timeout=PING)
        except queue.Empty:
            frame = b": ping\n\n"
        if frame is None:
            return
        yield frame
