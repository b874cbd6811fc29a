"""What a chat needs: the tokens of its prompt, its sequences, and the readers of their texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from airllm.engine.constraint import NewConstraint
from airllm.engine.request import Request
from airllm.engine.scheduling.requests import SequenceRequest
from airllm.serving.chat_reader import ChatReader
from airllm.serving.protocol.errors import invalid
from airllm.serving.protocol.requests import ChatRequest
from airllm.serving.sequences import ends_later, salt_of, sampling_of
from airllm.serving.service import Service
from airllm.serving.structure import other_constraint, response_format_of
from airllm.text.answers import Reader


@dataclass(frozen=True)
class ChatPlan:
    """One sequence and one reader for each choice."""

    tokens: list[int]
    sequences: list[SequenceRequest]
    readers: list[ChatReader]


@dataclass(frozen=True)
class _Prepared:
    """What all choices have in common."""

    tokens: list[int]
    new_constraint: NewConstraint | None
    shown_tokens: frozenset[int]
    new_reader: Callable[[], Reader]


async def plan_chat(service: Service, asked: ChatRequest, key: str) -> ChatPlan:
    """Everything of a request that may take long or fail. Raises ApiError."""
    prepared = await service.prompts.call(partial(_prepare, service, asked))
    count = asked.n or 1
    sequences = [_sequence(service, asked, key, prepared, i) for i in range(count)]
    return ChatPlan(prepared.tokens, sequences, [ChatReader(prepared.new_reader()) for _ in range(count)])


def _prepare(service: Service, asked: ChatRequest) -> _Prepared:
    variables = dict(asked.chat_template_kwargs or {})
    if asked.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", asked.reasoning_effort)
    plan = service.prompts.plan(
        asked.messages,
        variables,
        add_generation_prompt=asked.add_generation_prompt is not False,
        continue_final=bool(asked.continue_final_message),
        tools=asked.tools,
        tool_choice=("auto" if asked.tools else "none") if asked.tool_choice is None else asked.tool_choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        response_format=response_format_of(asked),
    )
    other = other_constraint(service.prompts, asked)
    if other is not None and asked.tools:
        raise invalid("'structured_outputs' and 'tools' exclude each other.", "structured_outputs")
    constraint = other or plan.new_constraint
    return _Prepared(service.prompts.encode_plan(plan), constraint, plan.shown_tokens, plan.new_reader)


def _sequence(service: Service, asked: ChatRequest, key: str, prepared: _Prepared, i: int) -> SequenceRequest:
    """The sequence of choice `i`."""
    sampling = sampling_of(asked, service.recommended, len(service.tokenizer), i)
    most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    wanted = Request(most, tuple(asked.stops), sampling, shown_tokens=prepared.shown_tokens)
    inner = prepared.new_constraint() if prepared.new_constraint else None
    return SequenceRequest(
        prepared.tokens,
        wanted,
        constraint=ends_later(asked, service.tokenizer, inner),
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        deadline=service.deadline,
        salt=salt_of(key, asked),
    )
