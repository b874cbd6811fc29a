"""The items of a response's output, as they grow."""

from __future__ import annotations

import secrets
from typing import Any


class Item:
    """An item of the output, as it grows. Its methods return events: names with fields."""

    def __init__(self, index: int, id: str):
        self.index, self.id, self.status = index, id, "in_progress"
        self.text = ""

    def value(self) -> dict[str, Any]:
        raise NotImplementedError

    def opening(self) -> list[tuple[str, dict[str, Any]]]:
        return [("response.output_item.added", {"output_index": self.index, "item": self.value()})]

    def add(self, text: str, logprobs: list[Any]) -> list[tuple[str, dict[str, Any]]]:
        raise NotImplementedError

    def closing(self, status: str) -> list[tuple[str, dict[str, Any]]]:
        self.status = status
        return [("response.output_item.done", {"output_index": self.index, "item": self.value()})]

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}


class TextItem(Item):
    """A message with one text."""

    def __init__(self, index: int):
        super().__init__(index, f"msg_{secrets.token_hex(12)}")
        self._logprobs: list[Any] = []

    def value(self) -> dict[str, Any]:
        content = [self._part()] if self.status != "in_progress" else []
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": self.status,
            "content": content,
        }

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._logprobs)}

    def opening(self) -> list[tuple[str, dict[str, Any]]]:
        return [*super().opening(), ("response.content_part.added", self._in_part(part=self._part()))]

    def add(self, text: str, logprobs: list[Any]) -> list[tuple[str, dict[str, Any]]]:
        self.text += text
        self._logprobs += logprobs
        return [("response.output_text.delta", self._in_part(delta=text, logprobs=logprobs))]

    def closing(self, status: str) -> list[tuple[str, dict[str, Any]]]:
        done = self._in_part(text=self.text, logprobs=list(self._logprobs))
        part = self._in_part(part=self._part())
        parts = [("response.output_text.done", done), ("response.content_part.done", part)]
        return [*parts, *super().closing(status)]

    def _in_part(self, **fields: Any) -> dict[str, Any]:
        return {**self._place, "content_index": 0, **fields}


class CallItem(Item):
    """A call of a function."""

    def __init__(self, index: int, name: str, call_id: str):
        super().__init__(index, f"fc_{secrets.token_hex(12)}")
        self._name, self._call_id = name, call_id

    def value(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.text,
            "status": self.status,
        }

    def add(self, text: str, logprobs: list[Any]) -> list[tuple[str, dict[str, Any]]]:
        self.text += text
        return [("response.function_call_arguments.delta", {**self._place, "delta": text})]

    def closing(self, status: str) -> list[tuple[str, dict[str, Any]]]:
        done = {**self._place, "arguments": self.text, "name": self._name}
        return [("response.function_call_arguments.done", done), *super().closing(status)]
