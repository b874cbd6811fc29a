"""Chat templates: a conversation as the text that a model was trained on.

A template is a program that came with a download, so it runs in Jinja's sandbox for untrusted ones: no
attribute of Python's insides, nothing changed, ranges of at most 100000. It finds what the templates of
Hugging Face models use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from airllm.models.gguf_file import GgufFile
from airllm.models.weights import ModelFileError, read_json

_GGUF_KEY = "tokenizer.chat_template"


class ChatTemplateError(ValueError):
    """A template refused these messages, or failed on them."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks in training templates what the model has said: here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise ChatTemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """As Hugging Face has it: Jinja's own would escape what is special in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions: list[Any] = ["jinja2.ext.loopcontrols", _Generation]
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return made


class ChatTemplate:
    """A compiled template; `path` and `place` say where it came from. Raises ModelFileError if it is none."""

    def __init__(self, source: str, path: Path, place: str = "", **names: str):
        self.source, self.path, self.place = source, path, place or "the chat template"
        self._names = names
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            where = self.place if line is None else f"{self.place}, line {line},"
            raise ModelFileError(path, where, f"is no Jinja template ({error})") from None

    def __repr__(self) -> str:
        return f"<ChatTemplate: {len(self.source)} characters, {self.place} of {self.path}>"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text for messages like `{"role": "user", "content": "Hi"}`.

        `add_generation_prompt` ends it where the model's answer begins. Raises ChatTemplateError with the
        template's reason if it does not take these messages. Encode the text with `add_bos=False`: a template
        that wants a bos token writes it.
        """
        checked = _checked(messages)
        given = {"tools": tools, "documents": None, **self._names, **variables}
        try:
            return self._template.render(
                messages=checked, add_generation_prompt=add_generation_prompt, **given
            )
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{self.path}: {self.place} refuses the messages: {error}") from None
        except Exception as error:  # whatever a program from a file may run into
            what = f"{type(error).__name__}: {error}"
            raise ChatTemplateError(f"{self.path}: {self.place} fails on the messages: {what}") from error


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"chat: messages has type {type(messages).__name__}, expected a list of dicts")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"chat: messages[{i}] has type {type(message).__name__}, expected a dict")
        if not isinstance(message.get("role"), str):
            raise ValueError(f"chat: messages[{i}] has role {message.get('role')!r}, expected a str")
    return [dict(message) for message in messages]


def open_chat_template(path: str | PathLike[str], name: str = "default") -> ChatTemplate | None:
    """The template of a GGUF file or Hugging Face folder, or None if it has none of this name."""
    path = Path(path)
    if path.is_dir():
        return folder_chat_template(path, name)
    with GgufFile(path) as file:
        return gguf_chat_template(path, file.metadata, name)


def gguf_chat_template(path: Path, metadata: Mapping[str, Any], name: str = "default") -> ChatTemplate | None:
    """The template in a GGUF file's metadata."""
    key = _GGUF_KEY if name == "default" else f"{_GGUF_KEY}.{name}"
    source = metadata.get(key)
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelFileError(path, f"key {key}", f"is a {type(source).__name__}", "a str")
    return ChatTemplate(source, path, f"key {key}", **_gguf_names(metadata))


def _gguf_names(metadata: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and eos_token, as text; what is wrong with them, the tokenizer says."""
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
    alone = folder / "chat_template.jinja"
    if name != "default":
        alone = folder / "additional_chat_templates" / f"{Path(name).name}.jinja"
    if alone.is_file():
        try:
            return ChatTemplate(alone.read_text(encoding="utf-8"), alone, **names)
        except UnicodeDecodeError as error:
            raise ModelFileError(alone, "the chat template", f"is no UTF-8 ({error})") from None
    source = _named(path, config.get("chat_template"), name)
    return None if source is None else ChatTemplate(source, path, "chat_template", **names)


def _named(path: Path, templates: Any, name: str) -> str | None:
    """`chat_template` is one template, or a list of those with names."""
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
    """Of a token that is a text, or an object with one, or absent."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
