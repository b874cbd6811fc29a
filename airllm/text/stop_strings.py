"""Cuts a stream of text before the first of several stop strings."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on, but no part of a stop string: it holds back what might become one.

    If several could end the text, the one that completes first does, however the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """The text that can be passed on; "" after a stop string is `found`."""
        if not self._stops:
            return text
        if self.found is not None or not text:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            self._held = ""
            return text[:at]
        keep = max(overlap_length(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text that was held back, at the end of the stream."""
        text, self._held = self._held, ""
        return text


def overlap_length(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` but is not all of it."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
