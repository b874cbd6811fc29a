"""Folders of tiny encoders with all that sentence-transformers writes: modules and a tokenizer."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support.models import tiny_encoders

_WORDS = ("the", "hen", "a", "text", "q", "d", "##s", "##ing", ":", ",", ".", "sing")
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
}


def whole_folder(name: str, path: Path, mode: str = "mean_tokens") -> Path:
    """A copy of a tiny encoder with a tokenizer of words, and modules that pool and normalize."""
    folder = shutil.copytree(tiny_encoders.DATA / name, path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, *map(chr, range(97, 123))]
    (folder / "vocab.txt").write_text("".join(f"{each}\n" for each in dict.fromkeys(words)))
    return add_pooling(folder, mode)


def add_pooling(folder: Path, mode: str) -> Path:
    """Add modules that pool and normalize; returns the folder."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    write_modules(folder, [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")])
    return folder


def write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    """(kind, path) of each module."""
    found = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(found))


def add_dense(folder: Path, matrix: np.ndarray, bias: np.ndarray | None, function: str) -> None:
    """Add a module Dense after the last one."""
    modules = json.loads((folder / "modules.json").read_text())
    (own := folder / f"{len(modules)}_Dense").mkdir()
    known = [(each["type"].rpartition(".")[2], each["path"]) for each in modules]
    write_modules(folder, [*known[:-1], ("Dense", own.name), known[-1]])
    config = {
        "in_features": matrix.shape[1],
        "out_features": matrix.shape[0],
        "bias": bias is not None,
        "activation_function": f"torch.nn.modules.activation.{function}",
    }
    (own / "config.json").write_text(json.dumps(config))
    tensors = {"linear.weight": matrix} | ({} if bias is None else {"linear.bias": bias})
    save_file(tensors, own / "model.safetensors")
