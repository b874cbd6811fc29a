"""How the states of a text's tokens become one vector, as a model's files say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airllm.architectures.values import Values
from airllm.files.gguf import GgufFile
from airllm.files.weight_file import ModelFileError, WeightFile, read_json

# llama.cpp's numbers of `pooling_type` in GGUF files; 0 is none.
_IN_GGUF = {1: "mean", 2: "cls", 3: "last"}
_RANK = 4  # a number for a pair of texts, no vector
# The modes of sentence-transformers' module Pooling.
_IN_FOLDERS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_MODULES = "Transformer, Pooling, Normalize"
_TEXTS = {
    "last": "the last token's state",
    "cls": "the first token's state",
    "mean": "the mean of all states",
}


@dataclass(frozen=True)
class Pooling:
    """`kind`: "last" or "cls", the state of the last or the first token, or "mean", the mean of all.
    `normalize`: the vector's length becomes 1.
    """

    kind: str
    normalize: bool = True

    def __str__(self) -> str:
        return _TEXTS[self.kind] + (", of length 1" if self.normalize else "")

    @property
    def gguf(self) -> int:
        """Its number in a GGUF file."""
        return next(number for number, kind in _IN_GGUF.items() if kind == self.kind)

    def of(self, states: np.ndarray) -> np.ndarray:
        """The vector (width), float32, of states (tokens, width)."""
        if self.kind == "mean":
            vector = states.mean(axis=0, dtype=np.float64)
        else:
            vector = states[-1 if self.kind == "last" else 0].astype(np.float64)
        return (unit(vector) if self.normalize else vector).astype(np.float32)


def unit(vector: np.ndarray) -> np.ndarray:
    """The vector, or vectors (texts, width), of length 1; zeros stay."""
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    return vector / np.where(length > 0, length, 1)


def pooling_of(weights: WeightFile) -> Pooling | None:
    """`pooling_type` of a GGUF file, or the modules of sentence-transformers in a folder. None if the files
    say nothing. ModelFileError for what is not computed here.
    """
    return _of_gguf(weights) if isinstance(weights, GgufFile) else _of_folder(Path(weights.path))


def _of_gguf(file: GgufFile) -> Pooling | None:
    key = f"{file.metadata.get('general.architecture')}.pooling_type"
    number = Values(file.path, file.metadata).whole(key, 0, _RANK, 0)
    if number == _RANK:
        raise ModelFileError(file.path, f"key {key}", "is 4: the model ranks pairs of texts", "0 to 3")
    return Pooling(_IN_GGUF[number]) if number else None


def _of_folder(folder: Path) -> Pooling | None:
    path = folder / "modules.json"
    if not path.is_file():
        return None
    kind, normalize = "", False
    for module in _modules(path):
        name = module["type"].rpartition(".")[2]
        if name == "Pooling":
            kind = _mode(folder / module["path"] / "config.json")
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise ModelFileError(path, "the modules", f"have {module['type']}", _MODULES)
    return Pooling(kind, normalize) if kind else None


def _modules(path: Path) -> list[dict[str, str]]:
    expected = "a list of objects with texts as type and path"
    try:
        found: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, "", f"is not JSON ({error})") from None
    if not isinstance(found, list):
        raise ModelFileError(path, "", f"holds a {type(found).__name__}", expected)
    for module in found:
        if not isinstance(module, dict) or not all(isinstance(module.get(k), str) for k in ("type", "path")):
            raise ModelFileError(path, "a module", f"is {str(module)[:100]}", expected)
        if Path(module["path"]).is_absolute() or ".." in Path(module["path"]).parts:
            raise ModelFileError(path, "a module", f"has the path {module['path']!r}", "one in this folder")
    return found


def _mode(path: Path) -> str:
    modes = {
        key for key, value in read_json(path).items() if key.startswith("pooling_mode_") and value is True
    }
    if len(modes) != 1 or not modes <= set(_IN_FOLDERS):
        found = f"are {', '.join(sorted(modes)) or 'none'}"
        raise ModelFileError(path, "the modes", found, f"one of {', '.join(_IN_FOLDERS)}")
    return _IN_FOLDERS[modes.pop()]
