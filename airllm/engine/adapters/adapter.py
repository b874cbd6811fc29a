"""What an adapter is, and how one is read for a model: a GGUF file, or a folder of PEFT."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np

from airllm.architectures.tensor_names import NamedTensors
from airllm.engine.adapters import gguf_lora, peft
from airllm.engine.adapters.names import Target, decoder_parts, is_neighbours, to_halves, to_neighbours
from airllm.files.weight_file import ModelFileError

Pair = tuple[np.ndarray, np.ndarray]  # A (rank, inputs), B (outputs, rank)


@dataclass(frozen=True)
class Adapter:
    """An adapter of a model. `pairs`: by the decoder's name of a matrix ("layers.0.attention.q"), A (rank,
    inputs) and B (outputs, rank), float32; B has the adapter's own scale, alpha over rank.
    """

    path: Path
    pairs: Mapping[str, Pair]

    @cached_property
    def fingerprint(self) -> str:
        """A string that identifies the adapter."""
        known = hashlib.sha256()
        for name, (a, b) in sorted(self.pairs.items()):
            known.update(f"{name} {a.shape}".encode() + a.tobytes() + b.tobytes())
        return known.hexdigest()

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes + b.nbytes for a, b in self.pairs.values())


def open_adapter(path: str | PathLike[str], tensors: NamedTensors) -> Adapter:
    """Read an adapter for the model of these tensors. Raises ModelFileError for one that is broken or of
    another model, or that changes more than matrices; OSError if it cannot be opened.
    """
    path = Path(path)
    read: Callable[[Path, NamedTensors], Iterator[tuple[Target, np.ndarray, np.ndarray]]]
    of_gguf = not path.is_dir()
    read = gguf_lora.read if of_gguf else peft.read
    pairs: dict[str, Pair] = {}
    for target, a, b in read(path, tensors):
        _check(path, target, a, b)
        b = _in_order_of(tensors, target, b, of_gguf)
        for name, part in decoder_parts(tensors.config, target, b):
            pairs[name] = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(part, np.float32)
    if not pairs:
        raise ModelFileError(path, "", "has no matrices", "A and B of a matrix of the model")
    return Adapter(path, pairs)


def _check(path: Path, target: Target, a: np.ndarray, b: np.ndarray) -> None:
    outputs, inputs = target.shape
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != inputs or b.shape[0] != outputs or len(a) != b.shape[1]:
        found = f"has A {a.shape} and B {b.shape}"
        raise ModelFileError(
            path, target.stored, found, f"(rank, {inputs}) and ({outputs}, rank), as in the model"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ModelFileError(path, target.stored, "has values that are not finite")


def _in_order_of(tensors: NamedTensors, target: Target, b: np.ndarray, of_gguf: bool) -> np.ndarray:
    """B with its rows in the order of the model's: GGUF files of some architectures have another one in
    queries and keys.
    """
    if of_gguf == tensors.is_gguf or not target.heads or not is_neighbours(tensors.config):
        return b
    return to_neighbours(b, target.heads) if tensors.is_gguf else to_halves(b, target.heads)
