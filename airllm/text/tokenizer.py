"""Text to token ids and back, by the tokenizer of a GGUF file or a Hugging Face folder.

For GGUF files, ids equal llama.cpp's. The package `tokenizers` merges byte pairs. This module splits text
before that and joins it afterwards, so that all vocabularies behave the same.
"""

from __future__ import annotations

import codecs
import json
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from airllm.architectures.families import strips_after_control
from airllm.files.gguf import GgufFile
from airllm.files.weight_file import ModelFileError, first_names, model_path, read_json
from airllm.text import word_pieces
from airllm.text.byte_pairs import LinePieces, merging, package_errors
from airllm.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from airllm.text.sentencepiece import SentencePiece
from airllm.text.vocabulary import ENDS, Kind, Vocabulary

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


def open_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """The tokenizer of a GGUF file or a Hugging Face folder. Raises ModelFileError or OSError."""
    path = model_path(path)
    if path.is_dir():
        return folder_tokenizer(path)
    with GgufFile(path) as file:
        return gguf_tokenizer(path, file.metadata)


# ------------------------------------------------------------------------------------------------ GGUF


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

    def vocabulary(self, letters: bool) -> Vocabulary:
        texts = self.texts("tokens")
        kinds = self.numbers("token_type", len(texts))
        for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
            if kind == Kind.BYTE and not _is_byte(text):
                raise self.error("tokens", f"has {text!r} as byte token {i}", "a text like <0x0A>")
            if kind == Kind.USER_DEFINED and text in ENDS:
                kinds[i] = int(Kind.CONTROL)  # what ends a text is no part of it
        name = str(self.metadata.get("general.name", "")).lower()
        return Vocabulary(texts, kinds, letters, strip_after=strips_after_control(name))


def _is_byte(text: str) -> bool:
    digits = text[3:5]
    return len(text) == 6 and text == f"<0x{digits}>" and all(d in "0123456789ABCDEFabcdef" for d in digits)


def _byte_pairs(keys: _Keys) -> Tokenizer:
    """The byte-pair kind of GPT-2: merges by rank within the pieces of a pre-tokenizer."""
    name = keys.get("pre", str, "default")
    if name not in PRE_TOKENIZERS:
        raise keys.error("pre", f"has value {name!r}", f"one of {', '.join(PRE_TOKENIZERS)}")
    before, vocabulary = PRE_TOKENIZERS[name], keys.vocabulary(letters=True)
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


# ------------------------------------------------------------------------------------------------ folders


def folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with `tokenizer.json`, or BERT's with `vocab.txt`, run by the package
    `tokenizers`.
    """
    path, whole, description = whole_tokenizer(folder)
    words = _types(description.get("model")) == {"WordPiece"}
    decoders = _types(description.get("decoder"))
    letters = "ByteLevel" in decoders
    if not letters and not words and not decoders & {"ByteFallback", "Metaspace"}:
        expected = "ByteLevel, ByteFallback or Metaspace"
        raise ModelFileError(path, "decoder", f"is of type {first_names(sorted(decoders)) or None}", expected)
    vocabulary = _folder_vocabulary(path, whole, description, letters, words)
    special, (first, closing) = _named_tokens(folder, vocabulary), _added(path, whole)
    opening = special.get("bos_token", first)
    return Tokenizer(
        vocabulary,
        _whole_encode(path, whole),
        bos_id=opening,
        eos_id=special.get("eos_token", closing),
        stop_ids=_generation_stops(folder, len(vocabulary)),
        add_bos=opening is not None and first == opening,
        space_prefix=words or "Strip" in decoders or "Metaspace" in decoders,
        closing_id=closing,
    )


def whole_tokenizer(folder: Path) -> tuple[Path, Any, dict[str, Any]]:
    """The file of a folder's tokenizer, the package's object for it, and its description as JSON. Raises
    ModelFileError or OSError.
    """
    from tokenizers import Tokenizer as Whole

    path = folder / "tokenizer.json"
    if not path.is_file() and (folder / "vocab.txt").is_file():
        path = folder / "vocab.txt"
        with package_errors(path, "the vocabulary"):
            whole = word_pieces.of_vocabulary_file(folder)
            return path, whole, json.loads(whole.to_str())
    description = read_json(path)
    with package_errors(path, "the tokenizer"):
        whole = Whole.from_file(str(path))
        whole.no_padding()
        whole.no_truncation()
    return path, whole, description


def _types(part: Any) -> set[str]:
    """The types in a nested description of a decoder."""
    if not isinstance(part, dict):
        return set()
    return {str(part.get("type"))}.union(*(_types(each) for each in part.get("decoders") or ()))


def _folder_vocabulary(
    path: Path, whole: Any, description: dict[str, Any], letters: bool, words: bool
) -> Vocabulary:
    ids = whole.get_vocab(with_added_tokens=True)
    count = max(ids.values(), default=-1) + 1
    if count > (most := path.stat().st_size):  # the list has an item for each id up to the largest
        expected = f"at most {most - 1} in a file of {most} bytes"
        raise ModelFileError(path, "the tokenizer", f"has a token with id {count - 1}", expected)
    texts, kinds = [""] * count, [int(Kind.UNUSED)] * count
    for text, i in ids.items():
        texts[i] = word_pieces.with_space(text) if words else text
        kinds[i] = Kind.BYTE if not (letters or words) and _is_byte(text) else Kind.NORMAL
    for added in description.get("added_tokens") or ():
        if (i := ids.get(added["content"])) is not None:
            kinds[i] = Kind.CONTROL if added.get("special") else Kind.USER_DEFINED
            texts[i] = added["content"]
    return Vocabulary(texts, kinds, letters)


def _whole_encode(path: Path, whole: Any) -> Encode:
    lock = threading.Lock()  # encode_special_tokens is state of the package's object

    def encode(text: str, special: bool) -> list[int]:
        with lock, package_errors(path, "the tokenizer"):
            whole.encode_special_tokens = not special
            return list(whole.encode(text, add_special_tokens=False).ids)

    return encode


def _named_tokens(folder: Path, vocabulary: Vocabulary) -> dict[str, int]:
    """The ids of bos_token and eos_token in tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    found = {}
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if text is None:
            continue
        if not isinstance(text, str) or text not in vocabulary.ids:
            raise ModelFileError(path, name, f"is {text!r}", "a token of tokenizer.json")
        found[name] = vocabulary.ids[text]
    return found


def _generation_stops(folder: Path, count: int) -> list[int]:
    """eos_token_id of generation_config.json: one id or a list."""
    path = folder / "generation_config.json"
    value = read_json(path).get("eos_token_id") if path.is_file() else None
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or not 0 <= token < count:
            raise ModelFileError(path, "eos_token_id", f"has {token!r}", f"ids from 0 to {count - 1}")
    return ids


def _added(path: Path, whole: Any) -> tuple[int | None, int | None]:
    """The tokens that the post-processor adds at the beginning and at the end."""
    with package_errors(path, "the tokenizer"):
        alone, added = (whole.encode("a", add_special_tokens=each).ids for each in (False, True))
    opening = added[0] if added[:1] != alone[:1] else None
    return opening, added[-1] if added[-1:] != alone[-1:] else None
