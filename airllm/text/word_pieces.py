"""BERT's tokenizer: words of a cleaned text, each cut into the longest pieces that are in the vocabulary.

The package `tokenizers` runs it. Folders write a piece inside a word with "##" before it. GGUF files, and our
`Vocabulary`, write a piece at the beginning of a word with SentencePiece's space before it, and others as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airllm.files.weight_file import ModelFileError, read_json
from airllm.text.vocabulary import SPACE, Kind

_INSIDE = "##"
_LONGEST = 100  # letters: a longer word is unknown, as in BERT
CLS, SEP, UNKNOWN, MASK, PAD = NAMED = ("[CLS]", "[SEP]", "[UNK]", "[MASK]", "[PAD]")


def is_named(text: str) -> bool:
    """Whether it is written like a special token: [CLS], [unused7]."""
    return len(text) > 2 and text[0] == "[" and text[-1] == "]"


def with_space(text: str) -> str:
    """The text in a GGUF file of a piece in a folder."""
    if is_named(text):
        return text
    return text.removeprefix(_INSIDE) if text.startswith(_INSIDE) else SPACE + text


def with_marks(text: str, kind: int) -> str:
    """The text in a folder of a piece in a GGUF file."""
    if text.startswith(SPACE):
        return text[1:]
    special = kind in (Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED, Kind.UNUSED)
    return text if special or is_named(text) else _INSIDE + text


def is_cased(texts: Sequence[str]) -> bool:
    """Whether a vocabulary distinguishes case. No key of a GGUF file says it."""
    return any(text != text.lower() for text in texts if not is_named(text))


def build(ids: Mapping[str, int], cased: bool, unknown: str = UNKNOWN, **cleaning: Any) -> Any:
    """A tokenizer of the package for the pieces of a folder. `cleaning`: options of its BertNormalizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    whole = Tokenizer(models.WordPiece(dict(ids), unk_token=unknown, max_input_chars_per_word=_LONGEST))
    whole.normalizer = normalizers.BertNormalizer(**{"lowercase": not cased} | cleaning)
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return whole


def encoder_of(ids: Mapping[str, int], cased: bool, unknown: str) -> Callable[[str, bool], list[int]]:
    """Encodes a text without special tokens."""
    whole = build(ids, cased, unknown)
    return lambda text, after_special: list(whole.encode(text, add_special_tokens=False).ids)


def of_vocabulary_file(folder: Path) -> Any:
    """The tokenizer of a folder that has `vocab.txt`, a piece on each line, and no tokenizer.json."""
    from tokenizers import AddedToken, processors

    path = folder / "vocab.txt"
    lines = path.read_text(encoding="utf-8").split("\n")
    ids = {text.rstrip("\r"): i for i, text in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    if missing := [name for name in (CLS, SEP, UNKNOWN) if name not in ids]:
        raise ModelFileError(path, "the vocabulary", f"lacks {', '.join(missing)}", "BERT's special tokens")
    config = folder / "tokenizer_config.json"
    given = read_json(config) if config.is_file() else {}
    cleaning: dict[str, Any] = {
        "strip_accents": given.get("strip_accents"),
        "handle_chinese_chars": given.get("tokenize_chinese_chars", True) is not False,
    }
    whole = build(ids, given.get("do_lower_case", True) is False, **cleaning)
    whole.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in NAMED if name in ids]
    )
    whole.post_processor = processors.BertProcessing((SEP, ids[SEP]), (CLS, ids[CLS]))
    return whole
