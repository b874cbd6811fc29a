"""Text up to the first of some stop strings, though it comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on, but never a part of a stop string: what might become one is held back.

    Where several could end the text, the one that is complete first does, however the text was cut.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """What can be passed on. After a stop string is `found`, nothing."""
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
        keep = max(_overlap_length(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, at the end of the text."""
        text, self._held = self._held, ""
        return text


def _overlap_length(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
