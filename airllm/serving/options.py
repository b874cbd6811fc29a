"""How a server behaves: addresses, keys, limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_TIMES = ("request_timeout", "read_timeout", "write_timeout", "drain_timeout", "stuck_after", "ping")
LOOPBACK_NAMES = ("localhost", "ip6-localhost")


@dataclass(frozen=True)
class Options:
    """Options of `build_app` and `run`. Raises ValueError for a combination that is not safe.

    `names` are what clients may call the model; the first is the one that is listed. `keys` are the API keys
    that are accepted; an address other than this machine's own needs one, or `no_key`. `hosts` are names,
    besides addresses and localhost, by which clients reach this server. `origins` are web pages of other
    servers that may call it from a browser, such as "https://chat.example.org".

    Times are in seconds: `request_timeout` from arrival to the end of an answer, `read_timeout` for the body
    of a request, `write_timeout` for a client that does not read, `drain_timeout` for the answers that run
    when the server is told to end, `stuck_after` for one step of the engine, after which /health fails.
    """

    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8080
    keys: tuple[str, ...] = ()
    no_key: bool = False
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    request_timeout: float = 600
    read_timeout: float = 30
    write_timeout: float = 30
    drain_timeout: float = 30
    stuck_after: float = 120
    body_bytes: int = 8 << 20
    most_requests: int = 256
    ping: float = 15
    page: bool = True
    log_requests: bool = False
    sampling: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("names is empty, expected what clients may call the model")
        if any(not key.strip() or not key.isascii() for key in self.keys):
            raise ValueError("keys has one that is blank or not ASCII, expected texts for an HTTP header")
        if not is_loopback(self.host) and not self.keys and not self.no_key:
            raise ValueError(
                f"host has value {self.host!r}, which other machines can reach: give an API key "
                "(keys), or say that none is needed (no_key)"
            )
        for name in _TIMES:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} has value {getattr(self, name)}, expected a number above 0")
        for origin in self.origins:
            check_origin(origin)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def is_address(host: str) -> bool:
    """Whether this is an IP address and no name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def check_origin(origin: str) -> None:
    """Raise ValueError unless this is an origin as browsers send it: scheme, host and maybe a port."""
    parts = urlsplit(origin)
    if (
        parts.scheme not in ("http", "https")
        or not parts.netloc
        or origin != f"{parts.scheme}://{parts.netloc}"
    ):
        raise ValueError(
            f"origins has value {origin!r}, expected one such as https://chat.example.org, no path, no *"
        )
