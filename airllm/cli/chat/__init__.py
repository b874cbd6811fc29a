"""The chat: input (`line_editor`), commands (`slash_commands`), messages (`conversation`) and the `loop`."""

from airllm.cli.chat.conversation import Talk
from airllm.cli.chat.loop import converse

__all__ = ["Talk", "converse"]
