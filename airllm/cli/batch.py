"""The command `airllm batch`: its options, and what it prints."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm.cli import server
from airllm.cli.terminal import Refused
from airllm.extras import require_extra

if TYPE_CHECKING:
    from airllm.batch.requests_file import RequestsFile
    from airllm.batch.results_file import ResultsFile
    from airllm.engine.engine import LayerWiseInferenceEngine

SOME_FAILED = 3  # the exit status if every request has a result, but not every result is a success


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `airllm batch`, besides those of the engine."""
    parser.add_argument(
        "--model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="what requests call the model; repeatable; default: MODEL",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-running",
        type=int,
        metavar="N",
        help="sequences that are computed together; default: 16, or 64 if weights are read from disk for "
        "each pass",
    )
    server.add_cache_memory(limits)
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress and no speed")


@contextlib.contextmanager
def open_files(given: argparse.Namespace) -> Iterator[tuple[RequestsFile, ResultsFile]]:
    """The files, checked before a model is opened. Fills in `given.model` from the requests if it is None.
    Raises Refused.
    """
    with require_extra("serve"):
        from airllm.batch.requests_file import BatchFileError, RequestsFile
        from airllm.batch.results_file import ResultsFile
    paths = Path(given.requests), Path(given.results)
    if paths[0].exists() and paths[1].exists() and paths[0].samefile(paths[1]):
        raise Refused(f"REQUESTS and RESULTS are the same file, {paths[0]}")
    try:
        with RequestsFile(paths[0]) as requests:
            _choose_model(given, requests)
            with ResultsFile(paths[1], {each.custom_id for each in requests.requests}) as results:
                yield requests, results
    except BatchFileError as error:
        raise Refused(str(error)) from None


def _choose_model(given: argparse.Namespace, requests: RequestsFile) -> None:
    """What the requests ask for must be the model; else each would get status 404."""
    asked = requests.models
    if given.model is None:
        if len(asked) != 1:
            names = ", ".join(f"{name!r:.100} (line {line})" for name, line in list(asked.items())[:5])
            raise Refused(f"{requests.path} names {names or 'no model'}, expected one model, or give MODEL")
        given.model = next(iter(asked))
    for name, line in asked.items():
        if name not in names_of(given):
            raise Refused(
                f"{requests.path}: line {line} asks for the model {name!r:.100}, and this one is called "
                f"{', '.join(names_of(given))}: --model-name {name:.100} if it is meant"
            )


def names_of(given: argparse.Namespace) -> tuple[str, ...]:
    """What requests may call the model: its names, and MODEL as it was typed."""
    from airllm.files.hub import public_name

    return tuple(dict.fromkeys([*given.model_name, public_name(given.model), given.model]))


def run(
    engine: LayerWiseInferenceEngine,
    requests: RequestsFile,
    results: ResultsFile,
    given: argparse.Namespace,
) -> None:
    """Answer what has no result, and tell the speed."""
    from airllm.batch.run import answer_all, batch_limits
    from airllm.progress import progress, unseen
    from airllm.serving.engine_thread import EngineStopped

    limits = batch_limits(engine, given.max_running, *server.cache_memory_of(given))
    start, before = time.monotonic(), len(results.done)
    showing: Any = contextlib.nullcontext(unseen) if given.quiet else progress("Answering", unit_bytes=False)
    try:
        with showing as advance:
            tokens = answer_all(engine, names_of(given), limits, requests, results, advance)
    except EngineStopped as error:
        raise Refused(f"{error}: the same command goes on") from None
    except KeyboardInterrupt:
        done, total = len(results.done), len(requests.requests)
        print(f"\nairllm: {done} of {total} requests have results: the same command goes on", file=sys.stderr)
        raise
    if not given.quiet:
        seconds, answered = time.monotonic() - start, len(results.done) - before
        speed = f"{tokens} tokens in {seconds:.1f} s, {tokens / max(seconds, 1e-9):.0f} tokens/s"
        print(f"Requests answered: {answered}; {speed}", file=sys.stderr)


def tell_state(results: ResultsFile, quiet: bool) -> int:
    """Say what the whole file has, and return the exit status."""
    if results.failed or not quiet:
        errors = f", {results.failed} of them errors" if results.failed else ""
        print(f"{results.path} has all results: {len(results.done)}{errors}", file=sys.stderr)
    return SOME_FAILED if results.failed else 0
