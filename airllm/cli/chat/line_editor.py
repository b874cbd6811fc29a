"""Read entries of one or more lines, typed or piped, and parse them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm.cli.stdin_prompt import only_text

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_FENCE = '"""'
_COMMAND = re.compile(r"/(\?|[A-Za-z]+)(?:\s+(.*))?", re.DOTALL)


# ------------------------------------------------------------------------------------------------ meaning


def is_open(entry: str) -> bool:
    """Whether the entry continues on the next line."""
    if entry.lstrip().startswith(_FENCE):
        return entry.count(_FENCE) % 2 == 1
    return entry.endswith("\\")


def command_of(entry: str) -> tuple[str, str] | None:
    """Name and arguments of a command: an entry that begins with a slash and a word. None for a path."""
    match = _COMMAND.fullmatch(entry.rstrip())
    return None if match is None else (match[1], text_of(match[2] or ""))


def text_of(entry: str) -> str:
    """The message without fences and without the backslashes that join lines; spaces are kept."""
    bare = entry.strip()
    if bare.startswith(_FENCE):
        if entry.count(_FENCE) == 1:  # closed by the end of input
            return bare[len(_FENCE) :].removeprefix("\n")
        if entry.count(_FENCE) == 2 and bare.endswith(_FENCE):
            return bare[len(_FENCE) : -len(_FENCE)].removeprefix("\n").removesuffix("\n")
        return entry
    entry = entry.rstrip("\n").replace("\\\n", "\n")
    return entry[1:] if entry.startswith("//") else entry


# ------------------------------------------------------------------------------------------------ reading


def entries(terminal: bool, commands: Sequence[str] = ()) -> Iterator[str]:
    """Entries until the end of input. On a terminal, Ctrl-C discards an entry; use `hide_keys` in between."""
    return _read_typed(_session(commands)) if terminal else _read_piped()


def _read_piped() -> Iterator[str]:
    waiting: list[str] = []
    with only_text():
        for line in sys.stdin or ():
            waiting.append(line.rstrip("\n"))
            if not is_open(entry := "\n".join(waiting)):
                waiting.clear()
                yield entry
    if waiting:
        yield "\n".join(waiting)


def _read_typed(session: PromptSession[str]) -> Iterator[str]:
    while True:
        try:
            yield session.prompt("> ")
        except KeyboardInterrupt:
            print("(Ctrl-D or /bye leaves)", file=sys.stderr)
        except EOFError:
            return


def _session(commands: Sequence[str]) -> PromptSession[str]:
    """A prompt with editing, pasting and history. Enter ends an entry unless it `is_open`."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.shortcuts import CompleteStyle

    return PromptSession(
        multiline=True,
        key_bindings=_keys(),
        history=_history(),
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        enable_open_in_editor=True,
        enable_suspend=True,
        prompt_continuation=lambda width, line, wrapped: "" if wrapped else ". ",
        output=_output(),
    )


def _output() -> Any:
    """The terminal, even if answers go to a file. Cursor position requests are off: no menus need them, and
    the replies of some terminals end up in the text.
    """
    from prompt_toolkit.output import create_output

    output = create_output(sys.stdout if sys.stdout.isatty() else sys.stderr)
    if hasattr(output, "enable_cpr"):
        output.enable_cpr = False
    return output


def _keys() -> Any:
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import has_focus
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @bindings.add("enter", filter=typing)
    def _enter(event: Any) -> None:
        if is_open(event.current_buffer.text):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=typing)
    @bindings.add(
        "c-j", filter=typing
    )  # Enter typed during an answer arrives as this too, and must not send anything
    def _new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


# ------------------------------------------------------------------------------------------------ history


def history_file() -> Path | None:
    """The file of the input history, readable by the user only; None for no history. AIRLLM_HISTORY names
    another file, or is "off".
    """
    named = os.environ.get("AIRLLM_HISTORY")
    if named == "off":
        return None
    if named:
        return Path(named)
    from platformdirs import user_state_path

    path = user_state_path("airllm", appauthor=False) / "chat_history"
    if not path.is_absolute():
        raise OSError("there is no home directory")
    return path


def _history() -> Any:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path = history_file()
        if path is None:
            return InMemoryHistory()
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
    except (OSError, RuntimeError) as error:  # RuntimeError: platformdirs found no home
        print(f"airllm: the input history is not saved: {error}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(str(path))


# ------------------------------------------------------------------------------------------------ keys


@contextlib.contextmanager
def hide_keys() -> Iterator[None]:
    """Do not echo keys typed during an answer; they appear in the next entry."""
    if sys.stdin is None or not sys.stdin.isatty() or os.name != "posix":
        yield
        return
    import termios

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    quiet = list(before)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)
