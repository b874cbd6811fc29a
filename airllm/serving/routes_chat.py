"""POST /v1/chat/completions"""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.types import ASGIApp

from airllm.serving.chat_answer import ChatAnswer
from airllm.serving.chat_plan import plan_chat
from airllm.serving.protocol.errors import invalid
from airllm.serving.protocol.requests import ChatRequest
from airllm.serving.service import Service, key_of, service_of
from airllm.serving.transport import Answer, EventStream, Json


async def chat_completions(request: Request) -> ASGIApp:
    service = service_of(request)
    asked = await service.read(request, ChatRequest)
    _check(asked)
    return Answer(partial(_answer, service, asked, key_of(request)))


def _check(asked: ChatRequest) -> None:
    if asked.top_logprobs and not asked.logprobs:
        raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    if asked.stream_options is not None and not asked.stream:
        raise invalid("'stream_options' needs 'stream' to be true.", "stream_options")
    if asked.continue_final_message and asked.add_generation_prompt:
        message = "'continue_final_message' and 'add_generation_prompt' cannot both be true."
        raise invalid(message, "continue_final_message")


async def _answer(service: Service, asked: ChatRequest, key: str) -> ASGIApp:
    plan = await plan_chat(service, asked, key)
    answer = ChatAnswer(service, asked, plan)
    stream = await service.begin(plan.sequences)
    if asked.stream:
        return EventStream(answer.frames(stream), stream.close, service.options)
    async with stream:
        return Json(await answer.whole(stream))
