"""Byte-pair encoding by the package `tokenizers`: merges by rank, its errors, and the pieces of Gemma 4."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airllm.files.weight_file import ModelFileError
from airllm.text.vocabulary import SPACE

_LINES = re.compile(r"\n+|[^\n]+")


def merging(ids: Mapping[str, int], merges: Sequence[tuple[str, str]], **options: bool) -> Any:
    """A tokenizer of the package that merges the characters of a text by these ranks, nothing else."""
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE(vocab=dict(ids), merges=list(merges), **options))


class LinePieces:
    """Encodes text as Gemma 4 does: characters, with SentencePiece's for a space, merged by rank.

    Texts are cut only at line ends. Line ends that are a token together become that token. A character that
    is no token becomes its bytes, so `ids` must have a token for each.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]]):
        self._ids = ids
        self._merging = merging(ids, merges, byte_fallback=True)

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for piece in _LINES.findall(text.replace(" ", SPACE)):
            whole = self._ids.get(piece) if piece[0] == "\n" else None
            found += self._merge(piece) if whole is None else [whole]
        return found

    def _merge(self, piece: str) -> list[int]:
        return self._merging.encode(piece, add_special_tokens=False).ids


@contextlib.contextmanager
def package_errors(path: Path, place: str, expected: str = "") -> Iterator[None]:
    """Convert errors of the package `tokenizers` to ModelFileError. It raises nothing narrower than
    Exception, and a panic of its Rust code is a BaseException without a public name. A TypeError is the
    caller's error.
    """
    try:
        yield
    except (TypeError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = " ".join(str(error).split())
        raise ModelFileError(path, place, f"cannot be used ({why})", expected) from None
