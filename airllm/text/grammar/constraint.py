"""The state of a grammar in one text."""

from __future__ import annotations

from typing import Any

import numpy as np

_NO_TEXT = "NoExtensionBias"  # the engine's word for it


class GrammarConstraint:
    """Restricts the tokens of one sequence. `matcher` is the engine's state, of this sequence alone."""

    def __init__(self, matcher: Any, vocabulary: int):
        self._matcher, self._vocabulary = matcher, vocabulary
        self._bits = np.zeros((vocabulary + 31) // 32, np.int32)

    def mask(self) -> np.ndarray:
        """The tokens that may come next, bool (vocabulary). ValueError if there are none, or if the grammar
        exceeds the engine's limits here.
        """
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            raise ValueError(f"the grammar cannot continue this text: {reason(self._matcher.get_error())}")
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._vocabulary, bitorder="little")
        return bits.view(np.bool_)

    def accept(self, token: int) -> None:
        """Continue after a token. ValueError if the grammar does not allow it."""
        if not self._matcher.consume_token(token):
            why = reason(self._matcher.get_error())
            raise ValueError(f"token {token} has no place in the grammar here: {why}")

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing may follow."""
        return self._matcher.is_stopped()


def reason(message: str) -> str:
    """What a message of the engine says, in one line."""
    line = message.strip().partition("\n")[0]
    return "no text has this form" if line == _NO_TEXT else line
