"""GET /v1/models, /health, /ready and /metrics"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from airllm.serving.metrics import CONTENT_TYPE
from airllm.serving.protocol.answers import Model, Models
from airllm.serving.protocol.errors import ApiError
from airllm.serving.service import Service, service_of
from airllm.serving.transport import Json


async def models(request: Request) -> ASGIApp:
    service = service_of(request)
    return Json(Models([_model(service, name) for name in service.options.names]))


async def model(request: Request) -> ASGIApp:
    service, name = service_of(request), request.path_params["name"]
    service.check_model(name)
    return Json(_model(service, name))


def _model(service: Service, name: str) -> Model:
    return Model(name, service.created, service.engine.context, service.name)


async def health(request: Request) -> ASGIApp:
    """Whether the engine works."""
    service = service_of(request)
    if not service.thread.is_alive:
        raise ApiError(503, "The engine has ended.", code="engine_ended")
    seconds = service.thread.seconds_in_step
    if seconds > service.options.stuck_after:
        raise ApiError(503, f"A step of the engine has taken {seconds:.0f} s until now.", code="engine_stuck")
    return Json({"status": "ok"})


async def ready(request: Request) -> ASGIApp:
    """Whether new requests should be sent here."""
    service = service_of(request)
    if service.is_draining:
        raise ApiError(503, "The server ends, and finishes the requests that it has.", code="draining")
    await health(request)
    load = service.thread.load
    return Json({"status": "ready", "running": load.running, "waiting": load.waiting})


async def metrics(request: Request) -> ASGIApp:
    return Response(service_of(request).metrics.render(), media_type=CONTENT_TYPE)
