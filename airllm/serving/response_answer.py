"""The answer of /v1/responses, whole or as events with names."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from airllm.engine.sampling import Sampling
from airllm.serving.chat_reader import ChatReader
from airllm.serving.engine_thread import Stream
from airllm.serving.pieces import Counts, Piece, chat_logprobs
from airllm.serving.protocol.answers import Delta, ToolCallDelta
from airllm.serving.protocol.requests import ResponsesRequest
from airllm.serving.response_output import CallItem, Item, TextItem
from airllm.serving.service import Service, failed_frame
from airllm.serving.transport import named_frame


class ResponseAnswer:
    """The answer to one request. Use `whole` or `frames`, once. A whole answer is its last event."""

    def __init__(self, service: Service, asked: ResponsesRequest, reader: ChatReader, sampling: Sampling):
        self._service, self._asked, self._reader, self._sampling = service, asked, reader, sampling
        self._id, self._created = f"resp_{secrets.token_hex(12)}", int(time.time())
        self._counts = Counts()
        self._items: list[Item] = []
        self._logprobs: list[Any] = []  # of tokens whose text is not final yet
        self._number = 0

    async def whole(self, stream: Stream) -> dict[str, Any]:
        last: dict[str, Any] = {}
        async for events in self._events(stream):
            last = events[-1]
        return last["response"]

    async def frames(self, stream: Stream) -> AsyncIterator[bytes]:
        try:
            async for events in self._events(stream):
                yield b"".join(named_frame(event["type"], event) for event in events)
        except Exception as error:  # the answer has begun: the error is its last event
            error_fields = failed_frame(error)["error"]
            fields = {name: error_fields[name] for name in ("code", "message", "param")}
            yield named_frame("error", self._event("error", **fields))

    async def _events(self, stream: Stream) -> AsyncIterator[list[dict[str, Any]]]:
        """The events of each step."""
        begun = self._response("in_progress")
        yield [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]
        async for pieces in self._service.pieces(stream):
            self._counts.add(pieces)
            for piece in pieces:
                if events := self._piece_events(piece):
                    yield events
                if piece.reason:
                    yield self._end_events(piece)

    def _piece_events(self, piece: Piece) -> list[dict[str, Any]]:
        found = self._reader.read(piece.text, piece.reason)
        if piece.logprobs:
            self._logprobs += chat_logprobs(self._service.tokenizer, piece.logprobs).content
        if found.delta is None:
            return []
        logprobs, self._logprobs = self._logprobs, []
        return self._delta_events(found.delta, logprobs)

    def _delta_events(self, delta: Delta, logprobs: list[Any]) -> list[dict[str, Any]]:
        events = []
        if delta.content:
            events += self._open(TextItem) + self._tell(self._items[-1].add(delta.content, logprobs))
        for call in delta.tool_calls or ():
            events += self._call_events(call)
        return events

    def _call_events(self, call: ToolCallDelta) -> list[dict[str, Any]]:
        function: Any = call.function
        events = self._open(CallItem, function.name, call.id) if function and function.name else []
        if function and function.arguments:
            events += self._tell(self._items[-1].add(function.arguments, []))
        return events

    def _open(self, kind: type[Item], *values: Any) -> list[dict[str, Any]]:
        """Begin an item, unless the text goes on."""
        if kind is TextItem and self._items and isinstance(self._items[-1], TextItem):
            return []
        events = self._close()
        self._items.append(kind(len(self._items), *values))
        return events + self._tell(self._items[-1].opening())

    def _close(self, status: str = "completed") -> list[dict[str, Any]]:
        """End the item that is open."""
        if not self._items or self._items[-1].status != "in_progress":
            return []
        return self._tell(self._items[-1].closing(status))

    def _end_events(self, piece: Piece) -> list[dict[str, Any]]:
        is_cut = piece.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        events = [] if self._items else self._open(TextItem)
        events += self._close(status)
        response = self._response(status)
        return [*events, self._event(f"response.{status}", response=response)]

    def _tell(self, events: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [self._event(name, **fields) for name, fields in events]

    def _event(self, name: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": name, "sequence_number": self._number - 1, **fields}

    def _response(self, status: str) -> dict[str, Any]:
        asked, sampling = self._asked, self._sampling
        ended = status != "in_progress"
        text = (
            {"format": asked.text.format}
            if asked.text and asked.text.format
            else {"format": {"type": "text"}}
        )
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self._service.name,
            "output": [item.value() for item in self._items] if ended else [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": asked.reasoning.effort if asked.reasoning else None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": sampling.temperature,
            "text": text,
            "tool_choice": asked.tool_choice or "auto",
            "tools": [{"strict": None, "parameters": None, **tool} for tool in asked.tools or ()],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "user": asked.user,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._counts.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.prompt_tokens_details.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        }
