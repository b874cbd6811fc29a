"""Selects the newest turns of a conversation that fit into a context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Messages = Sequence[Mapping[str, Any]]

_STANDING = ("system", "developer")  # roles of first messages that apply to the whole conversation


def drop_oldest_turns(
    messages: Messages, tokens: Callable[[Messages], int], most: int, spare: int = 0
) -> Messages:
    """`messages` if they have at most `most` tokens, else without their oldest turns.

    Then it drops enough turns to leave `spare` tokens free, so that the next few questions share their
    beginning. A turn is a question and its answers. The messages before the first turn, the system prompt,
    and the last turn, however long, always stay.
    """
    if tokens(messages) <= most:
        return messages
    others = (i for i, each in enumerate(messages) if each.get("role") not in _STANDING)
    standing = next(others, len(messages))
    turns = [i for i in range(standing, len(messages)) if messages[i].get("role") == "user"]

    def without(turn: int) -> Messages:
        return [*messages[:standing], *messages[turn:]]

    later = turns[1:]
    if not later:
        return messages
    first = bisect_left(later, True, key=lambda turn: tokens(without(turn)) <= most - spare)
    return without(later[min(first, len(later) - 1)])


def room_for_answer(context: int, max_new_tokens: int | None) -> int:
    """Tokens to keep free: those of the answer, but at most a quarter of the context."""
    quarter = context // 4
    return quarter if max_new_tokens is None else min(max_new_tokens, quarter)
