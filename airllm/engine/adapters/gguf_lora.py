"""Adapters as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from airllm.architectures.families import architecture_named
from airllm.architectures.tensor_names import NamedTensors, gguf_name
from airllm.engine.adapters.names import Target, matrices, target
from airllm.files.gguf import GgufFile
from airllm.files.weight_file import ModelFileError
from airllm.formats import Quantized


def read(path: Path, tensors: NamedTensors) -> Iterator[tuple[Target, np.ndarray, np.ndarray]]:
    """Each matrix that the file changes, with A and B, which has the scale."""
    with GgufFile(path) as file:
        alpha = _alpha(file, tensors.config.architecture)
        known = _known(tensors)
        for stored in _changed(file, known):
            a, b = (_floats(file, f"{stored}.lora_{end}") for end in "ab")
            scale = np.float32(alpha / a.shape[-2]) if alpha else np.float32(1)
            names = known[stored]
            if a.ndim == 3 and len(a) != len(names):
                raise ModelFileError(
                    path, f"tensor {stored}.lora_a", f"has {len(a)} experts", f"{len(names)}"
                )
            for i, name in enumerate(names):
                own = (a, b) if a.ndim == 2 else (a[i], b[i])
                yield target(tensors, name, f"tensor {stored}"), own[0], own[1] * scale


def _known(tensors: NamedTensors) -> dict[str, list[str]]:
    """The name of a matrix in GGUF files -> ours, or those of all experts in it."""
    architecture = architecture_named(tensors.config.architecture)
    known: dict[str, list[str]] = {}
    for name in matrices(tensors):
        known.setdefault(gguf_name(architecture, name), []).append(name)
    return known


def _changed(file: GgufFile, known: dict[str, list[str]]) -> list[str]:
    """The matrices that the file changes. ModelFileError for a tensor that is none of the model's."""
    found = {}
    for name in file.names():
        match = re.fullmatch(r"(.+)\.lora_[ab]", name)
        if match is None or match[1] not in known:
            expected = "A or B (.lora_a, .lora_b) of a matrix in the model's layers, or of its output"
            raise ModelFileError(file.path, f"tensor {name}", "is unknown", expected)
        found[match[1]] = True
    return list(found)


def _alpha(file: GgufFile, architecture: str) -> float:
    for key, expected in (
        ("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", architecture),
    ):  # fmt: skip
        if (value := file.metadata.get(key)) != expected:
            raise ModelFileError(file.path, f"key {key}", f"has value {value!r}", f"{expected!r}")
    alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    if type(alpha) is not float or not np.isfinite(alpha):
        raise ModelFileError(file.path, "key adapter.lora.alpha", f"has value {alpha!r}", "a number")
    return alpha


def _floats(file: GgufFile, name: str) -> np.ndarray:
    stored = file.tensor(name)
    return stored.dequantize() if isinstance(stored, Quantized) else stored.astype(np.float32)
