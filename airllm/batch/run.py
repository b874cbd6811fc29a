"""Answers the requests of a file that have no result yet, many at once."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from collections.abc import Iterable

import msgspec
from msgspec import Raw

from airllm.batch.requests_file import BatchRequest, RequestsFile
from airllm.batch.results_file import Response, Result, ResultsFile
from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.scheduling.requests import Limits
from airllm.progress import OnProgress, unseen
from airllm.serving.app import App, build_app
from airllm.serving.engine_thread import EngineStopped
from airllm.serving.in_process import InProcessClient
from airllm.serving.options import Options

_EVERYTHING = 1 << 30  # as a limit: none
_AHEAD = 2  # times as many requests as run are prepared, so that a pass has prompts to join
RUNNING = 16  # sequences together, of a model in memory
RUNNING_FROM_DISK = 64  # of one that is read again for each pass: more of them cost hardly more


def batch_app(engine: LayerWiseInferenceEngine, names: tuple[str, ...], limits: Limits) -> App:
    """The server's app, for requests that nobody waits for: no deadline, no queue's end."""
    options = Options(names=names, request_timeout=math.inf, most_requests=_EVERYTHING, page=False)
    return build_app(engine, options, limits)


def batch_limits(
    engine: LayerWiseInferenceEngine,
    max_running: int | None = None,
    cache_bytes: int | None = None,
    prefix_bytes: int | None = None,
) -> Limits:
    """Limits for the most tokens a second. `max_running`: None for what fits how the model is stored. Pieces
    of prompts are as long as they can be, because no reader waits for the next word.
    """
    whole = engine.model.residency.whole
    running = (RUNNING if whole else RUNNING_FROM_DISK) if max_running is None else max_running
    return Limits(running, _EVERYTHING, cache_bytes, prefix_bytes, piece_seconds=math.inf)


def answer_all(
    engine: LayerWiseInferenceEngine,
    names: tuple[str, ...],
    limits: Limits,
    requests: RequestsFile,
    results: ResultsFile,
    on_progress: OnProgress = unseen,
) -> int:
    """Append a result for each request without one, and return how many tokens were generated. `names`: what
    requests may call the model. `on_progress` counts results, old ones too. Raises OSError if they cannot be
    written, EngineStopped if requests got no answer; what was appended stays.
    """
    app = batch_app(engine, names, limits)
    return asyncio.run(_answer_all(app, _AHEAD * limits.max_running, requests, results, on_progress))


async def _answer_all(
    app: App, together: int, requests: RequestsFile, results: ResultsFile, on_progress: OnProgress
) -> int:
    total = len(requests.requests)
    left = (each for each in requests.requests if each.custom_id not in results.done)
    pending: set[asyncio.Task[Result | str]] = set()
    on_progress(len(results.done), total)
    unanswered: list[str] = []
    async with InProcessClient(app) as client:
        try:
            while True:
                pending |= _start(client, requests, itertools.islice(left, together - len(pending)))
                if not pending:
                    break
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                found = [task.result() for task in done]
                results.append([each for each in found if isinstance(each, Result)])
                unanswered += [each for each in found if isinstance(each, str)]
                on_progress(len(results.done), total)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
    if unanswered:
        raise EngineStopped(f"{len(unanswered)} requests got no answer ({unanswered[0]})")
    return app.service.thread.load.counters.new_tokens


def _start(
    client: InProcessClient, requests: RequestsFile, some: Iterable[BatchRequest]
) -> set[asyncio.Task[Result | str]]:
    return {asyncio.create_task(_answer(client, each, requests.body(each))) for each in some}


async def _answer(client: InProcessClient, request: BatchRequest, body: bytes) -> Result | str:
    """The result; or the message of a failure that says nothing of the request: another run may answer it."""
    status, answer = await client.post(request.url, body)
    if status >= 500:
        return msgspec.json.decode(answer)["error"]["message"]
    response = Response(status, f"req_{secrets.token_hex(16)}", Raw(answer))
    return Result(f"batch_req_{secrets.token_hex(16)}", request.custom_id, response)
