"""What a chat needs: the tokens of its prompt, its sequences, and the readers of their texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from airllm.engine.request import Request
from airllm.engine.scheduling.requests import SequenceRequest
from airllm.serving.chat_reader import ChatReader, PlainReader
from airllm.serving.protocol.requests import ChatRequest
from airllm.serving.sequences import ends_later, salt_of, sampling_of
from airllm.serving.service import Service


@dataclass(frozen=True)
class ChatPlan:
    """One sequence and one reader for each choice."""

    tokens: list[int]
    sequences: list[SequenceRequest]
    readers: list[ChatReader]


async def plan_chat(service: Service, asked: ChatRequest, key: str) -> ChatPlan:
    """Everything of a request that may take long or fail. Raises ApiError."""
    tokens = await service.prompts.call(partial(_encode, service, asked))
    count = asked.n or 1
    sequences = [_sequence(service, asked, key, tokens, i) for i in range(count)]
    return ChatPlan(tokens, sequences, [PlainReader() for _ in range(count)])


def _encode(service: Service, asked: ChatRequest) -> list[int]:
    variables = dict(asked.chat_template_kwargs or {})
    if asked.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", asked.reasoning_effort)
    return service.prompts.encode_chat(
        asked.messages,
        asked.tools,
        variables,
        add_generation_prompt=asked.add_generation_prompt is not False,
        continue_final=bool(asked.continue_final_message),
    )


def _sequence(service: Service, asked: ChatRequest, key: str, tokens: list[int], i: int) -> SequenceRequest:
    """The sequence of choice `i`."""
    sampling = sampling_of(asked, service.recommended, len(service.tokenizer), i)
    most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    return SequenceRequest(
        tokens,
        Request(most, tuple(asked.stops), sampling),
        constraint=ends_later(asked, service.tokenizer, None),
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        deadline=service.deadline,
        salt=salt_of(key, asked),
    )
