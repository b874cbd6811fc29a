"""Embeddings: texts as vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from airllm.architectures.pooling import Pooling
from airllm.engine.model import Model
from airllm.memory.kv_cache import Cache


class NoEmbeddings(ValueError):
    """The model's files do not say how a text becomes a vector."""


def embed_tokens(
    model: Model, batch: Sequence[list[int]], pooling: Pooling, new_cache: Callable[[], Cache]
) -> np.ndarray:
    """The vectors (texts, width), float32, of texts' tokens. Each text goes through the layers alone, so that
    its vector does not depend on the others.
    """
    found = np.empty((len(batch), model.config.width), np.float32)
    for i, tokens in enumerate(batch):
        found[i] = pooling.of(model.states(tokens, new_cache()))
    return found
