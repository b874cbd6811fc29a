"""Progress of what takes long, for commands: a bar on a terminal, elsewhere a line that says what has begun.

All of it goes to stderr: stdout is for results.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[int, int], None]


@contextlib.contextmanager
def progress(what: str, unit_bytes: bool = True) -> Iterator[Advance]:
    """Call what this gives with how much is done, and of how much. Nothing is shown before the first call."""
    shown: list[Advance] = []
    with contextlib.ExitStack() as stack:

        def advance(done: int, total: int) -> None:
            if not shown:
                shown.append(stack.enter_context(_bar(what, unit_bytes)))
            shown[0](done, total)

        yield advance


@contextlib.contextmanager
def _bar(what: str, unit_bytes: bool) -> Iterator[Advance]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    except ImportError:
        console = None
    else:
        console = Console(stderr=True)
    if console is None or not console.is_terminal:
        print(f"{what} ...", file=sys.stderr, flush=True)
        yield lambda done, total: None
        return
    count = DownloadColumn() if unit_bytes else MofNCompleteColumn()
    columns = ("{task.description}", BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
