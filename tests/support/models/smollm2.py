"""What transformers computes of a text with the weights of SmolLM2's GGUF file, and how far others are off.

tests/references/smollm2_logits.py makes it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

REFERENCE = Path(__file__).parents[2] / "data" / "smollm2_logits.npz"
TOKENS = 256
KEPT = 128  # tokens of a position: the most likely
WHOLE = (100, 255)  # positions of which there are all


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def divergence(exact: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence of each position's probabilities from exact ones, both given as logits."""
    p, q = log_probabilities(exact), log_probabilities(other)
    return (np.exp(p) * (p - q)).sum(axis=-1)


def divergence_of_best(best: np.ndarray, exact: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The same of log-probabilities `exact` of the tokens `best` and of the rest taken together."""
    p = np.concatenate([exact, np.log1p(-np.exp(exact.astype(np.float64)).sum(-1, keepdims=True))], -1)
    q = np.take_along_axis(log_probabilities(other), best, -1)
    q = np.concatenate([q, np.log1p(-np.exp(q).sum(-1, keepdims=True))], -1)
    return (np.exp(p) * (p - q)).sum(axis=-1)
