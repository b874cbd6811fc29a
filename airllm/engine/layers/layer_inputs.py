"""What each token adds in each layer beside the hidden state: a row of a second embedding for it, and a
projection of its first one (Gemma 4). A token needs one row of the table, whose other rows are never read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from airllm.architectures.tensor_names import LAYER_INPUTS, NamedTensors
from airllm.memory.layers import check_tensor


class LayerInputs:
    """The inputs of all layers. Raises ModelFileError if the file lacks their tensors."""

    def __init__(self, tensors: NamedTensors):
        c = self._config = tensors.config
        wide = c.layers * c.layer_input
        shapes = (c.vocabulary, wide), (wide, c.width), (c.layer_input,)
        found = (check_tensor(tensors, *each) for each in zip(LAYER_INPUTS, shapes, strict=True))
        self.table, self._projection, norm = found
        self._norm = np.ascontiguousarray(norm, np.float32)

    def of(self, ops: Any, rows: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The inputs (layers, tokens, layer_input), float32, of tokens with these `rows` of the table
        (tokens, layers * layer_input) and embeddings `x` (tokens, width).
        """
        c = self._config
        shape = len(x), c.layers, c.layer_input
        projected = (ops.linear(x, self._projection) * np.float32(c.width**-0.5)).reshape(shape)
        projected = ops.rms_norm(projected, self._norm, c.norm_eps)
        both = projected + rows.reshape(shape) * np.float32(c.layer_input**0.5)
        return np.ascontiguousarray((both * np.float32(2**-0.5)).swapaxes(0, 1))
