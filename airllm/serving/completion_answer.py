"""The answer of completions, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import UNSET

from airllm.engine.sampling import TokenLogprob
from airllm.serving.engine_thread import Stream
from airllm.serving.pieces import Counts, Piece, completion_logprobs
from airllm.serving.protocol.answers import Completion, CompletionChoice, CompletionLogprobs
from airllm.serving.protocol.requests import CompletionRequest
from airllm.serving.service import Service, failed_frame
from airllm.serving.transport import DONE, frame


@dataclass(frozen=True)
class CompletionPrompt:
    """A prompt's tokens, and the text that `echo` returns."""

    tokens: list[int]
    text: str


class CompletionAnswer:
    """The answer to one request. Use `whole` or `frames`, once."""

    def __init__(self, service: Service, asked: CompletionRequest, prompts: Sequence[CompletionPrompt]):
        self._service, self._asked = service, asked
        self._choices = [
            _Choice(service, asked, i * (asked.n or 1) + k, prompt)
            for i, prompt in enumerate(prompts)
            for k in range(asked.n or 1)
        ]
        self._head = service.head("cmpl-")
        self._counts = Counts(len(prompts))
        self._with_timings = asked.timings is not False
        self._with_usage = bool(asked.stream_options and asked.stream_options.include_usage)

    async def whole(self, stream: Stream) -> Completion:
        drafts: list[list[CompletionChoice]] = [[] for _ in self._choices]
        async for pieces in self._pieces(stream):
            for piece in pieces:
                drafts[piece.index].append(self._choices[piece.index].read(piece))
        timings: Any = self._counts.timings if self._with_timings else UNSET
        return Completion(
            **self._head, choices=[_join(each) for each in drafts], usage=self._counts.usage, timings=timings
        )

    async def frames(self, stream: Stream) -> AsyncIterator[bytes]:
        """The events of a stream. What one step of the engine added comes as one text."""
        try:
            async for pieces in self._pieces(stream):
                found = [self._choices[piece.index].read(piece) for piece in pieces]
                if frames := b"".join(frame(self._chunk([each])) for each in found if _tells(each)):
                    yield frames
            yield self._last_frames()
        except Exception as error:  # the answer has begun: the error is its last event
            yield frame(failed_frame(error))

    async def _pieces(self, stream: Stream) -> AsyncIterator[list[Piece]]:
        """The pieces, without the token that had to be generated for a request of none."""
        async for pieces in self._service.pieces(stream):
            if self._asked.max_tokens == 0:
                pieces = [_without_text(piece) for piece in pieces]
            self._counts.add(pieces)
            yield pieces

    def _last_frames(self) -> bytes:
        timings: Any = self._counts.timings if self._with_timings else UNSET
        if not self._with_usage:
            return DONE
        return frame(self._chunk([], usage=self._counts.usage, timings=timings)) + DONE

    def _chunk(self, choices: list[CompletionChoice], **more: Any) -> Completion:
        if self._with_usage:
            more.setdefault("usage", None)
        return Completion(**self._head, choices=choices, **more)


def _without_text(piece: Piece) -> Piece:
    statistics = replace(piece.statistics, new_tokens=0)
    reason = "length" if piece.reason else ""
    return replace(piece, text="", tokens=[], logprobs=[], reason=reason, statistics=statistics)


def _tells(choice: CompletionChoice) -> bool:
    return bool(choice.text or choice.logprobs or choice.finish_reason or choice.token_ids)


class _Choice:
    """Reads the pieces of one choice. The first has the prompt, if it is to be echoed."""

    def __init__(self, service: Service, asked: CompletionRequest, index: int, prompt: CompletionPrompt):
        self._tokenizer, self._asked, self._index, self._prompt = service.tokenizer, asked, index, prompt
        self._is_first = True
        self._offset = 0 if asked.echo else len(prompt.text)

    def read(self, piece: Piece) -> CompletionChoice:
        is_first, self._is_first = self._is_first, False
        echoed = is_first and bool(self._asked.echo)
        text = (self._prompt.text if echoed else "") + piece.text
        with_ids = self._asked.return_token_ids
        return CompletionChoice(
            self._index,
            text,
            self._logprobs(piece, echoed),
            piece.finish_reason,
            piece.tokens if with_ids else UNSET,
            self._prompt.tokens if with_ids and is_first else UNSET,
        )

    def _logprobs(self, piece: Piece, echoed: bool) -> CompletionLogprobs | None:
        if self._asked.logprobs is None:
            return None
        tokens = (self._prompt.tokens if echoed else []) + piece.tokens
        found: list[TokenLogprob | None] = [*(piece.prompt_logprobs if echoed else ()), *piece.logprobs]
        made, self._offset = completion_logprobs(self._tokenizer, found, tokens, self._offset)
        return made if tokens else None


def _join(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    """The choice that the parts of a stream add up to."""
    first, last = parts[0], parts[-1]
    ids: Any = UNSET
    if first.token_ids is not UNSET:
        ids = [token for part in parts for token in part.token_ids or ()]
    text = "".join(part.text for part in parts)
    logprobs = _join_logprobs([part.logprobs for part in parts if part.logprobs])
    return CompletionChoice(first.index, text, logprobs, last.finish_reason, ids, first.prompt_token_ids)


def _join_logprobs(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs | None:
    if not parts:
        return None
    names = CompletionLogprobs.__struct_fields__
    return CompletionLogprobs(*([each for part in parts for each in getattr(part, name)] for name in names))
