"""The command `airllm serve`: its options, and what it prints."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm.cli.terminal import Refused
from airllm.extras import require_extra

if TYPE_CHECKING:
    from socket import socket

    from airllm.engine.engine import LayerWiseInferenceEngine
    from airllm.serving.options import Options

KEY_VARIABLE = "AIRLLM_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `airllm serve`, besides those of the engine."""
    _add_address(parser.add_argument_group("who may use it"))
    _add_limits(parser.add_argument_group("limits"))
    parser.add_argument("--no-page", action="store_true", help="no chat page at /")
    parser.add_argument("--log-requests", action="store_true", help="print a line for each request")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress and no address")


def _add_address(group: Any) -> None:
    group.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="address to listen at; default: %(default)s"
    )
    group.add_argument(
        "--port", type=int, default=8080, metavar="N", help="0 for any free one; default: %(default)s"
    )
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"clients must send this key; repeatable. Other users see it in ps: better use {KEY_VARIABLE}",
    )
    group.add_argument("--api-key-file", metavar="FILE", help="a file with a key in each line")
    group.add_argument("--no-key", action="store_true", help="anyone who reaches --host may use the model")
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which clients reach this server, besides its addresses and localhost; repeatable",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="a web page's origin that may use the model, such as https://chat.example.org; repeatable",
    )
    group.add_argument(
        "--model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="what clients call the model; repeatable; default: MODEL",
    )


def _add_limits(group: Any) -> None:
    numbers = (
        ("--max-running", int, 16, "sequences that are computed together"),
        ("--queue", int, 64, "sequences that wait for a place; more get status 429"),
        ("--request-timeout", float, 600, "seconds from a request to the end of its answer"),
        ("--write-timeout", float, 30, "seconds for which a client may read nothing"),
        ("--drain-timeout", float, 30, "seconds to finish answers after SIGTERM; SIGINT ends at once"),
    )
    for name, kind, default, text in numbers:
        group.add_argument(name, type=kind, default=default, metavar="N", help=f"{text}; default: {default}")
    add_cache_memory(group)


def add_cache_memory(group: Any) -> None:
    """The options that `cache_memory_of` reads."""
    group.add_argument(
        "--cache-memory",
        metavar="SIZE",
        help="for keys and values of all sequences; default: half of the free memory",
    )
    group.add_argument(
        "--prefix-cache-memory",
        metavar="SIZE",
        help="at most this much of it for prompts that may come again; default: half of it",
    )


def cache_memory_of(given: argparse.Namespace) -> tuple[int | None, int | None]:
    """The bytes of --cache-memory and of --prefix-cache-memory."""
    from airllm.memory.estimate import parse_size

    sizes = given.cache_memory, given.prefix_cache_memory
    cache, prefixes = (parse_size(size) if size else None for size in sizes)
    return cache, prefixes


def options_of(given: argparse.Namespace) -> Options:
    """The server's options. Raises Refused for those that are not safe, ValueError for others."""
    with require_extra("serve"):
        import airllm.serving.run  # noqa: F401  a missing package is reported at once
        from airllm.serving.options import Options, is_loopback
    from airllm.files.hub import public_name

    keys = _keys(given)
    if not keys and not given.no_key and not is_loopback(given.host):
        raise Refused(
            f"--host {given.host} can be reached from other machines, and no API key is set: set "
            f"{KEY_VARIABLE}, or give --api-key-file FILE; or say --no-key, and anyone may use the model"
        )
    return Options(
        names=tuple(given.model_name) or (public_name(given.model),),
        host=given.host,
        port=given.port,
        keys=keys,
        no_key=given.no_key,
        hosts=tuple(given.allowed_host),
        origins=tuple(given.cors_origin),
        request_timeout=given.request_timeout,
        write_timeout=given.write_timeout,
        drain_timeout=given.drain_timeout,
        page=not given.no_page,
        log_requests=given.log_requests,
    )


def _keys(given: argparse.Namespace) -> tuple[str, ...]:
    keys = list(given.api_key)
    if given.api_key_file:
        lines = Path(given.api_key_file).read_text(encoding="utf-8").splitlines()
        keys += [line.strip() for line in lines if line.strip()]
        if not keys:
            raise Refused(f"--api-key-file {given.api_key_file} has no key, expected one in each line")
    if key := os.environ.get(KEY_VARIABLE):
        keys.append(key)
    return tuple(keys)


def listen(options: Options) -> socket:
    """A socket at the server's address, before a model is opened. Raises Refused."""
    from airllm.serving import run

    try:
        return run.listen(options)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Refused(f"--host {options.host} --port {options.port}: cannot listen there: {why}") from None


@contextlib.contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Within it SIGTERM ends this process with status 0, also before the server's own handler is there.

    The first process of a container ignores a signal that it has no handler for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve(
    engine: LayerWiseInferenceEngine, options: Options, listening: socket, given: argparse.Namespace
) -> int:
    """Serve until a signal, and return the exit status."""
    from airllm.engine.scheduling.requests import Limits
    from airllm.serving.app import build_app
    from airllm.serving.run import address_of, run

    limits = Limits(given.max_running, given.queue, *cache_memory_of(given))
    app = build_app(engine, options, limits)
    _log_to_stderr(options.log_requests)

    def tell() -> None:
        if not given.quiet:
            address = address_of(listening)
            page = " (a page to chat)" if options.page else ""
            print(f"Serving {options.names[0]} at {address}{page}", file=sys.stderr)
            print(f"OpenAI's interface: {address}/v1; Ctrl-C ends", file=sys.stderr, flush=True)

    return 130 if run(app, options, listening, tell) else 0


def _log_to_stderr(requests: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("airllm: %(asctime)s %(message)s"))
    for name, level in (("airllm.serving", logging.INFO if requests else logging.WARNING), ("uvicorn", 30)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
