"""Chat templates: render a conversation as the text that a model was trained on.

A template is a program from a download, so it runs in Jinja's sandbox for untrusted code: no access to
Python's internals, no mutation, ranges of at most 100000. It can use what templates of Hugging Face models
use. Its steps and the size of what it makes are limited (`sandbox.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from airllm.files.gguf import GgufFile
from airllm.files.weight_file import ModelFileError, model_path, read_json
from airllm.readable import escape_controls
from airllm.text.sandbox import MOST_WEIGHT, Sandbox, TooLong
from airllm.text.template_traits import TemplateTraits, fit_message, is_parts
from airllm.text.tokenizer import check_unicode

_GGUF_KEY = "tokenizer.chat_template"


class ChatTemplateError(ValueError):
    """A template refused these messages, or failed on them."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the model's own text for training. Here it has no effect."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise ChatTemplateError(message)


def strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as Hugging Face writes it. Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _environment() -> Sandbox:
    extensions: list[Any] = ["jinja2.ext.loopcontrols", _Generation]
    sandbox = Sandbox({"tojson": _to_json}, trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    del sandbox.globals["lipsum"]  # it makes as many words as it is asked for
    sandbox.globals["raise_exception"] = _raise
    sandbox.globals["strftime_now"] = strftime_now
    return sandbox


class ChatTemplate:
    """A compiled template. `path` and `place` are for messages. `with_tools`: the template that renders
    instead if there are tools. ModelFileError if it does not compile.
    """

    def __init__(
        self,
        source: str,
        path: Path,
        place: str = "",
        with_tools: ChatTemplate | None = None,
        **names: str,
    ):
        self.source, self.path, self.place = source, path, place or "the chat template"
        self.with_tools = with_tools
        self._names, self._sandbox = names, _environment()
        try:
            self._template = self._sandbox.from_string(source)
        except Exception as error:  # Jinja also passes on errors of Python's compiler
            where = self.place
            if isinstance(error, jinja2.TemplateSyntaxError):
                where += f", line {error.lineno},"
            raise ModelFileError(path, where, f"is not a Jinja template ({_one_line(error)})") from None

    def __repr__(self) -> str:
        return f"<ChatTemplate: {len(self.source)} characters, {self.place} of {self.path}>"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Render messages such as `{"role": "user", "content": "Hi"}`.

        With `add_generation_prompt`, the text ends where the model's answer begins. Encode it with
        `add_bos=False`: a template writes the bos token itself if the model needs one. Raises
        ChatTemplateError with the template's reason if it refuses these messages.
        """
        chosen = self.with_tools if tools and self.with_tools else self
        return chosen.render_alone(messages, add_generation_prompt, tools, **variables)

    def render_alone(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """As `render`, by this template whether or not there are tools."""
        checked = [fit_message(message, self.traits) for message in _check_messages(messages)]
        given = {"tools": tools, **variables, "add_generation_prompt": add_generation_prompt}
        try:
            return self._text(checked, given)
        except ChatTemplateError as error:
            why = f"rejects the messages: {_one_line(error)}"
            raise ChatTemplateError(f"{self.path}: {self.place} {why}") from None
        except TooLong as error:
            raise ChatTemplateError(f"{self.path}: {self.place} does not end: {error}") from None
        except Exception as error:  # a template may raise anything
            why = f"fails on the messages: {type(error).__name__}: {_one_line(error)}"
            raise ChatTemplateError(f"{self.path}: {self.place} {why}") from error

    def _text(self, messages: list[dict[str, Any]], given: dict[str, Any]) -> str:
        self._sandbox.reset()
        try:
            return self._generate(messages, given)
        finally:
            self._sandbox.reset()  # it holds what it has weighed

    def _generate(self, messages: list[dict[str, Any]], given: dict[str, Any]) -> str:
        pieces, length = [], 0
        known = {"documents": None, **self._names, **given}
        for piece in self._template.generate(messages=messages, **known):
            pieces.append(piece)
            length += len(piece)
            if length > MOST_WEIGHT:
                raise TooLong(f"a text of more than {MOST_WEIGHT} characters")
        text = "".join(pieces)
        text.encode()  # a lone surrogate, which no tokenizer accepts, is an error of the template
        return text

    @cached_property
    def traits(self) -> TemplateTraits:
        """What the template supports."""
        return TemplateTraits(self.source, self._try_render)

    def _try_render(self, *messages: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> str:
        """The text of these messages; "" if the template fails on them."""
        try:
            return self._text(list(messages), {"tools": tools, "add_generation_prompt": False})
        except Exception:
            return ""


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"chat: messages has type {type(messages).__name__}, expected a list of dicts")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"chat: messages[{i}] has type {type(message).__name__}, expected a dict")
        if not isinstance(message.get("role"), str):
            raise ValueError(f"chat: messages[{i}] has role {message.get('role')!r}, expected a str")
        content = message.get("content")
        if isinstance(content, str):
            check_unicode(f"chat: messages[{i}]: content", content)
        elif isinstance(content, list) and is_parts(content):
            _check_parts(i, content)
    return [dict(message) for message in messages]


def _check_parts(message: int, parts: list[Mapping[str, Any]]) -> None:
    for part in parts:
        if part["type"] != "text":
            found = f"chat: messages[{message}] has a part of type {part['type']!r}"
            raise ValueError(f"{found}, expected 'text': models here read only text")
        if not isinstance(part.get("text"), str):
            kind = type(part.get("text")).__name__
            raise ValueError(f"chat: messages[{message}] has a part with text of type {kind}, expected a str")
        check_unicode(f"chat: messages[{message}]: a part", part["text"])


def _one_line(error: Exception) -> str:
    return escape_controls(" ".join(str(error).split()))


_TOOL_USE = "tool_use"  # the template that transformers takes if there are tools


def open_chat_template(path: str | PathLike[str], name: str = "default") -> ChatTemplate | None:
    """The template of a GGUF file or Hugging Face folder, or None if it has none of this name. The default
    template has the one for tools with it.
    """
    path = model_path(path)
    if path.is_dir():
        return folder_chat_template(path, name)
    with GgufFile(path) as file:
        return gguf_chat_template(path, file.metadata, name)


def gguf_chat_template(path: Path, metadata: Mapping[str, Any], name: str = "default") -> ChatTemplate | None:
    """The template in a GGUF file's metadata, or None if there is none of this name."""
    key = _GGUF_KEY if name == "default" else f"{_GGUF_KEY}.{name}"
    source = metadata.get(key)
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelFileError(path, f"key {key}", f"is a {type(source).__name__}", "a str")
    with_tools = gguf_chat_template(path, metadata, _TOOL_USE) if name == "default" else None
    return ChatTemplate(source, path, f"key {key}", with_tools, **_gguf_names(metadata))


def _gguf_names(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of bos_token and eos_token; "" if they are invalid, which the tokenizer reports."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    found = {}
    for name in ("bos", "eos"):
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        found[f"{name}_token"] = tokens[token] if isinstance(token, int) and 0 <= token < len(tokens) else ""
    return found


def folder_chat_template(folder: Path, name: str = "default") -> ChatTemplate | None:
    """The template in `chat_template.jinja`, else in `tokenizer_config.json`."""
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    names = {key: _text(config.get(key)) for key in ("bos_token", "eos_token")}
    with_tools = folder_chat_template(folder, _TOOL_USE) if name == "default" else None
    alone = folder / "chat_template.jinja"
    if name != "default":
        alone = folder / "additional_chat_templates" / f"{Path(name).name}.jinja"
    if alone.is_file():
        try:
            return ChatTemplate(alone.read_text(encoding="utf-8"), alone, with_tools=with_tools, **names)
        except UnicodeDecodeError as error:
            raise ModelFileError(alone, "the chat template", f"is not UTF-8 ({error})") from None
    source = _template_named(path, config.get("chat_template"), name)
    return None if source is None else ChatTemplate(source, path, "chat_template", with_tools, **names)


def _template_named(path: Path, templates: Any, name: str) -> str | None:
    """The template of this name. `chat_template` is one template, or a list of named ones."""
    if templates is None or isinstance(templates, str):
        return templates if name == "default" else None
    entries = templates if isinstance(templates, list) else [templates]
    for entry in entries:
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(k), str) for k in ("name", "template")
        ):
            raise ModelFileError(path, "chat_template", f"holds {entry!r}", "a name and a template")
        if entry["name"] == name:
            return entry["template"]
    return None


def _text(token: Any) -> str:
    """The text of a token, which is a text, an object with one, or absent."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
