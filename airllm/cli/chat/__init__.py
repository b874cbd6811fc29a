"""A conversation: what is typed (`typed`), what it commands (`commands`), and what was said (`talk`)."""

from airllm.cli.chat.conversation import Talk
from airllm.cli.chat.loop import converse

__all__ = ["Talk", "converse"]
