"""Mends what autodoc makes of this library's docstrings and signatures.

Docstrings are Markdown, which Sphinx reads as reStructuredText.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

AFTER_NAPOLEON = 600  # autodoc calls its handlers in the order of these numbers; napoleon has 500


def _mark_up(app: Any, what: str, name: str, thing: Any, options: Any, text: list[str]) -> None:
    """Letters may follow a piece of code. A property's "a: b" is a sentence; napoleon takes a for a type."""
    if what == "property":
        text[:] = [*(inspect.getdoc(thing) or "").splitlines(), ""]
    text[:] = [re.sub(r"(`[^`]+`)(?=\w)", r"\1\\ ", line) for line in text]


def _write_factories(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """The default of a dataclass's dict is {}: Sphinx cannot parse <factory>."""
    return signature and signature.replace("<factory>", "{}"), returns


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _mark_up, priority=AFTER_NAPOLEON)
    app.connect("autodoc-process-signature", _write_factories)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
