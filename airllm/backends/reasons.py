"""Reduce errors to one line. Standard library only."""

import re

# An error as compilers and Python print it; not an option or a path that contains the word.
_ERROR = re.compile(r"(?<![\w/.-])(fatal )?(error|ERROR)\b\s*[:\[]|^\w*(Error|Exception): |: error ")


def reason(error: BaseException) -> str:
    """One line that says why something does not run, from the `error` it raised."""
    return one_line(str(error)) or type(error).__name__


def one_line(text: str) -> str:
    """A message as one line: the error line of a compiler's log, else all lines joined."""
    return error_line(text) or "; ".join(line for each in text.splitlines() if (line := each.strip()))


def error_line(log: str) -> str:
    """The first line of a log that names an error, "" if none does."""
    return next((line for each in log.splitlines() if _ERROR.search(line := each.strip())), "")
