"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from typing import Any

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An answer that is no success. `param` names the field of the request that is wrong, if one is."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request is wrong: its field `param`."""
    return ApiError(400, message, param=param, code=code)


def unsupported(message: str, param: str | None) -> ApiError:
    """The field asks for what this server cannot do."""
    return invalid(message, param, "unsupported_parameter")


def too_long(tokens: int, context: int, param: str) -> ApiError:
    """The prompt does not fit. It is never cut."""
    message = (
        f"This model's maximum context length is {context} tokens, and the prompt has {tokens}. "
        "Shorten the prompt, or start the server with a larger --context."
    )
    return invalid(message, param, "context_length_exceeded")


def queue_full(retry_after: float) -> ApiError:
    """No place in the queue now."""
    seconds = max(1, math.ceil(retry_after))
    message = f"The queue of this server is full. Try again in {seconds} s."
    return ApiError(429, message, code="queue_full", headers={"Retry-After": str(seconds)})


def deadline_passed(seconds: float) -> ApiError:
    """The answer took longer than the server allows. A client should not try the same again."""
    message = f"The request took longer than {seconds:g} s, the limit of this server (--request-timeout)."
    return ApiError(504, message, code="deadline_exceeded", headers={"x-should-retry": "false"})


def server_error(error: BaseException) -> ApiError:
    """The computation of this request failed."""
    return ApiError(500, f"The request failed: {type(error).__name__}: {error}", code="internal_error")
