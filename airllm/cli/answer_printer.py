"""Statistics of an answer: its speed, and the use of the context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airllm.engine.engine import LayerWiseInferenceEngine
    from airllm.engine.request import Statistics


def facts(engine: LayerWiseInferenceEngine) -> dict[str, Any]:
    """Statistics of the last text, for --json."""
    done = engine.statistics
    if done is None:
        return {}
    return {
        "finish_reason": done.reason,
        "prompt_tokens": done.prompt_tokens,
        "cached_tokens": done.cached_tokens,
        "new_tokens": done.new_tokens,
        "drafted_tokens": done.drafted_tokens,
        "accepted_tokens": done.accepted_tokens,
        "context": engine.context,
        "seconds_to_first_token": round(done.seconds_to_first_token, 6),
        "seconds": round(done.seconds, 6),
        "tokens_per_second": round(done.tokens_per_second, 3),
        "backend": engine.backend.name(),
        "device": engine.backend.device(),
    }


def summary_line(engine: LayerWiseInferenceEngine) -> str:
    """The speed and the use of the context, in one short line."""
    done = engine.statistics
    if done is None:
        return ""
    why = "" if done.reason == "end" else f"; ended by: {done.reason}"
    drafted = f"{done.accepted_tokens} of them drafted, " if done.accepted_tokens else ""
    speed = f"{done.new_tokens} tokens, {drafted}{done.tokens_per_second:.1f} tokens/s"
    return f"[{speed}; context {_context_use(done, engine)}{why}]"


def _context_use(done: Statistics, engine: LayerWiseInferenceEngine) -> str:
    return f"{min(done.prompt_tokens + done.new_tokens, engine.context)} of {engine.context}"


def detail_lines(engine: LayerWiseInferenceEngine) -> Iterator[str]:
    """All statistics, as lines."""
    done = engine.statistics
    if done is None:
        yield "Nothing was answered yet."
        return
    computed = done.prompt_tokens - done.cached_tokens
    yield f"Answer:  {done.new_tokens} tokens, {done.tokens_per_second:.1f} tokens/s; ended by: {done.reason}"
    yield f"Drafts:  {done.drafted_tokens} tokens, of which {done.accepted_tokens} were right"
    yield f"Prompt:  {done.prompt_tokens} tokens, of which {computed} were computed"
    yield f"Time:    {done.seconds_to_first_token:.2f} s to the first token, {done.seconds:.2f} s in all"
    yield f"Context: {_context_use(done, engine)} tokens"
    yield f"Engine:  {engine.path.name} on {engine.backend.name()}: {engine.backend.device()}"
