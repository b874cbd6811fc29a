"""The answer of chat/completions, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import UNSET

from airllm.serving.chat_plan import ChatPlan
from airllm.serving.chat_reader import MessageDraft, Read
from airllm.serving.engine_thread import Stream
from airllm.serving.pieces import Counts, Piece, chat_logprobs
from airllm.serving.protocol.answers import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    ChunkChoice,
    Delta,
)
from airllm.serving.protocol.requests import ChatRequest
from airllm.serving.service import Service, failed_frame
from airllm.serving.transport import DONE, frame


class ChatAnswer:
    """The answer to one request. Use `whole` or `frames`, once."""

    def __init__(self, service: Service, asked: ChatRequest, plan: ChatPlan):
        self._service, self._asked, self._readers = service, asked, plan.readers
        self._head = service.head("chatcmpl-")
        self._counts = Counts()
        self._prompt_ids: Any = plan.tokens if asked.return_token_ids else UNSET
        self._with_timings = asked.timings is not False
        self._with_usage = bool(asked.stream_options and asked.stream_options.include_usage)

    async def whole(self, stream: Stream) -> ChatCompletion:
        drafts = [_ChoiceDraft(i, self._asked) for i in range(len(self._readers))]
        async for pieces in self._service.pieces(stream):
            self._counts.add(pieces)
            for piece in pieces:
                drafts[piece.index].add(piece, self._read(piece), self._logprobs(piece))
        return ChatCompletion(
            **self._head,
            choices=[draft.choice for draft in drafts],
            usage=self._counts.usage,
            timings=self._counts.timings if self._with_timings else UNSET,
            prompt_token_ids=self._prompt_ids,
        )

    async def frames(self, stream: Stream) -> AsyncIterator[bytes]:
        """The events of a stream. What one step of the engine added comes as one text."""
        try:
            yield b"".join(self._first_frames())
            async for pieces in self._service.pieces(stream):
                self._counts.add(pieces)
                if frames := b"".join(self._piece_frames(pieces, stream.is_done)):
                    yield frames
            yield self._last_frames()
        except Exception as error:  # the answer has begun: the error is its last event
            yield frame(failed_frame(error))

    def _read(self, piece: Piece) -> Read:
        return self._readers[piece.index].read(piece.text, piece.reason)

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if not self._asked.logprobs or not piece.logprobs:
            return None
        return chat_logprobs(self._service.tokenizer, piece.logprobs)

    def _first_frames(self) -> list[bytes]:
        begin = Delta(role="assistant", content="")
        choices = [ChunkChoice(i, begin) for i in range(len(self._readers))]
        return [frame(self._chunk([each], prompt_token_ids=self._prompt_ids)) for each in choices]

    def _piece_frames(self, pieces: Sequence[Piece], is_done: bool) -> list[bytes]:
        frames = []
        for piece in pieces:
            found = self._read(piece)
            frames += self._text_frames(piece, found)
            if piece.reason:
                frames.append(self._end_frame(piece, found, is_done and piece is pieces[-1]))
        return frames

    def _text_frames(self, piece: Piece, found: Read) -> list[bytes]:
        """The event with a piece's text; none if a piece has nothing to tell yet."""
        logprobs = self._logprobs(piece)
        ids: Any = piece.tokens if self._asked.return_token_ids and piece.tokens else UNSET
        if found.delta is None and logprobs is None and ids is UNSET:
            return []
        delta = found.delta or Delta(content="")
        return [frame(self._chunk([ChunkChoice(piece.index, delta, logprobs, token_ids=ids)]))]

    def _end_frame(self, piece: Piece, found: Read, is_last: bool) -> bytes:
        choice = ChunkChoice(piece.index, Delta(), None, found.finish_reason or piece.finish_reason)
        timings: Any = self._counts.timings if is_last and self._with_timings else UNSET
        return frame(self._chunk([choice], timings=timings))

    def _last_frames(self) -> bytes:
        if not self._with_usage:
            return DONE
        return frame(self._chunk([], usage=self._counts.usage)) + DONE

    def _chunk(self, choices: list[ChunkChoice], **more: Any) -> ChatChunk:
        if self._with_usage:
            more.setdefault("usage", None)
        return ChatChunk(**self._head, choices=choices, **more)


class _ChoiceDraft:
    """A choice of a whole answer, as its pieces come."""

    def __init__(self, index: int, asked: ChatRequest):
        self._index, self._asked = index, asked
        self._message = MessageDraft()
        self._tokens: list[int] = []
        self._logprobs: list[ChatLogprob] = []
        self._finish_reason = ""

    def add(self, piece: Piece, found: Read, logprobs: ChatLogprobs | None) -> None:
        self._message.add(found.delta)
        self._tokens += piece.tokens
        self._logprobs += logprobs.content if logprobs else ()
        if piece.reason:
            self._finish_reason = found.finish_reason or piece.finish_reason or ""

    @property
    def choice(self) -> ChatChoice:
        logprobs = ChatLogprobs(self._logprobs) if self._asked.logprobs else None
        ids: Any = self._tokens if self._asked.return_token_ids else UNSET
        return ChatChoice(self._index, self._message.message, logprobs, self._finish_reason, ids)
