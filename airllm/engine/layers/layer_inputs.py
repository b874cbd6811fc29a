"""What each token adds in each layer beside the hidden state: a row of a second embedding for it, and a
projection of its first one (Gemma 4). A token needs one row of the table, whose other rows are never read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
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
        # The sum of both embeddings is times 2^-0.5, and the projection times width^-0.5 before its norm.
        self._norm: Any = np.asarray(norm, np.float32) * np.float32(2**-0.5)
        self._eps = c.norm_eps * c.width

    @property
    def nbytes(self) -> int:
        """Bytes of what every token needs."""
        return self._projection.nbytes + self._norm.nbytes

    def moved(self, move: Callable[[Any], Any]) -> LayerInputs:
        """The same on a device, where `move` puts a weight; the table stays in host memory."""
        found = copy.copy(self)
        found._projection, found._norm = move(self._projection), move(self._norm)
        return found

    def weigh(self, rows: np.ndarray) -> np.ndarray:
        """What rows of the table (tokens, layers * layer_input), float32, add for their tokens."""
        return rows * np.float32((self._config.layer_input / 2) ** 0.5)

    def of(self, ops: Any, rows: Any, x: Any) -> Any:
        """The inputs (layers, tokens, layer_input), float32, of tokens with these weighed `rows` and
        embeddings `x` (tokens, width).
        """
        c = self._config
        projected = ops.linear(x, self._projection).reshape(-1, c.layer_input)
        both = np.add(ops.rms_norm(projected, self._norm, self._eps), rows.reshape(-1, c.layer_input))
        both = both.reshape(len(x), c.layers, c.layer_input).swapaxes(0, 1)
        return both if len(x) == 1 else both.copy()
