"""What steps added to a choice; and what its tokens, counts and times look like in an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airllm.engine.request import CONTEXT, END, LENGTH, STOP, Statistics
from airllm.engine.sampling import TokenLogprob
from airllm.engine.scheduling.requests import Event
from airllm.serving.protocol.answers import (
    ChatLogprob,
    ChatLogprobs,
    CompletionDetails,
    CompletionLogprobs,
    PromptDetails,
    Timings,
    TopLogprob,
    Usage,
)
from airllm.serving.protocol.errors import ApiError, deadline_passed, server_error
from airllm.text.tokenizer import Tokenizer

FINISH = {END: "stop", STOP: "stop", LENGTH: "length", CONTEXT: "length"}


@dataclass
class Piece:
    """The events of one choice, joined."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob | None]
    reason: str
    statistics: Statistics

    @property
    def finish_reason(self) -> str | None:
        return FINISH[self.reason] if self.reason else None


def join(events: Iterable[tuple[int, Event]], timeout: float) -> list[Piece]:
    """One piece for each choice that has events. Raises ApiError for a choice that failed."""
    pieces: dict[int, Piece] = {}
    for index, event in events:
        if event.reason and event.reason not in FINISH:
            raise _failure(event, timeout)
        piece = pieces.get(index)
        if piece is None:
            piece = pieces[index] = Piece(index, "", [], [], [], "", event.statistics)
        piece.text += event.text
        piece.tokens += event.tokens
        piece.logprobs += event.logprobs or ()
        piece.prompt_logprobs += event.prompt_logprobs or ()
        piece.reason, piece.statistics = event.reason, event.statistics
    return list(pieces.values())


def _failure(event: Event, timeout: float) -> ApiError:
    if event.reason == "deadline":
        return deadline_passed(timeout)
    if event.error is not None:
        return server_error(event.error)
    return ApiError(503, "The server ends and has cancelled the request.", code="cancelled")


# ---------------------------------------------------------------------------------------------- counts, times


class Counts:
    """The counts and times of an answer: the last statistics of each choice."""

    def __init__(self, prompts: int = 1):
        self._of_choice: dict[int, Statistics] = {}
        self._prompts = prompts

    def add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._of_choice[piece.index] = piece.statistics

    @property
    def usage(self) -> Usage:
        """The prompt of several choices counts once."""
        all_of = list(self._of_choice.values())
        share = max(1, len(all_of) // self._prompts)
        first = [self._of_choice[i] for i in sorted(self._of_choice)][::share]
        prompt = sum(each.prompt_tokens for each in first)
        new = sum(each.new_tokens for each in all_of)
        cached = sum(each.cached_tokens for each in first)
        return Usage(prompt, new, prompt + new, PromptDetails(cached), CompletionDetails())

    @property
    def timings(self) -> Timings:
        """Of the first choice."""
        one = self._of_choice[min(self._of_choice)]
        prompt, text = one.seconds_to_first_token, one.seconds - one.seconds_to_first_token
        count = one.prompt_tokens - one.cached_tokens
        return Timings(
            one.cached_tokens,
            count,
            round(prompt * 1e3, 3),
            round(count / prompt, 3) if prompt > 0 else 0.0,
            one.new_tokens,
            round(text * 1e3, 3),
            round(one.tokens_per_second, 3),
        )


# ------------------------------------------------------------------------------------------------ tokens


def chat_logprobs(tokenizer: Tokenizer, found: Sequence[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs([_chat_logprob(tokenizer, each) for each in found])


def _chat_logprob(tokenizer: Tokenizer, found: TokenLogprob) -> ChatLogprob:
    top = [TopLogprob(*_token(tokenizer, token, value)) for token, value in found.top]
    return ChatLogprob(*_token(tokenizer, found.token, found.logprob), top)


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> tuple[str, float, list[int]]:
    piece = tokenizer.piece(token, special=True)
    return piece.decode("utf-8", "replace"), max(logprob, LEAST), list(piece)


LEAST = -9999.0  # OpenAI's number for a token that is next to impossible; JSON has no infinity


def completion_logprobs(
    tokenizer: Tokenizer, found: Sequence[TokenLogprob | None], tokens: Sequence[int], offset: int
) -> tuple[CompletionLogprobs, int]:
    """The log probabilities of tokens whose text begins at `offset`, and where it ends. The first token of a
    prompt has none.
    """
    made = CompletionLogprobs([], [], [], [])
    for token, each in zip(tokens, found, strict=True):
        made.tokens.append(_name(tokenizer, token))
        made.text_offset.append(offset)
        made.token_logprobs.append(None if each is None else max(each.logprob, LEAST))
        made.top_logprobs.append(None if each is None else _tops(tokenizer, each))
        offset += len(tokenizer.piece(token, special=True).decode("utf-8", "replace"))
    return made, offset


def _tops(tokenizer: Tokenizer, found: TokenLogprob) -> dict[str, float]:
    """The most likely tokens, and the one that came."""
    pairs = [*found.top, (found.token, found.logprob)]
    return {_name(tokenizer, token): max(value, LEAST) for token, value in reversed(pairs)}


def _name(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token. Bytes that are no text alone are named as OpenAI does, so that names differ."""
    piece = tokenizer.piece(token, special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
