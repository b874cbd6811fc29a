"""The matrices of a model that an adapter may change, by their names in files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from airllm.architectures.families import architecture_named
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.tensor_names import NamedTensors, layer_names
from airllm.memory.layers import split_stored

_VECTORS = ("norm", "bias", "sinks")
_OF_LATENTS = (".kv_b", ".k_b", ".v_b")  # which multiply queries, not the input that an adapter has in mind


@dataclass(frozen=True)
class Target:
    """A stored matrix (outputs, inputs). `name` is ours, `stored` the adapter's. `heads`: of queries or keys,
    whose rows GGUF files may order in another way; 0 for others.
    """

    name: str
    stored: str
    shape: tuple[int, int]
    heads: int = 0


def matrices(tensors: NamedTensors) -> Iterator[str]:
    """Our names of all matrices: those of the layers, and the output."""
    for layer in range(tensors.config.layers):
        for name in layer_names(tensors.config, layer):
            if not name.endswith((*_VECTORS, *_OF_LATENTS)) and not name.endswith(".router"):
                yield name
    yield "output"


def target(tensors: NamedTensors, name: str, stored: str) -> Target:
    """The matrix of this name."""
    c = tensors.config
    own = "token_embedding" if name == "output" and c.tied_embeddings else name
    outputs, inputs = tensors.tensor(own).shape
    match = re.fullmatch(r"layers\.\d+\.attention\.([qk])", name)
    heads = (c.heads if match[1] == "q" else c.kv_heads) if match else 0
    return Target(name, stored, (outputs, inputs), heads)


def decoder_parts(c: ModelConfig, of: Target, b: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The decoder's names of a stored matrix, and the rows of B for each."""
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", of.name)
    if match is None or ".experts." in of.name:
        yield of.name, b
        return
    for part, rows in split_stored(c, int(match[1]), match[2], b):
        assert isinstance(rows, np.ndarray)
        yield f"layers.{match[1]}.{part}", rows


def is_neighbours(c: ModelConfig) -> bool:
    """Whether GGUF files have the values of a rotated pair in adjacent rows, where folders have halves."""
    rotary = architecture_named(c.architecture).rotary
    return rotary.neighbours and not rotary.neighbours_in_folders


def to_neighbours(b: np.ndarray, heads: int) -> np.ndarray:
    return b.reshape(heads, 2, -1, b.shape[1]).swapaxes(1, 2).reshape(b.shape)


def to_halves(b: np.ndarray, heads: int) -> np.ndarray:
    return b.reshape(heads, -1, 2, b.shape[1]).swapaxes(1, 2).reshape(b.shape)
