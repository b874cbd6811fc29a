"""Prompt lookup: what followed the last few tokens when they occurred before is likely to follow again."""

from __future__ import annotations

from collections.abc import Sequence

from airllm.engine.drafts.drafter import Kind

_LENGTHS = (3, 2)  # of the n-grams that are looked up, in this order
# The kinds of guesses: after a match of at least so many tokens.
_KINDS = {
    length: Kind(f"match of {length}", prior)
    for length, prior in {2: 0.3, 3: 0.4, 4: 0.55, 6: 0.7, 9: 0.8, 17: 0.9}.items()
}
_LONGEST = max(_KINDS)
_KIND_AFTER = [_KINDS[max(n for n in _KINDS if n <= max(length, 2))] for length in range(_LONGEST + 1)]


class NgramDrafter:
    """Guesses that a repetition goes on. `tokens` begin the sequence.

    A dictionary has the place after the last occurrence of each n-gram. A token adds an entry for each length
    and looks up one for each, so its cost does not depend on the length of the text. Once found, an earlier
    occurrence is followed for as long as it is right.
    """

    free, seconds = True, 0.0

    def __init__(self, tokens: Sequence[int] = ()):
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._source = 0  # the place of the guess in the tokens; 0: none
        self._matched = 0  # tokens before it that equal the last tokens, counted up to _LONGEST
        self.observe(tokens)

    def observe(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._add(token)
        if not self._source:
            self._look_up()

    def seconds_per_token(self, single: float) -> float:
        return 0.0

    def kinds(self, most: int) -> list[Kind]:
        if not self._source:
            return []
        return [_KIND_AFTER[min(self._matched + i, _LONGEST)] for i in range(most)]

    def propose(self, count: int) -> list[int]:
        guess = self._tokens[self._source : self._source + count]
        while len(guess) < count:  # the repetition reaches the end of the text: it repeats itself
            guess += guess[: count - len(guess)]
        return guess

    def _add(self, token: int) -> None:
        tokens = self._tokens
        if self._source and tokens[self._source] == token:
            self._source += 1
            self._matched = min(self._matched + 1, _LONGEST)
        else:
            self._source = 0
        for length in _LENGTHS:  # only now something follows the last n-grams
            if len(tokens) >= length:
                self._after[tuple(tokens[-length:])] = len(tokens)
        tokens.append(token)

    def _look_up(self) -> None:
        tokens = self._tokens
        for length in _LENGTHS:
            if source := self._after.get(tuple(tokens[-length:])):
                self._source, self._matched = source, self._common_end(source)
                return

    def _common_end(self, source: int) -> int:
        """How many tokens before `source` equal the last ones, at most _LONGEST."""
        before = self._tokens[max(source - _LONGEST, 0) : source]
        last = self._tokens[-len(before) :]
        pairs = zip(reversed(before), reversed(last), strict=True)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), len(before))
