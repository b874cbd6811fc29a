"""A conversation: what is typed (`typed`), what it commands (`commands`), and what was said (`talk`)."""

from airllm.conversation.loop import converse
from airllm.conversation.talk import Talk

__all__ = ["Talk", "converse"]
