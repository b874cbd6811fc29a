"""Makes the tokens of a prompt, in a few threads: a template or a long text may take seconds."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.serving.protocol.errors import invalid, too_long
from airllm.serving.protocol.messages import template_messages
from airllm.text.answers import AnswerFormat, AnswerPlan
from airllm.text.chat_template import ChatTemplateError
from airllm.text.grammar import GrammarError

_WORKERS = 2
Result = TypeVar("Result")
# Names that a template gets from its caller; chat_template_kwargs cannot replace them.
_OWN = ("messages", "tools", "add_generation_prompt", "self")


class Prompts:
    """Encodes prompts for one engine. Errors are ApiErrors that name the field."""

    def __init__(self, engine: LayerWiseInferenceEngine):
        self.tokenizer, self.template = engine.tokenizer, engine.chat_template
        self.context, self.grammars = engine.context, engine.grammars
        self._format: AnswerFormat | None = None
        if self.template is not None:
            self._format = AnswerFormat(self.tokenizer, self.template, self.grammars)
        self._pool = ThreadPoolExecutor(_WORKERS, "airllm-prompts")

    async def call(self, work: Callable[[], Result]) -> Result:
        """The result of `work` in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def plan(
        self,
        messages: Sequence[dict[str, Any]],
        variables: dict[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        **form: Any,
    ) -> AnswerPlan:
        """How to answer a conversation; `form` are the arguments of `AnswerFormat.plan`. With
        `continue_final`, the prompt ends in the last message's content.
        """
        if self.template is None or self._format is None:
            message = "This model has no chat template: use /v1/completions."
            raise invalid(message, "messages", "no_chat_template")
        values = dict(variables or {})
        if taken := [name for name in values if name in _OWN]:
            message = f"chat_template_kwargs has {taken[0]!r}, which is a field of its own."
            raise invalid(message, "chat_template_kwargs")
        values["add_generation_prompt"] = add_generation_prompt and not continue_final
        checked = template_messages(messages, "developer" in self.template.source)
        mark = _mark_end(checked) if continue_final else ""
        with refused_as_invalid():
            plan = self._format.plan(checked, template_values=values, **form)
        if not mark:
            return plan
        if mark not in plan.prompt:
            raise invalid("The chat template does not continue a message.", "continue_final_message")
        return replace(plan, prompt=plan.prompt.partition(mark)[0])

    def encode_plan(self, plan: AnswerPlan) -> list[int]:
        """The tokens of a conversation. A template writes the bos token itself."""
        return self._check_length(self.tokenizer.encode(plan.prompt, add_bos=False), "messages")

    def encode(self, text: str, param: str, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """The tokens of a text, in which the names of special tokens are such tokens if `special`."""
        try:
            return self.tokenizer.encode(text, special, add_bos)
        except ValueError as error:
            raise invalid(f"Invalid value for '{param}': {error}.", param) from None

    def encode_prompt(self, text: str, param: str, add_bos: bool | None = None) -> list[int]:
        """The tokens of a text to continue."""
        return self._check_length(self.encode(text, param, add_bos=add_bos), param)

    def check_tokens(self, tokens: Sequence[Any], param: str) -> list[int]:
        """Tokens that the client encoded itself."""
        most = len(self.tokenizer) - 1
        for i, token in enumerate(tokens):
            if type(token) is not int or not 0 <= token <= most:
                place = f"{param}[{i}]"
                raise invalid(f"'{place}' is {token!r}, expected a token from 0 to {most}.", place)
        return self._check_length(list(tokens), param)

    def _check_length(self, tokens: list[int], param: str) -> list[int]:
        if not tokens:
            raise invalid(f"'{param}' has no tokens, expected one or more.", param)
        if len(tokens) > self.context:
            raise too_long(len(tokens), self.context, param)
        return tokens


def _mark_end(messages: list[dict[str, Any]]) -> str:
    """Put a mark that no template contains at the end of the last message, and return it."""
    last = messages[-1]
    if last["role"] != "assistant" or not isinstance(last.get("content"), str):
        message = "continue_final_message needs a last message of the role assistant with a text."
        raise invalid(message, "continue_final_message")
    mark = f"\u2063{secrets.token_hex(8)}\u2063"
    last["content"] += mark
    return mark


@contextlib.contextmanager
def refused_as_invalid() -> Iterator[None]:
    """What a template or a grammar refuses is an error of the request."""
    try:
        yield
    except GrammarError as error:
        raise invalid(f"{error}.", error.parameter, "invalid_grammar") from None
    except (ChatTemplateError, ValueError, TypeError) as error:
        raise invalid(_reason(error), "messages", "chat_template_error") from None


def _reason(error: Exception) -> str:
    """What the template said, without the path of its file."""
    text = str(error)
    if not isinstance(error, ChatTemplateError):
        return text
    for phrase in ("rejects the messages: ", "fails on the messages: ", "does not end: "):
        if phrase in text:
            return f"The chat template {phrase}{text.partition(phrase)[2]}"
    return text
