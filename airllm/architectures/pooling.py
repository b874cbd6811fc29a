"""How the states of a text's tokens become one vector, as a model's files say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from airllm.architectures.values import Values
from airllm.files.gguf import GgufFile
from airllm.files.weight_file import ModelFileError, WeightFile, read_json

# llama.cpp's numbers of `pooling_type` in GGUF files; 0 is none.
_IN_GGUF = {1: "mean", 2: "cls", 3: "last"}
EMBEDDER = "modules.json"  # of a folder that says how a text becomes a vector
_RANK = 4  # a number for a pair of texts, no vector
# The modes of sentence-transformers' module Pooling.
_IN_FOLDERS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_MODULES = "Transformer, Pooling, Dense and Normalize, in this order"
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
_TEXTS = {
    "last": "the last token's state",
    "cls": "the first token's state",
    "mean": "the mean of all states",
}
_MAX_LENGTH, _NO_LENGTH = "model_max_length", 10**9  # transformers writes a huge number for none
DENSE_NAMES = ("dense_2", "dense_3")  # of matrices after the pooling, in GGUF files
# torch's names of the functions after a Dense module -> ours
_ACTIVATIONS = {"Identity": "", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}


@dataclass(frozen=True)
class Dense:
    """A matrix (wide, narrow) that multiplies the pooled vector, with a bias if `bias`, and a function after
    it: "" for none, "tanh", "relu" or "gelu". `path`: its folder, or the start of its name in a GGUF file.
    """

    path: str
    narrow: int
    wide: int
    bias: bool = False
    activation: str = ""


@dataclass(frozen=True)
class Pooling:
    """`kind`: "last" or "cls", the state of the last or the first token, or "mean", the mean of all. `dense`:
    what the vector then goes through. `normalize`: its length becomes 1. `prompts`: what users may put before
    a text, by name; `prompt_name`: the one that is put there unless they say otherwise. `longest`: to how
    many tokens sentence-transformers cuts a text; None: to the context.
    """

    kind: str
    normalize: bool = True
    dense: tuple[Dense, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt_name: str | None = None
    longest: int | None = None

    def __str__(self) -> str:
        widths = "".join(f", times a matrix to {each.wide} values" for each in self.dense)
        found = _TEXTS[self.kind] + widths + (", of length 1" if self.normalize else "")
        return found + (f"; prompts {', '.join(self.prompts)}" if self.prompts else "")

    @property
    def gguf(self) -> int:
        """Its number in a GGUF file."""
        return next(number for number, kind in _IN_GGUF.items() if kind == self.kind)

    def width(self, of_states: int) -> int:
        """The width of the vectors of states of this width."""
        return self.dense[-1].wide if self.dense else of_states

    def of(self, states: np.ndarray) -> np.ndarray:
        """The vector (width), float64, of states (tokens, width), before what follows the pooling."""
        if self.kind == "mean":
            return states.mean(axis=0, dtype=np.float64)
        return states[-1 if self.kind == "last" else 0].astype(np.float64)

    def prompt(self, name: str | None) -> str:
        """The prompt of this name, or the default one. Raises ValueError for an unknown name."""
        name = self.prompt_name if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            expected = (
                f"one of {', '.join(self.prompts)}" if self.prompts else "None: the model has no prompts"
            )
            raise ValueError(f"embed: prompt_name has value {name!r}, expected {expected}")
        return self.prompts[name]


def unit(vector: np.ndarray) -> np.ndarray:
    """The vector, or vectors (texts, width), of length 1; zeros stay."""
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    return vector / np.where(length > 0, length, 1)


def pooling_of(weights: WeightFile) -> Pooling | None:
    """`pooling_type` of a GGUF file, or the modules of sentence-transformers in a folder. None if the files
    say nothing. ModelFileError for what is not computed here.
    """
    return _of_gguf(weights) if isinstance(weights, GgufFile) else _of_folder(Path(weights.path))


# -------------------------------------------------------------------------------------------------- GGUF


def _of_gguf(file: GgufFile) -> Pooling | None:
    key = f"{file.metadata.get('general.architecture')}.pooling_type"
    number = Values(file.path, file.metadata).whole(key, 0, _RANK, 0)
    if number == _RANK:
        raise ModelFileError(file.path, f"key {key}", "is 4: the model ranks pairs of texts", "0 to 3")
    return Pooling(_IN_GGUF[number], dense=_dense_of_gguf(file)) if number else None


def _dense_of_gguf(file: GgufFile) -> tuple[Dense, ...]:
    """The matrices that EmbeddingGemma's files may have, without biases and functions."""
    found = []
    for name in DENSE_NAMES:
        if f"{name}.weight" in file:
            wide, narrow = file.tensor(f"{name}.weight").shape
            found.append(Dense(name, narrow, wide))
    return tuple(found)


# ------------------------------------------------------------------------------------------------ folders


def _of_folder(folder: Path) -> Pooling | None:
    path = folder / EMBEDDER
    if not path.is_file():
        return None
    kind, normalize, dense = "", False, []
    names: list[str] = []
    transformer = ""
    for module in _modules(path):
        names.append(name := module["type"].rpartition(".")[2])
        if name not in _ORDER:
            raise ModelFileError(path, "the modules", f"have {module['type']}", _MODULES)
        if name == "Transformer":
            transformer = module["path"]
        elif name == "Pooling":
            kind = _mode(folder / module["path"] / "config.json")
        elif name == "Dense":
            dense.append(_dense(folder, module["path"]))
        normalize = normalize or name == "Normalize"
    if names != sorted(names, key=_ORDER.index):
        raise ModelFileError(path, "the modules", f"are {', '.join(names)}", _MODULES)
    if not kind:
        return None
    return Pooling(kind, normalize, tuple(dense), *_prompts(folder), _longest(folder / transformer))


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
    """The kind of a module Pooling. Newer files name it, older ones have a flag for each."""
    config = read_json(path)
    modes = {key for key, value in config.items() if key.startswith("pooling_mode_") and value is True}
    if isinstance(named := config.get("pooling_mode"), str):
        flags = {kind: flag for flag, kind in _IN_FOLDERS.items()} | {"lasttoken": "pooling_mode_lasttoken"}
        modes = {flags.get(named, named)}
    if len(modes) != 1 or not modes <= set(_IN_FOLDERS):
        found = f"are {', '.join(sorted(modes)) or 'none'}"
        raise ModelFileError(path, "the modules", found, f"one of {', '.join(_IN_FOLDERS)}")
    if config.get("include_prompt") is False:
        raise ModelFileError(path, "include_prompt", "is false", "true: prompts are pooled with the text")
    return _IN_FOLDERS[modes.pop()]


def _dense(folder: Path, path: str) -> Dense:
    values = Values(folder / path / "config.json", read_json(folder / path / "config.json"))
    function = values.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(name := function.rpartition(".")[2])
    if activation is None:
        raise values.error("activation_function", f"is {name}", f"one of {', '.join(_ACTIVATIONS)}")
    narrow, wide = values.whole("in_features"), values.whole("out_features")
    return Dense(path, narrow, wide, values.flag("bias", True), activation)


def _longest(folder: Path) -> int | None:
    """`max_seq_length` of the module Transformer, else what its tokenizer says."""
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", _MAX_LENGTH),
    ):
        path = folder / name
        value = read_json(path).get(key) if path.is_file() else None
        if value is None or (key == _MAX_LENGTH and not (isinstance(value, int) and value < _NO_LENGTH)):
            continue
        return Values(path, {key: value}).whole(key)
    return None


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    """The prompts in config_sentence_transformers.json, and the name of the default one."""
    path = folder / "config_sentence_transformers.json"
    config = read_json(path) if path.is_file() else {}
    prompts, name = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(each, str) for each in prompts.values()):
        raise ModelFileError(path, "prompts", f"are {str(prompts)[:100]}", "an object of texts")
    if name is not None and name not in prompts:
        raise ModelFileError(path, "default_prompt_name", f"is {name!r}", "a name in prompts")
    return prompts, name
