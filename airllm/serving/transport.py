"""Between ASGI and the endpoints: bodies, clients that leave, streams of events, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from airllm.serving.options import Options
from airllm.serving.protocol.errors import ApiError

Result = TypeVar("Result")
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_LOOKS = 4  # in the time that a client has for reading
_DROPPED = 8  # times the largest body: what is read of one that is larger


class Json(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def error_response(error: ApiError) -> Json:
    return Json(error.body, error.status, error.headers)


async def send_error(error: ApiError, send: Send) -> None:
    """Answer with an error from a middleware. The body of the request is not read."""
    await error_response(error)({"type": "http"}, _no_receive, send)


async def _no_receive() -> Any:
    raise RuntimeError("an error reads no body")


# ------------------------------------------------------------------------------------------------ bodies


async def read_body(request: Request, options: Options) -> bytes:
    """The body of a JSON request. Raises ApiError for one that is too large, too slow, or of another type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"The body has Content-Type {kind!r}, expected 'application/json'."
        raise ApiError(415, message, code="unsupported_media_type")
    try:
        return await asyncio.wait_for(_read_at_most(request, options.body_bytes), options.read_timeout)
    except asyncio.TimeoutError:
        message = f"The body did not arrive within {options.read_timeout:g} s."
        raise ApiError(408, message, code="body_timeout", headers={"Connection": "close"}) from None


async def _read_at_most(request: Request, most: int) -> bytes:
    """The body. What is more is read and dropped, up to a limit: a client reads no answer while it sends."""
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= most:
            body += chunk
        elif size > _DROPPED * most:
            break
    if size > most:
        message = f"The body has more than {most} bytes, the limit of this server."
        raise ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
    return bytes(body)


# ------------------------------------------------------------------------------------------------ answers


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled if the client leaves. Then raises ClientDisconnect."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Answer:
    """An ASGI app: computes a response, as long as the client waits for it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, ASGIApp]]):
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await unless_disconnected(receive, self._work())
        except ClientDisconnect:
            return
        await response(scope, receive, send)


class SlowReader(Exception):
    """A client did not read for too long."""


class EventStream:
    """An ASGI app: server-sent events. `frames` are whole events, as bytes. `close` is called at the end.

    Between frames that are far apart, comments keep the connection open. A client that reads nothing for
    `write_timeout` seconds is left, at most a fourth of that time later.
    """

    _writer: asyncio.Task[Any] | None = None
    _timer: asyncio.TimerHandle

    def __init__(self, frames: AsyncIterator[bytes], close: Callable[[], None], options: Options):
        self._frames, self._close = frames, close
        self._ping, self._write_timeout = options.ping, options.write_timeout
        self._is_writing, self._last_write, self._is_late = False, 0.0, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except (ClientDisconnect, SlowReader, OSError):
            return  # the server closes a connection whose response is not complete
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        self._writer = asyncio.current_task()
        pings = asyncio.ensure_future(self._send_pings(send))
        self._look()
        try:
            await self._write(send, {"type": "http.response.start", "status": 200, "headers": headers})
            async for frame in self._frames:
                await self._write(send, {"type": "http.response.body", "body": frame, "more_body": True})
            await self._write(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if self._is_late:
                raise SlowReader from None
            raise
        finally:
            pings.cancel()
            self._timer.cancel()

    async def _write(self, send: Send, message: dict[str, Any]) -> None:
        self._is_writing, self._last_write = True, asyncio.get_running_loop().time()
        await send(message)
        self._is_writing = False

    def _look(self) -> None:
        """Leave a client that has not read for too long; look again later. A timer for each frame would cost
        more than the rest of the frame.
        """
        loop = asyncio.get_running_loop()
        if self._is_writing and loop.time() >= self._last_write + self._write_timeout:
            self._is_late = True
            assert self._writer
            self._writer.cancel()
        self._timer = loop.call_later(self._write_timeout / _LOOKS, self._look)

    async def _send_pings(self, send: Send) -> None:
        """Send comments. A client that does not read them is left when the next frame comes."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(max(0.01, self._last_write + self._ping - clock()))
            if not self._is_writing and clock() >= self._last_write + self._ping:
                self._last_write = clock()
                await send({"type": "http.response.body", "body": PING, "more_body": True})


def frame(value: Any) -> bytes:
    """A value as a server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


def named_frame(name: str, value: Any) -> bytes:
    """A value as an event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


Endpoint = Callable[[Request], Awaitable[ASGIApp]]
