"""POST /v1/responses: the same answers as chat/completions, in another shape. Nothing is stored."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.types import ASGIApp

from airllm.serving.chat_plan import plan_chat
from airllm.serving.protocol.errors import unsupported
from airllm.serving.protocol.requests import ChatRequest, ResponsesRequest, SamplingFields
from airllm.serving.protocol.response_items import (
    chat_response_format,
    chat_tool_choice,
    chat_tools,
    messages_of,
)
from airllm.serving.response_answer import ResponseAnswer
from airllm.serving.service import Service, key_of, service_of
from airllm.serving.transport import Answer, EventStream, Json

_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (_LOGPROBS, "reasoning.encrypted_content")


async def responses(request: Request) -> ASGIApp:
    service = service_of(request)
    asked = await service.read(request, ResponsesRequest)
    return Answer(partial(_answer, service, asked, _as_chat(asked), key_of(request)))


def _as_chat(asked: ResponsesRequest) -> ChatRequest:
    """The same request for chat/completions."""
    for i, name in enumerate(asked.include or ()):
        if name not in _INCLUDED:
            place = f"include[{i}]"
            raise unsupported(f"'{place}' has {name!r}, expected one of {', '.join(_INCLUDED)}.", place)
    with_logprobs = _LOGPROBS in (asked.include or ()) or bool(asked.top_logprobs)
    return ChatRequest(
        **{name: getattr(asked, name) for name in SamplingFields.__struct_fields__},
        messages=messages_of(asked.input, asked.instructions),
        max_completion_tokens=asked.max_output_tokens,
        logprobs=with_logprobs,
        top_logprobs=asked.top_logprobs if with_logprobs else None,
        response_format=chat_response_format(asked.text.format if asked.text else None),
        tools=chat_tools(asked.tools),
        tool_choice=chat_tool_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
        chat_template_kwargs=asked.chat_template_kwargs,
        cache_salt=asked.cache_salt,
    )


async def _answer(service: Service, asked: ResponsesRequest, chat: ChatRequest, key: str) -> ASGIApp:
    plan = await plan_chat(service, chat, key)
    stream = await service.begin(plan.sequences)
    answer = ResponseAnswer(service, asked, plan.readers[0], plan.sequences[0].request.sampling)
    if asked.stream:
        return EventStream(answer.frames(stream), stream.close, service.options)
    async with stream:
        return Json(await answer.whole(stream))
