"""The tokenizer of a GGUF file. Ids equal llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from airllm.architectures.families import strips_after_control
from airllm.files.weight_file import ModelFileError, first_names
from airllm.text import word_pieces
from airllm.text.byte_pairs import LinePieces, merging, package_errors
from airllm.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from airllm.text.sentencepiece import SentencePiece
from airllm.text.tokenizer import Encode, Tokenizer
from airllm.text.vocabulary import ENDS, Kind, Vocabulary, is_byte


def gguf_tokenizer(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that GGUF metadata describes. `path` is for messages. Raises ModelFileError."""
    keys = _Keys(path, metadata)
    model = keys.get("model", str)
    if model not in _MODELS:
        raise keys.error("model", f"has value {model!r}", f"one of {', '.join(_MODELS)}")
    return _MODELS[model](keys)


class _Keys:
    """The keys below `tokenizer.ggml`, checked. Errors are ModelFileErrors."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]):
        self.path, self.metadata = path, metadata

    def error(self, key: str, found: str, expected: str) -> ModelFileError:
        return ModelFileError(self.path, f"key tokenizer.ggml.{key}", found, expected)

    def get(self, key: str, type: type, default: Any = ...) -> Any:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if value is ...:
            raise self.error(key, "is missing", f"a {type.__name__}")
        if value is not default and not isinstance(value, type):
            raise self.error(key, f"is a {value.__class__.__name__}", f"a {type.__name__}")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings, not empty."""
        value = self.get(key, list)
        if not value:
            raise self.error(key, "is empty", "strings")
        return value

    def numbers(self, key: str, count: int) -> list[Any]:
        """An array of numbers, one for each token."""
        value = self.get(key, np.ndarray)
        if len(value) != count:
            raise self.error(key, f"has {len(value)} items", f"{count}, one for each token")
        return value.tolist()

    def token(self, name: str, count: int, default: int | None = None) -> int | None:
        """The id of a named token."""
        value = self.get(f"{name}_token_id", int, default)
        if value is not None and not 0 <= value < count:
            raise self.error(f"{name}_token_id", f"has value {value}", f"0 to {count - 1}")
        return value

    def stops(self, count: int) -> list[int]:
        """The token that ends a message with calls, if the file names it (GLM)."""
        end = self.token("eom", count)
        return [] if end is None else [end]

    def closing(self, count: int) -> int | None:
        """The token after a whole text, if the file asks for one."""
        if self.get("add_eos_token", bool, False):
            return self.token("eos", count)
        # llama.cpp writes the name of the separator with this error
        return self.token("seperator", count) if self.get("add_sep_token", bool, False) else None

    def vocabulary(self, letters: bool, strip_before: str | None = None) -> Vocabulary:
        texts = self.texts("tokens")
        kinds = self.numbers("token_type", len(texts))
        for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
            if kind == Kind.BYTE and not is_byte(text):
                raise self.error("tokens", f"has {text!r} as byte token {i}", "a text like <0x0A>")
            if kind == Kind.USER_DEFINED and text in ENDS:
                kinds[i] = int(Kind.CONTROL)  # what ends a text is no part of it
        name = str(self.metadata.get("general.name", "")).lower()
        return Vocabulary(texts, kinds, letters, strips_after_control(name), strip_before)


def _byte_pairs(keys: _Keys) -> Tokenizer:
    """The byte-pair kind of GPT-2: merges by rank within the pieces of a pre-tokenizer."""
    name = keys.get("pre", str, "default")
    if name not in PRE_TOKENIZERS:
        raise keys.error("pre", f"has value {name!r}", f"one of {', '.join(PRE_TOKENIZERS)}")
    before = PRE_TOKENIZERS[name]
    vocabulary = keys.vocabulary(letters=True, strip_before=before.strip_before)
    merge = _bpe_encoder(keys, vocabulary, before)
    return Tokenizer(
        vocabulary,
        _encode_around_special(vocabulary, lambda text, _: merge(text)),
        bos_id=keys.token("bos", len(vocabulary)),
        eos_id=keys.token("eos", len(vocabulary)),
        eot_id=keys.token("eot", len(vocabulary)),
        stop_ids=keys.stops(len(vocabulary)),
        add_bos=keys.get("add_bos_token", bool, before.add_bos),
        closing_id=keys.closing(len(vocabulary)),
    )


def _bpe_encoder(keys: _Keys, vocabulary: Vocabulary, before: PreTokenizer) -> Callable[[str], list[int]]:
    pairs = _merges(keys)
    with package_errors(keys.path, *_MERGES):
        merge = merging(vocabulary.ids, pairs, ignore_merges=before.whole_pieces)
    merge.pre_tokenizer = before.build()
    return lambda text: merge.encode(text, add_special_tokens=False).ids


_MERGES = ("key tokenizer.ggml.merges", "merges of tokens to tokens")


def _merges(keys: _Keys) -> list[tuple[str, str]]:
    pairs = []
    for i, merge in enumerate(keys.texts("merges")):
        cut = merge.find(" ", 1)  # a piece may begin with a space, but must not be empty
        if cut < 0 or cut == len(merge) - 1:
            raise keys.error("merges", f"has {merge!r} as item {i}", "two pieces with a space between")
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _line_pieces(keys: _Keys) -> Tokenizer:
    """The kind of Gemma 4. Its texts begin with the bos token, whatever a file says of that."""
    vocabulary, pairs = keys.vocabulary(letters=False), _merges(keys)
    count = len(vocabulary)
    missing = [name for byte in range(256) if (name := f"<0x{byte:02X}>") not in vocabulary.ids]
    if missing:
        raise keys.error("tokens", f"lacks {first_names(missing)}", "a token for each byte")
    with package_errors(keys.path, *_MERGES):
        pieces = LinePieces(vocabulary.ids, pairs)
    return Tokenizer(
        vocabulary,
        _encode_around_special(vocabulary, lambda text, _: pieces.encode(text)),
        bos_id=keys.token("bos", count),
        eos_id=keys.token("eos", count),
        eot_id=keys.token("eot", count),
        add_bos=True,
    )


def _sentence_pieces(keys: _Keys) -> Tokenizer:
    """The SentencePiece kind of Llama 2, Mistral, Gemma and Phi-3: pieces with scores, and bytes."""
    vocabulary = keys.vocabulary(letters=False)
    count = len(vocabulary)
    unknown = keys.token("unknown", count, 0)
    pieces = SentencePiece(vocabulary.ids, keys.numbers("scores", count), unknown)
    prefix = keys.get("add_space_prefix", bool, True)

    def encode(text: str, after_special: bool) -> list[int]:
        return pieces.encode(f" {text}" if prefix and after_special else text)

    return Tokenizer(
        vocabulary,
        _encode_around_special(vocabulary, encode),
        bos_id=keys.token("bos", count, 1),
        eos_id=keys.token("eos", count, 2),
        eot_id=keys.token("eot", count),
        stop_ids=keys.stops(count),
        add_bos=keys.get("add_bos_token", bool, True),
        space_prefix=prefix,
        closing_id=keys.closing(count),
    )


def _encode_around_special(vocabulary: Vocabulary, encode: Callable[[str, bool], list[int]]) -> Encode:
    """Split at special tokens and `encode` the parts. Its second argument: no text directly precedes it."""

    def whole(text: str, special: bool) -> list[int]:
        ids: list[int] = []
        after_special = True
        for part in vocabulary.split(text, special):
            ids += encode(part, after_special) if isinstance(part, str) else [part]
            after_special = not isinstance(part, str)
        return ids

    return whole


def _word_pieces(keys: _Keys) -> Tokenizer:
    """The kind of BERT. Its texts are between two special tokens."""
    vocabulary = keys.vocabulary(letters=False)
    count, texts = len(vocabulary), vocabulary.texts
    unknown = keys.token("unknown", count, vocabulary.ids.get(word_pieces.UNKNOWN, 0))
    opening = keys.token("cls", count, keys.token("bos", count, vocabulary.ids.get(word_pieces.CLS)))
    # llama.cpp writes the name of the separator with this error
    closing = keys.token("seperator", count, keys.token("eos", count, vocabulary.ids.get(word_pieces.SEP)))
    marked = [word_pieces.with_marks(text, vocabulary.kinds[i]) for i, text in enumerate(texts)]
    ids = {text: i for i, text in enumerate(marked)}
    with package_errors(keys.path, "key tokenizer.ggml.tokens", "pieces of words"):
        encode = word_pieces.encoder_of(ids, word_pieces.is_cased(marked), marked[unknown or 0])
    return Tokenizer(
        vocabulary,
        _encode_around_special(vocabulary, encode),
        bos_id=opening,
        eos_id=closing,
        add_bos=opening is not None,
        space_prefix=True,
        closing_id=closing,
    )


_MODELS: dict[str, Callable[[_Keys], Tokenizer]] = {
    "bert": _word_pieces, "gemma4": _line_pieces, "gpt2": _byte_pairs, "llama": _sentence_pieces,
}  # fmt: skip
