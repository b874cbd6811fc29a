"""POST /v1/embeddings"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.types import ASGIApp

from airllm.architectures.pooling import unit
from airllm.serving.protocol.answers import Embedding, Embeddings, EmbeddingsUsage
from airllm.serving.protocol.errors import invalid
from airllm.serving.protocol.requests import EmbeddingsRequest
from airllm.serving.service import Service, service_of
from airllm.serving.transport import Json

_MOST = 2048  # texts of a request, as OpenAI allows
_TOGETHER = 1024  # tokens that an encoder computes in one call


async def embeddings(request: Request) -> ASGIApp:
    """The vectors of texts. Answers that run go on between two of them, those of other requests between the
    calls of an encoder.
    """
    service = service_of(request)
    asked = await service.read(request, EmbeddingsRequest)
    _check(service, asked)
    batch = await service.prompts.call(partial(_tokens, service, asked))
    vectors: list[np.ndarray] = []
    for some in _parts(batch, _TOGETHER if service.engine.config.encoding else 0):
        vectors += list(await service.thread.run(partial(service.engine.embed_tokens, some)))
    data = [Embedding(_written(each, asked), i) for i, each in enumerate(vectors)]
    count = sum(map(len, batch))
    return Json(Embeddings(data, service.name, EmbeddingsUsage(count, count)))


def _check(service: Service, asked: EmbeddingsRequest) -> None:
    if service.engine.pooling is None:
        does = "generates text and has no embeddings"
        message = f"The model `{service.name}` {does if service.engine.generates else 'names no pooling'}."
        raise invalid(message, "model", "model_has_no_embeddings")
    width = service.engine.embedder.width
    if asked.dimensions is not None and asked.dimensions > width:
        message = f"'dimensions' is {asked.dimensions}, expected at most the model's {width}."
        raise invalid(message, "dimensions")


def _parts(batch: list[list[int]], most: int) -> Iterator[list[list[int]]]:
    """Runs of texts of at most `most` tokens together, or one text each."""
    some: list[list[int]] = []
    for tokens in batch:
        if some and sum(map(len, some)) + len(tokens) > most:
            yield some
            some = []
        some.append(tokens)
    yield some


def _tokens(service: Service, asked: EmbeddingsRequest) -> list[list[int]]:
    """The tokens of each text: a text, tokens, or a list of either."""
    given = asked.input
    try:
        prompt = service.engine.pooling.prompt(asked.prompt_name) if service.engine.pooling else ""
    except ValueError as error:
        raise invalid(f"{error}.", "prompt_name") from None
    single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    texts = [given] if single else given
    if not 0 < len(texts) <= _MOST:
        raise invalid(f"'input' has {len(texts)} texts, expected 1 to {_MOST}.", "input")
    names = ["input"] if single else [f"input[{i}]" for i in range(len(texts))]
    truncate = _truncation(service, asked)
    return [_tokens_of(service, prompt, truncate, *each) for each in zip(texts, names, strict=True)]


def _truncation(service: Service, asked: EmbeddingsRequest) -> bool | int:
    """What `engine.embed` calls `truncate`."""
    most = asked.truncate_prompt_tokens
    if most is None:
        return bool(asked.truncate)
    if asked.truncate is False:
        raise invalid("'truncate' is false beside 'truncate_prompt_tokens'.", "truncate")
    if most == -1:
        return True
    try:
        service.engine.truncate_tokens([], most)
    except ValueError as error:
        raise invalid(f"{error}.", "truncate_prompt_tokens") from None
    return most


def _tokens_of(service: Service, prompt: str, truncate: bool | int, text: Any, param: str) -> list[int]:
    if isinstance(text, list):
        tokens = text
    elif isinstance(text, str):
        closing = service.tokenizer.closing_id
        tokens = service.prompts.encode(prompt + text, param) + ([] if closing is None else [closing])
    else:
        raise invalid(f"'{param}' is {text!r:.100}, expected a text or a list of tokens.", param)
    return service.prompts.check_tokens(service.engine.truncate_tokens(tokens, truncate), param)


def _written(vector: np.ndarray, asked: EmbeddingsRequest) -> list[float] | str:
    if asked.dimensions is not None:  # the first values of such a vector are one too
        vector = unit(vector[: asked.dimensions]).astype(np.float32)
    if asked.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
