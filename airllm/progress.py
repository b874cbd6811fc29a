"""Shows the progress of long work: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

OnProgress = Callable[[int, int], None]  # on_progress(done, total)
Told = Callable[[int, int, str], None]
EVERY = 10.0  # seconds between two lines
_MOMENT = 0.7  # seconds before anything is shown


def unseen(done: int, total: int) -> None:
    """An `OnProgress` that shows nothing."""


@contextlib.contextmanager
def progress(what: str, unit_bytes: bool = True) -> Iterator[OnProgress]:
    """Yields an `OnProgress` that shows the progress on stderr.

    Nothing is shown before the first call.
    """
    shown: list[OnProgress] = []
    with contextlib.ExitStack() as stack:

        def advance(done: int, total: int) -> None:
            if not shown:
                shown.append(stack.enter_context(_bar(what, unit_bytes)))
            shown[0](done, total)

        yield advance


@contextlib.contextmanager
def _bar(what: str, unit_bytes: bool) -> Iterator[OnProgress]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    except ImportError:
        console = None
    else:
        console = Console(stderr=True)
    if console is None or not console.is_terminal:
        tell = lines(what, lambda line: print(line, file=sys.stderr, flush=True))
        yield lambda done, total: tell(done, total, "")
        return
    count = DownloadColumn() if unit_bytes else MofNCompleteColumn()
    columns = ("{task.description}", BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


class Waiting:
    """`with Waiting("Opening"):` shows on a terminal, after a moment, what the program waits for.

    Call `advance(done, total)` if the progress is known.
    """

    def __init__(self, what: str, quiet: bool = False):
        self._what = what
        self._bars = None if quiet or not sys.stderr.isatty() else _spinner()
        self._task = None if self._bars is None else self._bars.add_task(what, total=None, count="")
        self._timer: threading.Timer | None = None

    def advance(self, done: int, total: int) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, total=total, count=f"{done} of {total} tokens")

    def __enter__(self) -> Waiting:
        if self._bars is not None:
            self._timer = threading.Timer(_MOMENT, self._bars.start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None and self._bars is not None:
            self._timer.cancel()
            self._timer.join()
            self._bars.stop()


def _spinner() -> Progress | None:
    """A spinner line that also shows progress once it is known; None without rich."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    except ImportError:
        return None
    columns = (SpinnerColumn(), "{task.description}", BarColumn(), TextColumn("{task.fields[count]}"))
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)


@contextlib.contextmanager
def step(console: Console, what: str, counted: bool = True) -> Iterator[Told]:
    """Shows one step of a longer run on its console. Yields a function of (done, total, current item). If the
    step cannot be `counted`, pass zeros.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        yield lines(what, lambda line: console.print(line, markup=False, soft_wrap=True))
        return
    columns = [TextColumn("{task.description:<36}", markup=False), BarColumn(), TimeElapsedColumn()]
    columns[2:2] = [TaskProgressColumn()] if counted else []
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, text: bar.update(
            task, completed=done, total=total or None, description=text or what
        )


def lines(what: str, say: Callable[[str], None]) -> Told:
    """Say what begins, and then how far it is, at most every EVERY seconds."""
    say(f"{what} ...")
    last = time.monotonic()

    def tell(done: int, total: int, text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            say("  " + ", ".join(filter(None, (f"{100 * done // total} %" if total else "", text))))

    return tell
