"""A tokenizer as the grammar engine reads it."""

from __future__ import annotations

from typing import Any

from airllm.text.tokenizer import Tokenizer
from airllm.text.vocabulary import Kind

_SPECIAL = b"\xff"  # before the text of a token that is no text; no UTF-8 has this byte
_ANCHOR = "="


class VocabularyTable:
    """The bytes of all tokens, and a function that encodes text which stands in the middle of another."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer):
        vocabulary = tokenizer.vocabulary
        self._tokenizer = tokenizer
        self.special_token_ids = [i for i, kind in enumerate(vocabulary.kinds) if not _is_text(kind)]
        special = set(self.special_token_ids) | tokenizer.stop_ids
        pieces = (vocabulary.piece(i) for i in range(len(vocabulary)))
        self.tokens = [_SPECIAL + piece if i in special else piece for i, piece in enumerate(pieces)]
        self.stop_ids = sorted(tokenizer.stop_ids)
        if not self.stop_ids:
            raise ValueError("the tokenizer has no token that ends a text, which a grammar needs")
        self.eos_token_id = self.stop_ids[0]

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of a text; of its bytes if the tokenizer changes the text."""
        whole = text.encode() if isinstance(text, str) else text
        for anchor in (
            "",
            _ANCHOR,
        ):  # some tokenizers put a space before a text, unless something precedes it
            found = self._encode(anchor, whole)
            if found is not None:
                return found
        return self._longest_pieces(whole)

    def _encode(self, anchor: str, whole: bytes) -> list[int] | None:
        """The tokens after those of the anchor; None if they do not have exactly these bytes."""
        ids = self._tokenizer.encode(anchor + whole.decode(), special=False, add_bos=False)
        ids = ids[len(self._tokenizer.encode(anchor, special=False, add_bos=False)) :]
        return ids if b"".join(self.tokens[i] for i in ids) == whole else None

    def _longest_pieces(self, whole: bytes) -> list[int]:
        """Tokens of the longest pieces, from the left."""
        known = {piece: i for i, piece in enumerate(self.tokens) if piece}
        longest = max(map(len, known))
        found: list[int] = []
        at = 0
        while at < len(whole):
            piece = next(whole[at : at + n] for n in range(longest, 0, -1) if whole[at : at + n] in known)
            found.append(known[piece])
            at += len(piece)
        return found


def _is_text(kind: Any) -> bool:
    return kind in (Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE)
