"""The ASGI app: routes, and what surrounds them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.scheduling.requests import Limits
from airllm.engine.scheduling.scheduler import Scheduler
from airllm.serving.options import Options
from airllm.serving.protocol.errors import ApiError, server_error
from airllm.serving.routes_chat import chat_completions
from airllm.serving.routes_completions import completions
from airllm.serving.routes_embeddings import embeddings
from airllm.serving.routes_responses import responses
from airllm.serving.routes_status import health, metrics, model, models, ready
from airllm.serving.routes_text import detokenize, tokenize
from airllm.serving.security import Guard, Keys
from airllm.serving.service import Service
from airllm.serving.transport import error_response, send_error

_log = logging.getLogger("airllm.serving")
_PAGE = Path(__file__).with_name("page")
_STOP = 10  # seconds for the engine's last step
_ROUTES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/chat/completions"): chat_completions,
    ("POST", "/v1/completions"): completions,
    ("POST", "/v1/responses"): responses,
    ("POST", "/v1/embeddings"): embeddings,
    ("GET", "/v1/models"): models,
    ("GET", "/v1/models/{name:path}"): model,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize,
    ("GET", "/health"): health,
    ("GET", "/ready"): ready,
    ("GET", "/metrics"): metrics,
}


class App:
    """The ASGI app of one engine. `service` is what its endpoints share. The engine's thread runs from the
    app's startup to its shutdown; the engine itself stays open.
    """

    def __init__(self, engine: LayerWiseInferenceEngine, scheduler: Scheduler, options: Options):
        self.service = Service(engine, scheduler, options)
        self.requests = _with_middleware(_routed(self.service), self.service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.requests(scope, receive, send)


def build_app(engine: LayerWiseInferenceEngine, options: Options, limits: Limits | None = None) -> App:
    """An app for uvicorn, Ray Serve or any other ASGI server. Use the engine for nothing else meanwhile."""
    return App(engine, engine.scheduler(limits or Limits()), options)


def _routed(service: Service) -> Starlette:
    routes: list[BaseRoute] = [
        Route(path, call, methods=[method]) for (method, path), call in _ROUTES.items()
    ]
    if service.options.page and _PAGE.is_dir():
        routes.append(Mount("/", Page(directory=_PAGE, html=True)))
    handlers: Any = {
        ApiError: lambda request, error: error_response(error),
        HTTPException: _http_error,
        ClientDisconnect: lambda request, error: Response(status_code=499),
        Exception: lambda request, error: error_response(server_error(error)),
    }

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.thread.start()
        try:
            yield
        finally:
            service.close(_STOP)

    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.state.service = service
    return app


def _with_middleware(app: ASGIApp, service: Service) -> Requests:
    """From the inside out: keys; CORS, which browsers ask before they send a key; names; counts."""
    options = service.options
    app = Keys(app, options.keys)
    if options.origins:
        methods, exposed = ["GET", "POST"], ["Retry-After"]
        app = CORSMiddleware(app, options.origins, methods, ["*"], expose_headers=exposed)
    return Requests(Guard(app, options), service)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors: an unknown address, a wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"Unknown address: {request.method} {request.url.path}."
    elif error.status_code == 405:
        message = f"{request.url.path} has no method {request.method}."
    else:
        message = error.detail
    headers = dict(error.headers or {})
    return error_response(ApiError(error.status_code, message, code="unknown_url", headers=headers))


class Page(StaticFiles):
    """The files of the chat page. Their types do not depend on the system's table."""

    types = {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
        ".png": "image/png",
        ".txt": "text/plain; charset=utf-8",
    }

    def file_response(self, full_path: Any, *rest: Any, **more: Any) -> Response:
        response = super().file_response(full_path, *rest, **more)
        kind = self.types.get(Path(full_path).suffix)
        if kind and response.status_code == 200:
            response.headers["content-type"] = kind
        response.headers["cache-control"] = "no-cache"
        return response


class Requests:
    """Counts, times and logs requests; limits how many there are; turns a defect into an answer."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app, self._service = app, service
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, statuses = time.monotonic(), [0]

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses[0] = message["status"]
            await send(message)

        self.running += 1
        try:
            await self._run(scope, receive, watched)
        except Exception as error:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            if not statuses[0]:
                await send_error(server_error(error), watched)
        finally:
            self._tell(scope, statuses[0] or 499, time.monotonic() - start)
            self.running -= 1

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = self._service.options.most_requests
        if scope["method"] == "POST" and self.running > most:
            message = f"The server has {most} requests, its limit. Try again in 1 s."
            headers = {"Retry-After": "1"}
            await send_error(ApiError(429, message, code="too_many_requests", headers=headers), send)
        else:
            await self._app(scope, receive, send)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        """Count the request. The log has neither headers nor the query, which may hold secrets."""
        endpoint = scope["path"] if (scope["method"], scope["path"]) in _ROUTES else "other"
        metrics = self._service.metrics
        metrics.requests.labels(endpoint, str(status)).inc()
        metrics.seconds.labels(endpoint).observe(seconds)
        if self._service.options.log_requests:
            _log.info("%s %s %d %.3f s", scope["method"], ascii(scope["path"])[1:-1], status, seconds)
