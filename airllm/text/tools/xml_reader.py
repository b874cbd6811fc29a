"""Reads calls as XML from a text while it is generated, and gives their arguments as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from airllm.text.tools.reader import CallDelta, ToolCallReader
from airllm.text.tools.xml_formats import XmlFormat

Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments, by the tool's name


class XmlCallReader(ToolCallReader):
    """A `ToolCallReader` of calls as XML. `schemas` say which arguments are texts. An argument is passed on
    when it is whole.
    """

    def __init__(self, format: XmlFormat, schemas: Schemas, new_id: Callable[[], str] | None = None):
        super().__init__(format, new_id)
        self._xml, self._schemas = format, schemas
        self._tool, self._keys = "", 0

    def _begin_call(self, found: Any) -> None:
        super()._begin_call(found)
        self._tool, self._keys = found["name"], 0

    def _read_arguments(self, is_last: bool) -> bool:
        """One argument, or the end of the call."""
        if found := self._xml.argument.match(self._buffer):
            end = self._buffer.find(self._xml.value_close, found.end())
            if end < 0:
                return False
            is_text = found.groupdict().get("text")
            self._add(found["key"].strip(), self._buffer[found.end() : end], is_text)
            self._buffer = self._buffer[end + len(self._xml.value_close) :]
            return True
        if not self._buffer.lstrip().startswith(self._xml.done) and self._may_go_on():
            return False  # at the end of the text, the call is cut off
        self._deltas.append(CallDelta(self.calls - 1, "}" if self._keys else "{}"))
        self._step = self._read_tail
        return True

    def _may_go_on(self) -> bool:
        """Whether the buffer may become an argument or the end of the call."""
        begun = self._buffer.lstrip()
        key = self._xml.key
        return begun.startswith(key) or key.startswith(begun) or self._xml.done.startswith(begun)

    def _add(self, key: str, text: str, is_text: str | None) -> None:
        """Pass on an argument. `is_text`: "true" or "false" if the call says so itself, else None."""
        before = ", " if self._keys else "{"
        self._keys += 1
        if is_text == "true":
            value = json.dumps(text, ensure_ascii=False)
        else:
            value = self._value(key, text, is_json=is_text == "false")
        self._deltas.append(
            CallDelta(self.calls - 1, f"{before}{json.dumps(key, ensure_ascii=False)}: {value}")
        )

    def _value(self, key: str, text: str, is_json: bool) -> str:
        """The argument as JSON: itself if it is JSON of another type than a text, else a text."""
        text = text.removeprefix("\n").removesuffix("\n")
        properties = self._schemas.get(self._tool, {}).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        if is_json or not isinstance(schema, Mapping) or schema.get("type") != "string":
            try:
                return json.dumps(json.loads(text), ensure_ascii=False)
            except ValueError:
                pass
        return json.dumps(text, ensure_ascii=False)
