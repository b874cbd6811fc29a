"""What the endpoints share: the engine, its thread, prompts, metrics, and the answers' common fields."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.scheduling.requests import QueueFull, SequenceRequest
from airllm.engine.scheduling.scheduler import Scheduler
from airllm.memory.kv_cache import ContextFull
from airllm.serving.engine_thread import EngineStopped, EngineThread, Stream
from airllm.serving.metrics import Metrics
from airllm.serving.options import Options
from airllm.serving.pieces import Piece, join
from airllm.serving.prompts import Prompts
from airllm.serving.protocol.decode import decode
from airllm.serving.protocol.errors import ApiError, invalid, queue_full, server_error
from airllm.serving.sequences import refuse_unsupported
from airllm.serving.transport import read_body

_log = logging.getLogger("airllm.serving")
Shape = TypeVar("Shape", bound=msgspec.Struct)


class Service:
    """One engine that is served."""

    def __init__(self, engine: LayerWiseInferenceEngine, scheduler: Scheduler, options: Options):
        self.engine, self.options = engine, options
        self.prompts = Prompts(engine)
        self.tokenizer = self.prompts.tokenizer
        self.recommended = {**engine.recommended_sampling, **options.sampling}
        self._places = scheduler.limits.max_running + scheduler.limits.max_waiting
        self.thread = EngineThread(scheduler)
        self.metrics = Metrics(self.thread)
        self.created = int(time.time())
        self.fingerprint = "fp_" + hashlib.sha256(repr(engine).encode()).hexdigest()[:12]
        self.is_draining = False

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self.options.names[0]

    def check_model(self, name: str | None) -> None:
        """Raise ApiError, status 404, for a model that is not served."""
        if name is not None and name not in self.options.names:
            served = ", ".join(f"`{each}`" for each in self.options.names)
            message = f"The model `{name[:100]}` does not exist. This server has {served}."
            raise ApiError(404, message, param="model", code="model_not_found")

    def _check_generates(self) -> None:
        """Raise ApiError, status 400, for an encoder."""
        if not self.engine.generates:
            message = (
                f"The model `{self.name}` makes vectors of texts, at /v1/embeddings, and does not generate."
            )
            raise invalid(message, "model", "model_does_not_generate")

    async def read(self, request: Request, shape: type[Shape]) -> Shape:
        """The checked body of a request. Raises ApiError."""
        asked: Any = decode(await read_body(request, self.options), shape)
        self.check_model(asked.model)
        if hasattr(shape, "refused"):
            self._check_generates()
            refuse_unsupported(asked)
        return asked

    async def begin(self, sequences: Sequence[SequenceRequest]) -> Stream:
        """Submit sequences. Raises ApiError if they are not admitted."""
        if len(sequences) > self._places:
            message = f"The request needs {len(sequences)} places, and this server has {self._places}."
            raise invalid(message, "n", "too_many_choices")
        try:
            return await self.thread.submit(sequences)
        except QueueFull as error:
            raise queue_full(error.retry_after) from None
        except (ContextFull, ValueError, TypeError) as error:
            raise invalid(f"The request was refused: {error}.") from None
        except EngineStopped:
            raise _ending() from None

    async def pieces(self, stream: Stream) -> AsyncIterator[list[Piece]]:
        """What each read of the stream added to the choices. Raises ApiError."""
        watch = self.metrics.watch()
        while events := await self._events(stream):
            pieces = join(events, self.options.request_timeout)
            watch.see(pieces)
            yield pieces

    async def _events(self, stream: Stream) -> list[Any]:
        try:
            return await stream.read()
        except ApiError:
            raise
        except Exception as error:  # a step failed; the thread has logged it
            raise server_error(error) from error

    def abort(self) -> None:
        """End all requests that run, with an error."""
        self.thread.fail_all(_ending())

    def close(self, timeout: float) -> bool:
        """End the engine's thread. Returns whether it ended in time."""
        self.prompts.close()
        return self.thread.stop(timeout)

    def head(self, prefix: str) -> dict[str, Any]:
        """The fields that every answer begins with."""
        return {
            "id": f"{prefix}{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": self.name,
            "system_fingerprint": self.fingerprint,
        }

    @property
    def deadline(self) -> float:
        """When a request that comes now must be answered."""
        return time.monotonic() + self.options.request_timeout


def _ending() -> ApiError:
    return ApiError(503, "The server ends.", code="shutting_down")


def service_of(request: Request) -> Service:
    return request.app.state.service


def key_of(request: Request) -> str:
    """The number of the caller's key; "" where none is asked for."""
    return getattr(request.state, "key", "")


def failed_frame(error: Exception) -> dict[str, Any]:
    """The error that ends a stream, as its last event."""
    if isinstance(error, ApiError):
        return error.body
    _log.exception("an answer failed", exc_info=error)
    return server_error(error).body
