"""Converts the tokenizer of a Hugging Face folder to the keys of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from airllm.files.gguf_writer import ARRAY, BOOL, FLOAT32, INT32, STRING, UINT32, Key
from airllm.files.weight_file import ModelFileError
from airllm.text.folder_tokenizer import folder_tokenizer, whole_tokenizer
from airllm.text.gguf_tokenizer import gguf_tokenizer
from airllm.text.pre_tokenizers import PRE_TOKENIZERS
from airllm.text.tokenizer import Tokenizer
from airllm.text.vocabulary import SPACE, Kind
from airllm.text.word_pieces import MASK, PAD, UNKNOWN

# Texts on which tokenizers differ: digits, contractions, case, spaces, line ends, marks, scripts.
PROBES = (
    "Hello  world\n\n  tabs\tand\t\tmore 12345 1 22 333 4444. I'm, YOU'RE don't; we'll!",
    "   leading, trailing   ",
    "naïve café ÀÉ straße 漢字かな交じり文 한국어 русский язык हिन्दी العربية עברית ไทย",
    "🙂🙃 👩‍👩‍👧 x=1+2*3/4; if (a<b) {c[0]=\"d\"}\r\n\r\n# ___ --- ... !!!??? \u2019s \u201cq\u201d \u2014",
    "CamelCaseWords snake_case_words http://a.b/c?d=e&f=1.5e-10 ٣٤٥ ½ Ⅷ ²",
    " a", "a", "\n", " \n \n a", "1234567", "'s 'S 'LL",
)  # fmt: skip


def tokenizer_keys(folder: Path, vocabulary: int, line_pieces: bool = False) -> list[Key]:
    """The keys. A vocabulary smaller than the model's is padded. `line_pieces`: see `Architecture`. Raises
    ModelFileError for a tokenizer that would give other ids, or that GGUF cannot express.
    """
    path, _, description = whole_tokenizer(folder, vocabulary)
    tokenizer, model = folder_tokenizer(folder, vocabulary), description.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if kind not in ("BPE", "WordPiece"):
        raise ModelFileError(
            path, "model", f"is of type {kind}", "BPE or WordPiece, which GGUF files support"
        )
    assert isinstance(model, dict)
    if len(tokenizer) > vocabulary:
        found = f"has {len(tokenizer)} tokens"
        raise ModelFileError(path, "the vocabulary", found, f"at most the model's {vocabulary}")
    merges = [tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in model.get("merges", ())]
    keys = [*_words(tokenizer, vocabulary), *_special_tokens(tokenizer)]
    letters = tokenizer.vocabulary.letters
    if kind == "WordPiece":
        keys += _word_pieces(tokenizer, vocabulary)
    elif letters:
        keys += _byte_pairs(path, model, merges, description.get("added_tokens") or [])
    else:
        keys += _line_pieces(merges) if line_pieces else _pieces(tokenizer, merges, vocabulary)
    _check(path, tokenizer, keys)
    return keys


def _words(tokenizer: Tokenizer, count: int) -> Iterator[Key]:
    words = tokenizer.vocabulary
    missing = range(len(words), count)
    kinds = [*(int(kind) for kind in words.kinds), *(int(Kind.UNUSED) for _ in missing)]
    texts = [text or f"[PAD{i}]" for i, text in enumerate(words.texts)] + [f"[PAD{i}]" for i in missing]
    yield Key("tokenizer.ggml.tokens", texts, (*ARRAY, *STRING))
    yield Key("tokenizer.ggml.token_type", kinds, (*ARRAY, *INT32))


def _special_tokens(tokenizer: Tokenizer) -> Iterator[Key]:
    # the token after a whole text has no other name in GGUF files; in folders it may differ (Qwen3-Embedding)
    last = tokenizer.eos_id if tokenizer.closing_id is None else tokenizer.closing_id
    for name, token in (("bos", tokenizer.bos_id), ("eos", last)):
        if token is not None:
            yield Key(f"tokenizer.ggml.{name}_token_id", token, UINT32)
    others = sorted(tokenizer.stop_ids - {last} - tokenizer.vocabulary.ends())
    for name, token in zip(("eot", "eom"), others, strict=False):  # GGUF files name no more
        yield Key(f"tokenizer.ggml.{name}_token_id", token, UINT32)
    yield Key("tokenizer.ggml.add_bos_token", tokenizer.add_bos, BOOL)
    if tokenizer.closing_id is not None:
        yield Key("tokenizer.ggml.add_eos_token", True, BOOL)


def _byte_pairs(
    path: Path, model: dict[str, Any], merges: list[tuple[str, ...]], added: list[dict[str, Any]]
) -> Iterator[Key]:
    yield Key("tokenizer.ggml.model", "gpt2", STRING)
    yield Key("tokenizer.ggml.pre", _pre_tokenizer(path, model, added), STRING)
    yield Key("tokenizer.ggml.merges", [" ".join(pair) for pair in merges], (*ARRAY, *STRING))


def _pre_tokenizer(path: Path, model: dict[str, Any], added: list[dict[str, Any]]) -> str:
    """The name of the pre-tokenizer that splits texts as the folder's does."""
    from tokenizers import Tokenizer as Whole

    own = Whole.from_file(str(path)).pre_tokenizer
    traits = (bool(model.get("ignore_merges")), {each["content"] for each in added if each.get("lstrip")})
    if own is not None:
        for name, known in PRE_TOKENIZERS.items():
            built = known.build()
            found = (known.whole_pieces, {known.strip_before} - {None})
            if found == traits and all(cut(own, t) == cut(built, t) for t in PROBES):
                return name
    expected = f"one that splits texts like one of {', '.join(PRE_TOKENIZERS)}"
    raise ModelFileError(path, "pre_tokenizer", "splits texts in an unknown way", expected)


def cut(pre_tokenizer: Any, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


def _word_pieces(tokenizer: Tokenizer, count: int) -> Iterator[Key]:
    """The keys of BERT's kind."""
    yield Key("tokenizer.ggml.model", "bert", STRING)
    yield Key("tokenizer.ggml.scores", [-1000.0] * count, (*ARRAY, *FLOAT32))  # llama.cpp expects some
    yield Key("tokenizer.ggml.token_type_count", 2, UINT32)
    # llama.cpp writes the name of the separator with this error
    named = {"cls": tokenizer.bos_id, "seperator": tokenizer.closing_id}
    named |= {
        "unknown": tokenizer.id_of(UNKNOWN),
        "padding": tokenizer.id_of(PAD),
        "mask": tokenizer.id_of(MASK),
    }
    for name, token in named.items():
        if token is not None:
            yield Key(f"tokenizer.ggml.{name}_token_id", token, UINT32)


def _line_pieces(merges: list[tuple[str, ...]]) -> Iterator[Key]:
    """The keys of Gemma 4's kind."""
    yield Key("tokenizer.ggml.model", "gemma4", STRING)
    yield Key("tokenizer.ggml.merges", [" ".join(pair) for pair in merges], (*ARRAY, *STRING))


def _pieces(tokenizer: Tokenizer, merges: list[tuple[str, ...]], count: int) -> Iterator[Key]:
    """The keys of the SentencePiece kind. An earlier merge gives its piece a higher score."""
    rank: dict[str, int] = {}
    for i, pair in enumerate(merges):
        rank.setdefault("".join(pair), i)
    texts = tokenizer.vocabulary.texts
    last = len(merges)
    scores = [-float(rank.get(text, last)) for text in texts] + [-float(last)] * (count - len(texts))
    first = tokenizer.encode("a", add_bos=False)[0]
    unknown = next((i for i, text in enumerate(texts) if text == "<unk>"), 0)
    yield Key("tokenizer.ggml.model", "llama", STRING)
    yield Key("tokenizer.ggml.scores", scores, (*ARRAY, *FLOAT32))
    yield Key("tokenizer.ggml.unknown_token_id", unknown, UINT32)
    yield Key("tokenizer.ggml.add_space_prefix", texts[first].startswith(SPACE), BOOL)


def _check(path: Path, tokenizer: Tokenizer, keys: list[Key]) -> None:
    """Check that both tokenizers give the same ids and end a text by the same tokens."""
    numbers = (*INT32, *FLOAT32)
    metadata = {k.name: np.array(k.value) if k.types[-1] in numbers else k.value for k in keys}
    converted = gguf_tokenizer(path, metadata)
    special = [
        text for i, text in enumerate(tokenizer.vocabulary.texts) if tokenizer.vocabulary.is_special(i)
    ]
    for text in (*PROBES, *(f"x {each}\ny {each} z" for each in special[:8])):
        before, after = tokenizer.encode(text), converted.encode(text)
        if before != after:
            found = f"would give {text[:40]!r} other ids in a GGUF file"
            raise ModelFileError(path, "the tokenizer", found, "the same ids")
    if tokenizer.closing_id != converted.closing_id:
        found = f"is {tokenizer.closing_id}, and would be {converted.closing_id} in a GGUF file"
        raise ModelFileError(path, "the token after a text", found, "the same")
    if not tokenizer.stop_ids <= converted.stop_ids:
        lost = sorted(tokenizer.stop_ids - converted.stop_ids)
        raise ModelFileError(
            path, "the tokens that end a text", f"are also {lost}", "two beside the known ones"
        )
