"""Text to token ids and back, by the tokenizer of a GGUF file or a Hugging Face folder.

For GGUF files, ids equal llama.cpp's. The package `tokenizers` merges byte pairs. This module splits text
before that and joins it afterwards, so that all vocabularies behave the same.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Iterable

from airllm.text.vocabulary import Vocabulary

Encode = Callable[[str, bool], list[int]]


class Tokenizer:
    """`encode`, `decode` and the ids with a meaning: `bos_id`, `eos_id`, `eot_id` (None if the model has
    none), `stop_ids`, all ids that end a text or a turn, and `closing_id`, which models of embeddings want
    after a whole text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encode: Encode,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        eot_id: int | None = None,
        stop_ids: Iterable[int] = (),
        add_bos: bool = False,
        space_prefix: bool = False,
        closing_id: int | None = None,
    ):
        self.vocabulary = vocabulary
        self._encode = encode
        self.bos_id, self.eos_id, self.eot_id = bos_id, eos_id, eot_id
        named = {token for token in (eos_id, eot_id) if token is not None}
        self.stop_ids = frozenset(named | set(stop_ids) | vocabulary.ends())
        self.add_bos = add_bos and bos_id is not None
        self._space_prefix = space_prefix
        self.closing_id = closing_id

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self.vocabulary)

    def __repr__(self) -> str:
        ids = f"bos_id={self.bos_id}, eos_id={self.eos_id}, stop_ids={sorted(self.stop_ids)}"
        return f"<Tokenizer: {len(self)} tokens, {ids}, add_bos={self.add_bos}>"

    def encode(self, text: str, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Token ids of `text`. TypeError if it is no str, ValueError if it is not valid Unicode.

        If `special`, the text of a control token ("<|im_end|>") becomes that token; otherwise it is plain
        text, as for user input. `add_bos`: begin with the bos token; None: as the model requires.
        """
        if not isinstance(text, str):
            raise TypeError(f"encode: text has type {type(text).__name__}, expected a str")
        check_unicode("text", text)
        ids = self._encode(text, special)
        if (self.add_bos if add_bos is None else add_bos) and self.bos_id is not None:
            ids = [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of token ids, without control tokens unless `special`.

        If the model's `encode` puts a space before a text, a leading space is removed. Bytes that are not
        UTF-8 become U+FFFD. ValueError for an unknown id.
        """
        pieces = [self.piece(token, special) for token in ids]
        text = b"".join(pieces).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._space_prefix else text

    def decoder(self, special: bool | Container[int] = False) -> Decoder:
        """A `Decoder`, which decodes token by token. `special`: all control tokens, none, or these."""
        return Decoder(self, special)

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token, none for a control token unless `special`. ValueError for an unknown id."""
        token = int(token)
        if not 0 <= token < len(self):
            raise ValueError(f"decode: ids has value {token}, expected 0 to {len(self) - 1}")
        return b"" if not special and self.vocabulary.is_special(token) else self.vocabulary.piece(token)

    def id_of(self, text: str) -> int | None:
        """The id of the token with exactly this text; None if there is none."""
        return self.vocabulary.ids.get(text)


def check_unicode(what: str, text: str) -> None:
    """Raises ValueError for a text with a lone surrogate, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{what} has {text[error.start]!r} as character {error.start}"
        raise ValueError(f"{found}, expected Unicode: bytes that are no UTF-8 become such halves") from None


class Decoder:
    """Decodes a stream of tokens. It holds back the bytes of an incomplete character.

    The stream continues an earlier text, so no space is removed from its beginning.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool | Container[int] = False):
        self._tokenizer, self._special = tokenizer, special
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The text that this token completes."""
        special = self._special if isinstance(self._special, bool) else token in self._special
        return self._bytes.decode(self._tokenizer.piece(token, special))

    def finish(self) -> str:
        """U+FFFD if the last character is incomplete, else ""."""
        text = self._bytes.decode(b"", final=True)
        self._bytes.reset()
        return text
