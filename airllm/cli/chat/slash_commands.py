"""The slash commands of the chat."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airllm.cli import answer_printer
from airllm.cli.chat.conversation import Talk
from airllm.engine.request import request
from airllm.engine.sampling import Sampling

# The settings of /set, and the types of their values.
_SETTINGS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "seed": int,
    "max_new_tokens": int,
    "stop": str,
}
_KINDS: dict[Callable[[str], Any], str] = {float: "a number", int: "a whole number"}
_NONE: dict[str, Any] = {"seed": None, "stop": (), "max_new_tokens": None}  # the value for "none"
_KEYS = """
Several lines are one message: paste them, put them between \"\"\" and \"\"\",
end a line with \\, or press Alt-Enter. Ctrl-X Ctrl-E opens $EDITOR.
A message that begins with / and a word needs another / before it.
Up brings back what was typed, Ctrl-C breaks off an answer, Ctrl-D leaves."""


@dataclass(frozen=True)
class Command:
    """A command; `run` gets the conversation and the text after the name."""

    names: tuple[str, ...]
    arguments: str
    help: str
    run: Callable[[Talk, str], None]


class Leave(Exception):
    """End of the conversation."""


def run(talk: Talk, name: str, rest: str) -> bool:
    """Run a command; return whether the conversation continues. ValueError for an unknown command."""
    command = _BY_NAME.get(name.lower())
    if command is None:
        raise ValueError(
            f"unknown command /{name}: /help lists them; to send it as text, put another / before it"
        )
    if rest and not command.arguments:
        raise ValueError(f"/{name} takes nothing, found {rest!r}")
    try:
        command.run(talk, rest)
    except Leave:
        return False
    return True


def names() -> list[str]:
    """The commands as the user types them."""
    return [f"/{name}" for name in _BY_NAME if name != "?"]


def _help(talk: Talk, rest: str) -> None:
    for command in COMMANDS:
        usage = " ".join([", ".join(f"/{name}" for name in command.names), command.arguments])
        talk.say(f"  {usage:<20} {command.help}")
    talk.say(_KEYS)


def _leave(talk: Talk, rest: str) -> None:
    raise Leave


def _clear(talk: Talk, rest: str) -> None:
    talk.clear()
    talk.note("The conversation begins again.")


def _system(talk: Talk, rest: str) -> None:
    if not rest:
        talk.say(f"System prompt: {talk.system}" if talk.system else "There is no system prompt.")
        return
    talk.system = None if rest == '""' else rest
    talk.note("System prompt set." if talk.system else "System prompt removed.")


def _adapter(talk: Talk, rest: str) -> None:
    """Use the named adapters, each with its scale; without names, list them."""
    scales = {}
    for each in [] if rest == "off" else rest.split():
        name, _, scale = each.partition("=")
        try:
            scales[name] = float(scale or 1)
        except ValueError:
            raise ValueError(f"adapter {name!r} has the scale {scale!r}, expected a number") from None
    if rest:
        talk.engine.use_adapters(scales)
    used = [f"{name}={scale:g}" for name, scale in talk.engine.adapters.items()]
    talk.say(f"Adapters: {' '.join(used)}" if used else "There are none: begin with --adapter PATH.")


def _set(talk: Talk, rest: str) -> None:
    name, _, text = rest.partition(" ")
    if not name:
        talk.say("\n".join(_settings(talk)))
        return
    key = "max_new_tokens" if name == "n" else name.lstrip("-").replace("-", "_").lower()
    if key not in _SETTINGS:
        raise ValueError(f"/set has no setting {name}, expected one of {', '.join(_SETTINGS)}")
    if not (text := text.strip()):
        raise ValueError(f"/set {name} has no value: /set {name} VALUE")
    changed = {**talk.settings, key: _value(key, text)}
    request(**changed)
    talk.settings = changed
    talk.note(f"{key} is {text} now.")


def _value(key: str, text: str) -> Any:
    if key in _NONE and text.lower() == "none":
        return _NONE[key]
    read = _SETTINGS[key]
    try:
        return read(text)
    except ValueError:
        raise ValueError(f"{key} has value {text!r}, expected {_KINDS[read]}") from None


def _settings(talk: Talk) -> list[str]:
    known = Sampling()
    given = {key: talk.settings.get(key, getattr(known, key, None)) for key in _SETTINGS}
    return [f"  {key} {'none' if value in (None, [], ()) else value}" for key, value in given.items()]


def _save(talk: Talk, rest: str) -> None:
    path = _path("save", rest)
    if path.exists():
        _messages(path)  # fails unless the file is a conversation: do not overwrite others
    new = path.with_name(f"{path.name}.partial")
    text = json.dumps(
        {"model": str(talk.engine.path), "messages": talk.messages}, indent=1, ensure_ascii=False
    )
    try:
        new.write_text(text + "\n", encoding="utf-8")
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    talk.note(f"{len(talk.messages)} messages are in {path}.")


def _load(talk: Talk, rest: str) -> None:
    path = _path("load", rest)
    talk.replace(_messages(path))
    talk.note(f"The conversation goes on from the {len(talk.messages)} messages of {path}.")


def _path(name: str, rest: str) -> Path:
    if not rest:
        raise ValueError(f"/{name} needs the name of a file: /{name} FILE")
    return Path(rest).expanduser()


def _messages(path: Path) -> list[dict[str, str]]:
    """The messages of a file from /save, or of a plain list, as other programs write it."""
    wrong = ValueError(f"{path} has no conversation, expected JSON with messages of role and content")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise wrong from None
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list):
        raise wrong
    for each in messages:
        if not isinstance(each, dict) or not all(
            isinstance(each.get(key), str) for key in ("role", "content")
        ):
            raise wrong
    return messages


def _retry(talk: Talk, rest: str) -> None:
    talk.retry()


def _undo(talk: Talk, rest: str) -> None:
    talk.note(f"Taken back: {_shorten(talk.undo())}")


def _shorten(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _stats(talk: Talk, rest: str) -> None:
    talk.say("\n".join(answer_printer.detail_lines(talk.engine)))


COMMANDS = (
    Command(("help", "?"), "", "what there is", _help),
    Command(("retry",), "", "answer the last question again", _retry),
    Command(("undo",), "", "remove the last question and its answer", _undo),
    Command(("clear",), "", "begin again; the system prompt stays", _clear),
    Command(("system",), "[TEXT]", 'show or set what the model is told first; "" for nothing', _system),
    Command(("set",), "[NAME VALUE]", "show or set how answers are made: temperature 0.7", _set),
    Command(("adapter",), "[NAME=SCALE ...]", "show the adapters, or use only these; off: none", _adapter),
    Command(("save",), "FILE", "write the conversation to a file", _save),
    Command(("load",), "FILE", "go on from one that was saved", _load),
    Command(("stats",), "", "speed of the last answer, and how full the context is", _stats),
    Command(("bye", "exit", "quit"), "", "leave, as Ctrl-D does", _leave),
)
_BY_NAME = {name: command for command in COMMANDS for name in command.names}
