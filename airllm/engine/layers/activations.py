"""Functions of single values that are no op of the library."""

from __future__ import annotations

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return np.tanh(x / 2) / 2 + np.float32(0.5)
