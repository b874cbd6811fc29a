"""The error of a grammar that cannot be enforced."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[str, ...]  # the keys and indices that lead to a part of a JSON document


class GrammarError(ValueError):
    """A grammar that is invalid, or that cannot be enforced.

    `parameter` is the argument that has it, such as "json_schema"; `pointer` is the JSON pointer to the part
    that is wrong, "" for the whole.
    """

    def __init__(self, parameter: str, what: str, place: Sequence[str] = (), detail: str = ""):
        self.parameter, self.pointer = parameter, json_pointer(place)
        where = f" at {self.pointer}" if place else ""
        super().__init__(f"{parameter} has an {what}{where}: {detail}")


def json_pointer(place: Sequence[str]) -> str:
    """The place as a JSON pointer (RFC 6901)."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in place)
