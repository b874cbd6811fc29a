"""Regular expressions of JSON Schema, in the syntax of the grammar engine.

JSON Schema has ECMAScript's expressions, the engine has those of Rust's crate `regex`. Most look alike, but
some mean other texts: `\\d`, `\\s`, `.`, and nested classes. Look-around and back references have no
counterpart. So each part is read here and written anew, and what has no counterpart raises ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_SPACES = r"\t\n\x0b\x0c\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_CLASSES = {
    "d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]",
    "s": f"[{_SPACES}]", "S": f"[^{_SPACES}]",
}  # fmt: skip
_ESCAPED = '"\\'  # in JSON strings, beside control characters
_WITH_ESCAPED = "DWS"  # the classes that have these characters
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_ANY_BUT_LINE_ENDS = r"[^\n\r\x{2028}\x{2029}]"
_ANY = r"[\x{0}-\x{10ffff}]"
# llguidance 1.9 takes a class with all control characters for one that also has the escaped characters. So a
# class without those loses a control character that no text needs.
_DROPPED = r"\x{1}"
_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})")
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})")
_GROUP = re.compile(r"\((?:\?(?::|<[A-Za-z_]\w*>))?")
_PUNCTUATION = frozenset("^$\\.*+?()[]{}|/-!\"#%&',:;<=>@_`~ ")


def translate(pattern: str) -> str:
    """The expression in the engine's syntax. ValueError with the reason if it has no counterpart."""
    return _Reader(pattern).translate()


def escape(text: str) -> str:
    """An expression in the engine's syntax that matches exactly this text."""
    return "".join(map(_literal, text))


def _literal(character: str) -> str:
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\x{{{ord(character):x}}}"


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, pattern: str):
        self._pattern, self._at = pattern, 0
        self._named = set[str]()  # characters that the present class names, at least those of _ESCAPED
        self._readers: dict[str, Callable[[], str]] = {
            "\\": self._escape,
            "[": self._class,
            "(": self._group,
            ".": lambda: self._take(1, _ANY_BUT_LINE_ENDS),
        }

    def translate(self) -> str:
        parts = []
        while self._at < len(self._pattern):
            parts.append(self._part())
        return "".join(parts)

    def _part(self) -> str:
        character = self._pattern[self._at]
        if character in self._readers:
            return self._readers[character]()
        if found := _QUANTIFIER.match(self._pattern, self._at):
            self._at = found.end()
            if self._pattern.startswith("?", self._at):  # a lazy quantifier matches the same texts
                self._at += 1
            return found.group()
        if character in "{}]":
            raise self._error(f"a {character} without its partner")
        return self._take(1, character if character in "^$|)" else _literal(character))

    def _take(self, count: int, result: str) -> str:
        self._at += count
        return result

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{what} at character {self._at}, which the grammar engine does not support")

    def _group(self) -> str:
        found = _GROUP.match(self._pattern, self._at)
        assert found
        if found.group() == "(" and self._pattern.startswith("(?", self._at):
            raise self._error("a look-around or an option")
        return self._take(len(found.group()), "(?:")

    def _escape(self) -> str:
        """An escape outside of classes."""
        kind = self._pattern[self._at + 1 : self._at + 2]
        if kind in _CLASSES:
            return self._take(2, _CLASSES[kind])
        return _literal(self._escaped_character())

    def _escaped_character(self) -> str:
        kind = self._pattern[self._at + 1 : self._at + 2]
        if found := _CODE.match(self._pattern, self._at):
            code = int(next(filter(None, found.groups())), 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise self._error(f"the escape {found.group()}")
            return self._take(len(found.group()), chr(code))
        if kind in _CONTROLS and not self._pattern[self._at + 2 : self._at + 3].isdigit():
            return self._take(2, chr(_CONTROLS[kind]))
        if kind and kind in _PUNCTUATION:
            return self._take(2, kind)
        raise self._error(f"the escape \\{kind}")

    def _class(self) -> str:
        """A class of characters, such as [^a-z\\d]."""
        start = "[^" if self._pattern.startswith("[^", self._at) else "["
        self._at += len(start)
        self._named = set[str]()
        parts = []
        while not self._pattern.startswith("]", self._at):
            if self._at >= len(self._pattern):
                raise self._error("a [ without its partner")
            parts.append(self._class_part())
        self._at += 1
        if not parts:
            if start == "[":
                raise self._error("an empty class")
            return _ANY
        text = f"{start}{''.join(parts)}]"
        has_escaped = all((each in self._named) != (start == "[^") for each in _ESCAPED)
        may_have_controls = start == "[^" or any(each < " " for each in self._named)
        return f"[{text}--{_DROPPED}]" if may_have_controls and not has_escaped else text

    def _class_part(self) -> str:
        """A character, a class of an escape, or a range."""
        kind = self._pattern[self._at + 1 : self._at + 2]
        if self._pattern[self._at] == "\\" and kind in _CLASSES:
            self._named |= set(_ESCAPED if kind in _WITH_ESCAPED else "")
            return self._take(2, _CLASSES[kind])
        first = self._class_character()
        if not re.match(r"-[^\]]", self._pattern[self._at : self._at + 2]):
            self._named.add(first)
            return _literal(first)
        self._at += 1
        last = self._class_character()
        if last < first:
            raise self._error(f"the range {first}-{last}")
        self._named |= {each for each in (first, *_ESCAPED) if first <= each <= last}
        return f"{_literal(first)}-{_literal(last)}"

    def _class_character(self) -> str:
        if self._pattern[self._at] != "\\":
            return self._take(1, self._pattern[self._at])
        if self._pattern[self._at + 1 : self._at + 2] == "b":
            return self._take(2, "\b")
        return self._escaped_character()
