"""The tokens of a tokenizer: their bytes, and those that split a text before it is tokenized."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from functools import cache


class Kind(enum.IntEnum):
    """The kind of a token, by GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPACE = "\u2581"  # SentencePiece's character for a space

# Texts of tokens that end a turn or a text. A file names only one or two of its own.
ENDS = (
    "<|eot_id|>", "<|eot|>", "<|eom|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<EOT>", "<|eom_id|>", "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>", "<|calls|>",
    "<|flush|>",
    "<turn|>", "<|tool_response>", "<eos>", "[e~[", "[EOT]", "[EOS]", "<end_of_utterance>",
)  # fmt: skip
# With one of these pairs, <|end|> ends only a part of a turn, such as the thoughts before an answer.
PARTED = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})

_WHITE = " \t\n\r\v\f"
STRIP_NOTHING = ("<unk>", "<s>", "<|endoftext|>")


class Vocabulary:
    """Texts and kinds of tokens. `letters`: normal tokens are bytes written as letters, as in GPT-2;
    otherwise they are SentencePiece's, with its character for a space and a token for each byte.
    `strip_after`: white space after a special token is removed, except after those of STRIP_NOTHING;
    `strip_before`: white space before the token of this text is.
    """

    def __init__(
        self,
        texts: Sequence[str],
        kinds: Sequence[int],
        letters: bool,
        strip_after: bool = False,
        strip_before: str | None = None,
    ):
        self.texts, self.kinds, self.letters = texts, kinds, letters
        self.strip_after, self._strip_before = strip_after, strip_before
        self.ids = {text: i for i, text in enumerate(texts)}
        split = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
        cut = [i for i, kind in enumerate(kinds) if kind in split and texts[i]]
        self._cut = sorted(cut, key=lambda i: -len(texts[i].encode()))

    def __len__(self) -> int:
        return len(self.texts)

    def is_special(self, token: int) -> bool:
        """Whether this is a control or unknown token, which is not part of the text by default."""
        return self.kinds[token] in (Kind.CONTROL, Kind.UNKNOWN)

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        text, kind = self.texts[token], self.kinds[token]
        if self.is_special(token) or kind == Kind.USER_DEFINED:
            return text.encode()
        if self.letters:
            known = bytes_of_letters()
            return b"".join(known.get(letter) or letter.encode() for letter in text)
        if kind == Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        return text.replace(SPACE, " ").encode()

    def split(self, text: str, special: bool) -> Iterator[str | int]:
        """Split the text at special tokens, which become ids: longer ones first, then from the left.

        It always splits at user-defined tokens, and at control tokens only if `special`.
        """
        parts: list[str | int] = [text] if text else []
        for token in self._cut:
            word = self.texts[token]
            if word in text and (special or not self.is_special(token)):
                parts = [
                    p
                    for part in parts
                    for p in (self._cut_out(part, word, token) if type(part) is str else [part])
                ]
        return iter(parts)

    def _cut_out(self, text: str, word: str, token: int) -> Iterator[str | int]:
        strip = self.strip_after and word not in STRIP_NOTHING
        start, size = 0, len(text)
        while (at := text.find(word, start)) >= 0:
            before = text[start:at]
            if before := before.rstrip(_WHITE) if word == self._strip_before else before:
                yield before
            yield token
            start = at + len(word)
            while strip and start < size and text[start] in _WHITE:
                start += 1
        if start < size:
            yield text[start:]

    def ends(self) -> set[int]:
        """Ids of the known tokens that end a text or a turn."""
        known = {text: self.ids[text] for text in ENDS if text in self.ids}
        ends = {text for text, i in known.items() if self.kinds[i] in (Kind.CONTROL, Kind.USER_DEFINED)}
        if any(pair <= ends for pair in PARTED):
            ends.discard("<|end|>")
        return {known[text] for text in ends}


@cache
def bytes_of_letters() -> dict[str, bytes]:
    """Letter of a GPT-2 vocabulary -> byte. A printable byte is its own letter; others are from 256 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {chr(byte): bytes([byte]) for byte in shown}
    return letters | {chr(256 + i): bytes([byte]) for i, byte in enumerate(hidden)}


def is_byte(text: str) -> bool:
    """Whether a token stands for a byte, such as "<0x0A>"."""
    digits = text[3:5]
    return len(text) == 6 and text == f"<0x{digits}>" and all(d in "0123456789ABCDEFabcdef" for d in digits)
