"""POST /v1/completions"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from airllm.engine.constraint import Constraint
from airllm.engine.request import Request as TextRequest
from airllm.engine.scheduling.requests import SequenceRequest
from airllm.serving.completion_answer import CompletionAnswer, CompletionPrompt
from airllm.serving.protocol.errors import invalid
from airllm.serving.protocol.requests import MOST_CHOICES, MOST_PROMPTS, CompletionRequest
from airllm.serving.sequences import ends_later, salt_of, sampling_of
from airllm.serving.service import Service, key_of, service_of
from airllm.serving.structure import constraint_of
from airllm.serving.transport import Answer, EventStream, Json

_MOST_TOKENS = 16  # OpenAI's default


async def completions(request: Request) -> ASGIApp:
    service = service_of(request)
    asked = await service.read(request, CompletionRequest)
    _check(asked)
    return Answer(partial(_answer, service, asked, key_of(request)))


def _check(asked: CompletionRequest) -> None:
    if asked.stream_options is not None and not asked.stream:
        raise invalid("'stream_options' needs 'stream' to be true.", "stream_options")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise invalid("'best_of' is not supported, unless it is the value of 'n'.", "best_of")
    if asked.max_tokens == 0 and not asked.echo:
        raise invalid("'max_tokens' is 0, which needs 'echo' to be true.", "max_tokens")


async def _answer(service: Service, asked: CompletionRequest, key: str) -> ASGIApp:
    prompts = await service.prompts.call(partial(_encode, service, asked))
    new_constraint = await service.prompts.call(partial(constraint_of, service.prompts, asked))
    answer = CompletionAnswer(service, asked, prompts)
    count = asked.n or 1
    stream = await service.begin(
        [
            _sequence(service, asked, key, prompt.tokens, new_constraint and new_constraint(), i)
            for prompt in prompts
            for i in range(count)
        ]
    )
    if asked.stream:
        return EventStream(answer.frames(stream), stream.close, service.options)
    async with stream:
        return Json(await answer.whole(stream))


def _encode(service: Service, asked: CompletionRequest) -> list[CompletionPrompt]:
    """The prompts: a text, tokens, or a list of those."""
    given = asked.prompt
    if isinstance(given, str) or (given and type(given[0]) is int):
        return [_encode_one(service, asked, given, "prompt")]
    most = min(MOST_PROMPTS, MOST_PROMPTS * MOST_CHOICES // (asked.n or 1))
    if not 0 < len(given) <= most:
        raise invalid(f"'prompt' has {len(given)} items, expected 1 to {most}.", "prompt")
    return [_encode_one(service, asked, each, f"prompt[{i}]") for i, each in enumerate(given)]


def _encode_one(service: Service, asked: CompletionRequest, given: Any, param: str) -> CompletionPrompt:
    prompts = service.prompts
    if isinstance(given, str):
        return CompletionPrompt(prompts.encode_prompt(given, param, asked.add_special_tokens), given)
    if not isinstance(given, list):
        raise invalid(
            f"'{param}' has type {type(given).__name__}, expected a text or a list of tokens.", param
        )
    tokens = prompts.check_tokens(given, param)
    return CompletionPrompt(tokens, service.tokenizer.decode(tokens, special=True))


def _sequence(
    service: Service,
    asked: CompletionRequest,
    key: str,
    tokens: list[int],
    constraint: Constraint | None,
    i: int,
) -> SequenceRequest:
    sampling = sampling_of(asked, service.recommended, len(service.tokenizer), i)
    most = _MOST_TOKENS if asked.max_tokens is None else max(asked.max_tokens, 1)
    return SequenceRequest(
        tokens,
        TextRequest(most, tuple(asked.stops), sampling),
        constraint=ends_later(asked, service.tokenizer, constraint),
        logprobs=asked.logprobs,
        prompt_logprobs=asked.logprobs if asked.echo else None,
        deadline=service.deadline,
        salt=salt_of(key, asked),
    )
