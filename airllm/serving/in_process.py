"""A client in the process of the app: requests without a socket, for `airllm.batch` and `airllm.ray`."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from starlette.types import Message, Scope

from airllm.serving.app import App


class InProcessClient:
    """Sends requests to an app whose engine's thread runs inside the `async with`."""

    def __init__(self, app: App):
        self._app = app

    async def __aenter__(self) -> InProcessClient:
        self._app.service.thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._app.service.close(threading.TIMEOUT_MAX)  # a step that runs reads the weights

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer to a JSON request. Cancelling it frees its places."""
        waiting, status, answer = [body], 0, bytearray()

        async def receive() -> Message:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(), "more_body": False}
            await asyncio.Event().wait()  # this client never leaves
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                answer.extend(message.get("body", b""))

        await self._app(_scope(path), receive, send)
        return status, bytes(answer)


def _scope(path: str) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "state": {},
    }
