"""Models under Ray: rows of a data set through `map_batches`, and the server's app under Ray Serve.

    import ray
    from airllm.ray import Generate

    rows = ray.data.read_json("questions.jsonl")  # with a column `messages`, or `prompt`
    rows.map_batches(
        Generate,
        fn_constructor_kwargs={"model": "smollm2", "request": {"max_tokens": 100, "temperature": 0}},
        batch_size=64, num_cpus=4, compute=ray.data.ActorPoolStrategy(size=2),
    ).write_parquet("answers")

The extra `ray` installs Ray. `Generate` does without: it is a function of columns.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.scheduling.requests import Limits
from airllm.extras import require_extra
from airllm.files.hub import locate, public_name

with require_extra("serve"):
    import msgspec

    from airllm.batch.run import batch_app, batch_limits
    from airllm.serving.app import App, build_app
    from airllm.serving.in_process import InProcessClient
    from airllm.serving.options import Options

_URLS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}
Result = TypeVar("Result")
Columns = Mapping[str, Sequence[Any] | np.ndarray]


class Generate:
    """Answers rows: a callable class for `map_batches`, which opens the model once in each actor.

    A batch has a column `messages` (conversations) or `prompt` (texts, or lists of tokens). `request` has the
    other fields of each request, as for the server; `row_fields` names columns that are fields of a row's
    own, such as `seed`. `engine` has options of the engine; its `threads` are the CPUs that Ray gave the
    actor, unless they are named. `max_running` sequences are computed together.

    All rows of a batch, and of batches in other threads, share each pass over the weights. Use a batch size
    of several times `max_running`. A text does not depend on the rows beside it. Close it, or use `with`, if
    the process goes on without it.
    """

    def __init__(
        self,
        model: str,
        request: Mapping[str, Any] | None = None,
        row_fields: Iterable[str] = (),
        engine: Mapping[str, Any] | None = None,
        max_running: int | None = None,
    ):
        self._request, self._row_fields = dict(request or {}), tuple(row_fields)
        self._engine = _open(model, engine)
        self._client = InProcessClient(
            batch_app(self._engine, (model,), batch_limits(self._engine, max_running))
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="airllm-requests", daemon=True)
        self._thread.start()
        self._run(self._client.__aenter__())

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """The batch with more columns: `text`, `finish_reason`, `prompt_tokens`, `completion_tokens`,
        `response` (the whole answer, as JSON) and `error`. A row that is refused has an `error`, and no text.
        Raises ValueError for a batch without the columns that are needed, RuntimeError if the engine fails.
        """
        column = next((name for name in _URLS if name in batch), None)
        missing = [name for name in self._row_fields if name not in batch]
        if column is None or missing:
            expected = ", ".join(missing) if missing else "messages, or prompt"
            raise ValueError(f"the batch has the columns {', '.join(batch)}, expected {expected}")
        bodies = [self._body(batch, column, i) for i in range(len(batch[column]))]
        answers = self._run(_post_all(self._client, _URLS[column], bodies))
        return {**batch, **_columns(answers)}

    def _body(self, batch: Columns, column: str, i: int) -> bytes:
        own = {name: _plain(batch[name][i]) for name in (column, *self._row_fields)}
        return msgspec.json.encode({**self._request, **{k: v for k, v in own.items() if v is not None}})

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the threads and close the model."""
        if self._thread.is_alive():
            self._run(self._client.__aexit__(None, None, None))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._engine.close()

    def __enter__(self) -> Generate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serving_app(
    model: str,
    options: Options | None = None,
    limits: Limits | None = None,
    engine: Mapping[str, Any] | None = None,
    **deployment: Any,
) -> Any:
    """The server's app as an application for `serve.run`. `deployment` are options of `serve.deployment`,
    such as `num_replicas=2, ray_actor_options={"num_cpus": 4}`; each replica opens the model.

    Ray's proxy is what clients reach. `options.hosts` must have the names by which they call it.
    """
    with require_extra("ray"):
        from ray import serve
    given, most = options or Options(names=(public_name(model),)), limits or Limits()
    chosen = {"name": "airllm", "max_ongoing_requests": most.max_running + most.max_waiting, **deployment}

    def build() -> App:
        return build_app(_open(model, engine), given, most)

    return serve.deployment(serve.ingress(build)(), **chosen).bind()


def _open(model: str, engine: Mapping[str, Any] | None) -> LayerWiseInferenceEngine:
    return LayerWiseInferenceEngine(locate(model), **{"threads": _assigned_cpus(), **(engine or {})})


def _assigned_cpus() -> int | None:
    """The CPUs of this actor of Ray; None outside of one. Ray does not keep an actor from using more."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU")
    return max(int(cpus), 1) if cpus else None


async def _post_all(client: InProcessClient, url: str, bodies: list[bytes]) -> list[tuple[int, bytes]]:
    answers = await asyncio.gather(*(client.post(url, body) for body in bodies))
    failed = next((answer for status, answer in answers if status >= 500), None)
    if failed is not None:  # not the rows' fault: no answer is made of it
        raise RuntimeError(msgspec.json.decode(failed)["error"]["message"])
    return answers


def _columns(answers: list[tuple[int, bytes]]) -> dict[str, np.ndarray]:
    bodies = [msgspec.json.decode(answer) for _, answer in answers]
    choices = [body.get("choices", [{}])[0] for body in bodies]
    texts = [each.get("text", each.get("message", {}).get("content")) for each in choices]
    counts = [body.get("usage", {}) for body in bodies]
    return {
        "text": np.array(texts, object),
        "finish_reason": np.array([each.get("finish_reason") for each in choices], object),
        "prompt_tokens": np.array([each.get("prompt_tokens", 0) for each in counts], np.int64),
        "completion_tokens": np.array([each.get("completion_tokens", 0) for each in counts], np.int64),
        "response": np.array([answer.decode() for _, answer in answers], object),
        "error": np.array([body.get("error", {}).get("message") for body in bodies], object),
    }


def _plain(value: Any) -> Any:
    """A value of a column as JSON has it. Arrow gives each message the fields of all of them, as None."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and value != value else value
