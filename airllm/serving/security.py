"""Who may call the server: the name it is called by, the page that calls it, the key of the caller.

A web page can make a browser send requests to this machine. Against that, `Guard` accepts only requests that
name this server by an address or a known name (a page cannot change `Host`, and an attacker's domain that
resolves to 127.0.0.1 is not a known name), and only pages of this server itself or of the named origins.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airllm.serving.options import LOOPBACK_NAMES, Options, is_address
from airllm.serving.protocol.errors import ApiError
from airllm.serving.transport import send_error

# What a browser may do with the page: nothing from elsewhere, no inline code, in no frame.
_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
KEYED = ("/v1", "/tokenize", "/detokenize", "/metrics")


class Guard:
    """Refuses requests by their `Host` and `Origin`, and adds headers for browsers."""

    def __init__(self, app: ASGIApp, options: Options):
        self._app = app
        self._names = {name.lower() for name in (*LOOPBACK_NAMES, *options.hosts, options.host)}
        self._origins = frozenset(options.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        send = _with_headers(send)
        if refusal := self._refusal(Headers(scope=scope)):
            return await send_error(refusal, send)
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_known(_without_port(hosts[0])):
            found = hosts[0] if hosts else "no Host header"
            message = f"This server is not {found!r}. If it is, start it with --allowed-host NAME."
            return ApiError(403, message, code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin, hosts[0]):
            message = f"Pages of {origin!r} may not call this server. To allow them: --cors-origin ORIGIN."
            return ApiError(403, message, code="origin_not_allowed")
        return None

    def _is_known(self, host: str) -> bool:
        return is_address(host) or host.lower() in self._names

    def _is_allowed(self, origin: str, host: str) -> bool:
        """Whether the page is this server's own, behind whatever proxy, or a named one's."""
        return origin in self._origins or origin in (f"http://{host}", f"https://{host}")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (":" not in name or name.endswith("]")) else host


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return wrapped


class Keys:
    """Asks for an API key on the paths that compute or tell something. The page itself needs none."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]):
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._digests and _is_keyed(scope["path"]):
            number = self._find(Headers(scope=scope).get("authorization", ""))
            if number is None:
                return await send_error(_no_key(), send)
            scope.setdefault("state", {})["key"] = str(number)
        await self._app(scope, receive, send)

    def _find(self, authorization: str) -> int | None:
        """The number of the key that was given. The time does not depend on the key."""
        scheme, _, given = authorization.partition(" ")
        digest = _digest(given.strip().encode("latin-1"))
        found = [hmac.compare_digest(digest, each) for each in self._digests]
        return found.index(True) if any(found) and scheme.lower() == "bearer" else None


def _is_keyed(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in KEYED)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _no_key() -> ApiError:
    message = "Incorrect or missing API key. Send the header `Authorization: Bearer KEY`."
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
