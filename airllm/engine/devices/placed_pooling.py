"""How states on a device become vectors there, of which only the last form comes to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from airllm.architectures.pooling import Pooling
from airllm.engine.devices.placement import OnDevice
from airllm.engine.layers.encoder import Alike, alike

Matrix = tuple[str, np.ndarray, np.ndarray | None]  # a function, (wide, narrow), and a bias (wide)

_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "": lambda ops, x: x,
    "tanh": lambda ops, x: np.tanh(x),
    "relu": lambda ops, x: np.maximum(x, np.float32(0)),
    "gelu": lambda ops, x: ops.gelu(x, "none"),
}


class PlacedPooling:
    """The pooling of a model that is `there`, and the matrices that multiply the pooled vector."""

    def __init__(self, there: OnDevice, pooling: Pooling, matrices: Iterable[Matrix]):
        self.there, self._kind = there, pooling.kind
        move = there.device.to_device
        with there.faults():
            self._matrices = [
                (function, move(np.asarray(matrix, np.float32)), _move_bias(move, bias))
                for function, matrix, bias in matrices
            ]

    def pool(self, x: Any, lengths: Sequence[int]) -> Any:
        """The pooled states (texts, width) of texts that lie one after the other in x (rows, width)."""
        with self.there.faults():
            return np.concatenate([self._pool_alike(x, part) for part in alike(lengths)])

    def _pool_alike(self, x: Any, part: Alike) -> Any:
        states = x[part.start : part.stop].reshape(-1, part.length, x.shape[1])
        if self._kind == "mean":
            return self._weigh(states, 1 / part.length)
        return states[:, part.length - 1 if self._kind == "last" else 0]

    def _weigh(self, states: Any, weight: float) -> Any:
        """The sums (texts, width) of states (texts, tokens, width), times a number."""
        weights = np.empty_like(states, shape=(len(states), 1, states.shape[1]))
        weights[:] = np.float32(weight)
        return self.there.ops.matmul(weights, states).reshape(len(states), -1)

    def pool_parts(self, parts: Iterable[Any], length: int) -> Any:
        """The pooled state (1, width) of a text whose states come in parts (rows, width)."""
        found: Any = None
        for x in parts:
            with self.there.faults():
                if self._kind == "mean":
                    own = self._weigh(x.reshape(1, *x.shape), 1 / length)
                    found = own if found is None else found + own
                elif self._kind == "last" or found is None:
                    found = (x[-1:] if self._kind == "last" else x[:1]).copy()
        return found

    def finish(self, pooled: Sequence[Any]) -> np.ndarray:
        """The vectors (texts, width), float32, of pooled states (some texts, width), in host memory."""
        with self.there.faults():
            ops = self.there.ops
            x: Any = np.concatenate(pooled)
            for function, matrix, bias in self._matrices:
                x = _FUNCTIONS[function](ops, ops.linear(x, matrix, bias))
            return x.numpy()


def _move_bias(move: Callable[[np.ndarray], Any], bias: np.ndarray | None) -> Any:
    return None if bias is None else move(np.asarray(bias, np.float32))
