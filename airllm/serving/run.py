"""Serves an app with uvicorn until a signal. SIGTERM finishes what runs, in time; SIGINT ends at once."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from airllm.serving.app import App
from airllm.serving.options import Options

_KEEP_ALIVE = 65  # seconds: longer than usual proxies and clients keep a connection
_BACKLOG = 512
_STOP = 5  # seconds for a step of the engine that runs when the server ends
_MARGIN = 2.0  # seconds in which requests that were ended tell their clients


class _Server(uvicorn.Server):
    """uvicorn's server with other rules for signals."""

    def __init__(self, config: uvicorn.Config, app: App, options: Options, on_start: Callable[[], None]):
        super().__init__(config)
        self._service, self._drain, self._on_start = app.service, options.drain_timeout, on_start
        self._loop: asyncio.AbstractEventLoop | None = None
        self.was_interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves it out
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        is_forced = sig == signal.SIGINT or self.should_exit
        if is_forced:
            self.force_exit = self.was_interrupted = True
            self.config.timeout_graceful_shutdown = 1
        self.should_exit = self._service.is_draining = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_requests, 0 if is_forced else self._drain)

    def _end_requests(self, after: float) -> None:
        """After so many seconds, tell the clients that wait that the server ends."""
        asyncio.get_running_loop().call_later(after, self._service.abort)


def listen(options: Options) -> socket.socket:
    """A socket at the address of the options. Raises OSError."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    return socket.create_server((options.host.strip("[]"), options.port), family=family, backlog=_BACKLOG)


def address_of(listening: socket.socket) -> str:
    """The address as a browser writes it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: App, options: Options, listening: socket.socket, on_start: Callable[[], None]) -> bool:
    """Serve until a signal, and return whether it was an interrupt. `on_start`: requests can come now."""
    server = _Server(config_of(app, options), app, options, on_start)
    try:
        server.run([listening])
    finally:
        app.service.close(_STOP)
    return server.was_interrupted


def config_of(app: App, options: Options) -> uvicorn.Config:
    """uvicorn's configuration. Its own log of requests would have their queries."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        ws="none",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=round(options.drain_timeout + _MARGIN),
    )
