"""The vectors of Mamba-2 as GGUF files have them: what each head has is a row, and so is a group's norm."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from airllm.architectures.recurrent import Mamba2
from airllm.files.gguf_writer import Source
from airllm.files.weight_file import Stored


def mamba_in_gguf(mixer: Mamba2) -> Mamba2:
    """The same mixer, as GGUF files store it."""
    return dataclasses.replace(mixer, log_decay=False)


def is_mamba_vector(name: str) -> bool:
    """Whether our name of a tensor is that of such a vector."""
    return name.endswith((".mamba.decay_log", ".mamba.skip", ".mamba.scale"))


def mamba_vector(gguf: str, name: str, stored: Stored, mixer: Mamba2) -> Source:
    """That vector under its GGUF name, float32."""
    values: np.ndarray[Any, Any] = np.asarray(stored, np.float32)
    if name.endswith("decay_log"):
        values = -np.exp(values)
    made = values.reshape(mixer.groups if name.endswith("scale") else mixer.heads, -1)
    return Source.of(gguf, made, lambda: [made])
