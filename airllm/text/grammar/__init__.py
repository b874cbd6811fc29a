"""Grammars: what a text may be, and the tokens that may come next in it."""

from airllm.text.grammar.errors import GrammarError
from airllm.text.grammar.grammars import Grammars

__all__ = ["GrammarError", "Grammars"]
