"""Why something does not run, in one line. Standard library only."""

import re

# What compilers and Python write; not an option or a path with that word in it.
_ERROR = re.compile(r"(?<![\w/.-])(fatal )?(error|ERROR)\b\s*[:\[]|^\w*(Error|Exception): |: error ")


def reason(error: BaseException) -> str:
    """Why something does not run, in one line, when trying it has raised `error`."""
    return one_line(str(error)) or type(error).__name__


def one_line(text: str) -> str:
    """What a message says: the line of a compiler's log that has the error, else all of its lines."""
    return error_line(text) or "; ".join(line for each in text.splitlines() if (line := each.strip()))


def error_line(log: str) -> str:
    """The first line of a log that names an error, "" if none does."""
    return next((line for each in log.splitlines() if _ERROR.search(line := each.strip())), "")
