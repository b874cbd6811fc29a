"""What folders say that products are multiplied by (Falcon-H1), put into the weights as in GGUF files."""

from __future__ import annotations

import dataclasses
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.architectures.recurrent import Mamba2
from airllm.files.weight_file import ModelFileError, Stored
from airllm.formats import Quantized


def without_multipliers(c: ModelConfig) -> ModelConfig:
    """The configuration of the model whose weights have been multiplied. The same if it has no mixers beside
    attention.
    """
    if not c.beside:
        return c
    names = ["embedding_scale", "attended_scale", "gate_scale", "down_scale"]
    if not c.tied_embeddings or c.logit_scale == c.embedding_scale:  # a file has one of the two
        names.append("logit_scale")
    plain: dict[str, Any] = dict.fromkeys(names, 1.0) | {"attention_scale": 1 / sqrt(c.head_dim)}
    assert isinstance(c.recurrent, Mamba2)
    return dataclasses.replace(c, **plain, recurrent=dataclasses.replace(c.recurrent, multipliers=()))


def multiplier(path: Path, c: ModelConfig, name: str, stored: Stored) -> np.ndarray | None:
    """What multiplies the tensor of our name: float32, for all values or each row; None for nothing. Raises
    ModelFileError for blocks, which hold no other values.
    """
    factor = np.asarray(_factor(c, name) if c.beside else 1, np.float32)
    if np.all(factor == 1):
        return None
    if isinstance(stored, Quantized):
        raise ModelFileError(path, name, f"has blocks of {stored.format}", "floats, which can be multiplied")
    return factor


def _factor(c: ModelConfig, name: str) -> Any:
    """A number, or a column of one for each row."""
    a = c.recurrent
    assert isinstance(a, Mamba2)
    factors: dict[str, Any] = {
        "token_embedding": c.embedding_scale,
        "output": c.logit_scale,
        "attention.k": c.attention_scale * sqrt(c.head_dim),
        "attention.output": c.attended_scale,
        "feed_forward.gate": c.gate_scale,
        "feed_forward.down": c.down_scale,
    }
    if a.multipliers:
        factors |= {"mamba.in": a.input_multipliers[:, None], "mamba.output": a.multipliers[-1]}
    return factors.get(name.partition(".")[2].partition(".")[2] or name, 1.0)
