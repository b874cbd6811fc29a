"""The chat loop: messages and commands until the end of input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from airllm.cli.chat import line_editor, slash_commands
from airllm.cli.chat.conversation import Talk
from airllm.cli.terminal import Refused
from airllm.engine.embedding import NoGeneration
from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.kv_cache import ContextFull

_OF_OPTIONS = (ContextFull, MemoryBudgetError)  # errors about options that only the command line sets


def converse(
    engine: LayerWiseInferenceEngine,
    system: str | None,
    settings: dict[str, Any],
    quiet: bool = False,
    words: Callable[[str], str] = str,
) -> bool:
    """Answer the entries of stdin; return whether any failed. `settings` are options of `stream_chat`;
    `words` rewrites a message of the library in terms of the command line's options.
    """
    if not engine.generates:
        raise Refused(str(NoGeneration(str(engine.path), engine.config.encoding is not None)))
    if engine.chat_template is None:
        raise Refused(f"{engine.path} has no chat template: use generate")
    talk = Talk(engine, system, settings, quiet)
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if terminal and not quiet:
        where = f"{engine.path.name} on {engine.backend.name()}, a context of {engine.context} tokens"
        talk.say(f"{where}.\n/help lists the commands, Ctrl-D leaves.")
    failed = False
    with line_editor.hide_keys():
        for entry in line_editor.entries(terminal, slash_commands.names()):
            try:
                if not _handle_entry(talk, entry):
                    break
            except BrokenPipeError:  # the reader of the answers has closed the pipe
                raise
            except (ValueError, OSError) as error:  # messages are kept, and the conversation continues
                failed = True
                text = _reason(error)
                talk.say(f"airllm: {words(text) if isinstance(error, _OF_OPTIONS) else text}")
    return failed


def _handle_entry(talk: Talk, entry: str) -> bool:
    """Run or answer an entry; return whether the conversation continues."""
    command = line_editor.command_of(entry)
    if command is not None:
        return slash_commands.run(talk, *command)
    text = line_editor.text_of(entry)
    if text.strip():
        talk.ask(text)
    return True


def _reason(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
