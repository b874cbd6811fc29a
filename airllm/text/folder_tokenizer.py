"""The tokenizer of a Hugging Face folder, which the package `tokenizers` runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from airllm.files.weight_file import ModelFileError, first_names, read_json
from airllm.text import word_pieces
from airllm.text.byte_pairs import package_errors
from airllm.text.tokenizer import Encode, Tokenizer
from airllm.text.vocabulary import SPACE, Kind, Vocabulary, is_byte


def folder_tokenizer(folder: Path, rows: int | None = None) -> Tokenizer:
    """The tokenizer of a folder with `tokenizer.json`, or BERT's with `vocab.txt`, run by the package
    `tokenizers`. `rows`: see `whole_tokenizer`.
    """
    path, whole, description = whole_tokenizer(folder, rows)
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


def whole_tokenizer(folder: Path, rows: int | None = None) -> tuple[Path, Any, dict[str, Any]]:
    """The file of a folder's tokenizer, the package's object for it, and its description as JSON. Without the
    added tokens from `rows` on, for which the model has no rows: Gemma 3's models of text alone name one of
    images. Raises ModelFileError or OSError.
    """
    from tokenizers import Tokenizer as Whole

    path = folder / "tokenizer.json"
    if not path.is_file() and (folder / "vocab.txt").is_file():
        path = folder / "vocab.txt"
        with package_errors(path, "the vocabulary"):
            whole = word_pieces.of_vocabulary_file(folder)
            return path, whole, json.loads(whole.to_str())
    description = read_json(path)
    beyond = _leave_out(description, rows)
    with package_errors(path, "the tokenizer"):
        whole = Whole.from_str(json.dumps(description)) if beyond else Whole.from_file(str(path))
        whole.no_padding()
        whole.no_truncation()
    return path, whole, description


def _leave_out(description: dict[str, Any], rows: int | None) -> bool:
    """Leave out the added tokens from `rows` on. Whether there were any."""
    added = description.get("added_tokens")
    if rows is None or not isinstance(added, list):
        return False
    description["added_tokens"] = [each for each in added if not _is_beyond(each, rows)]
    return len(description["added_tokens"]) < len(added)


def _is_beyond(added: Any, rows: int) -> bool:
    token = added.get("id") if isinstance(added, dict) else None
    return isinstance(token, int) and token >= rows


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
        kinds[i] = Kind.BYTE if not (letters or words) and is_byte(text) else Kind.NORMAL
    for added in description.get("added_tokens") or ():
        if (i := ids.get(added["content"])) is not None:
            kinds[i] = Kind.CONTROL if added.get("special") else Kind.USER_DEFINED
            plain = letters or words or kinds[i] == Kind.CONTROL
            # Gemma 3 adds runs of spaces, which its decoder writes as such
            texts[i] = added["content"] if plain else added["content"].replace(SPACE, " ")
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
