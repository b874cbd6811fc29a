"""Formats numbers and the content of files for people."""

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def escape_controls(text: str) -> str:
    """The text with control characters as in Python's source: a file must not control a terminal or a log."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def size(number: int) -> str:
    """Bytes in powers of 1000, as for files: "98.4 MB"."""
    return _scale_number(number, ("bytes", "kB", "MB", "GB", "TB"))


def count(number: int) -> str:
    """A number in powers of 1000: "134.5 M"."""
    return _scale_number(number, ("", "k", "M", "G", "T")).strip()


def _scale_number(number: float, units: tuple[str, ...]) -> str:
    at = 0
    while number >= 999.5 and at < len(units) - 1:
        number, at = number / 1000, at + 1
    return f"{number:.{1 if at else 0}f} {units[at]}"
