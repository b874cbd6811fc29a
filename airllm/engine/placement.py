"""Where a model's weights and sequences are: in host memory, or on a device, to which they went once.

On a device, `decoder.decoder_layer` computes on the backend's own arrays. Per token, ids and angles go there,
and logits come back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.decoder import Angles, Rows, decoder_layers
from airllm.files.weight_file import Stored
from airllm.formats import Quantized
from airllm.memory.device_cache import move_cache, why_dtype_not_movable, why_not_movable
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer


@dataclasses.dataclass(frozen=True)
class Weights:
    """A model's layers and ends, as arrays that some ops take."""

    layers: Sequence[Layer]
    embedding: Stored
    output_norm: np.ndarray
    output: Stored


class OnDevice:
    """A model on the device of its backend: `ops` and `weights` there. `on_device` is a `DeviceOps`, `ops`
    the same or `ExactOps` of it.
    """

    def __init__(self, ops: Any, on_device: Any, weights: Weights):
        self.ops, self._device, self._config = ops, on_device, weights.layers[0].config
        moved: dict[int, Any] = {}

        def move(stored: Any) -> Any:
            if id(stored) not in moved:
                moved[id(stored)] = on_device.to_device(stored)
            return moved[id(stored)]

        self.weights = Weights(
            [_move_layer(layer, move, on_device.stack) for layer in weights.layers],
            move(weights.embedding),
            move(weights.output_norm),
            move(weights.output),
        )

    def run_layers(self, ids: list[int], angles: Sequence[Angles], rows: Sequence[Rows]) -> Generator[Any]:
        """Yield the hidden states (tokens, width) after each layer. The rows' caches go to the device."""
        for part in rows:
            move_cache(part.cache, self._device, part.stop - part.start)
        moved = [self._move_angles(each) for each in angles]
        x = self.ops.embedding(np.array(ids, np.int64), self.weights.embedding)
        x = x.astype(np.float32, copy=False)
        if self._config.embedding_scale != 1:
            x *= np.float32(self._config.embedding_scale)
        for layer in self.weights.layers:
            x = decoder_layers(self.ops, x, [layer], moved, rows)
            yield x

    def logits(self, hidden: Any) -> np.ndarray:
        """Logits (rows, vocabulary) of hidden states, in host memory."""
        normed = self.ops.rms_norm(hidden, self.weights.output_norm, self._config.norm_eps)
        return self.ops.linear(normed, self.weights.output).numpy()

    def _move_angles(self, angles: Angles) -> Angles:
        cos, sin = map(self._device.to_device, (angles.cos, angles.sin))
        return Angles(cos, sin, angles.interleaved)


_ON_HOST = {"layer_input", "layer_scale"}  # traits of layers that stay in host memory

# Matrices of one input, which a device multiplies together.
_STACKS = (
    ("attention.q", "attention.k", "attention.v"),
    ("feed_forward.gate", "feed_forward.up"),
)


def _move_layer(layer: Layer, move: Any, stack: Any) -> Layer:
    """A layer on the device, with matrices of one kind that can be multiplied together in one piece of
    memory.
    """
    moved: dict[str, Any] = {}
    for names in _STACKS:
        matrices, biases = ([layer.get(name + end) for name in names] for end in ("", "_bias"))
        if all(len({_kind(each) for each in parts}) == 1 for parts in (matrices, biases)):
            if matrices[0] is not None:
                moved |= zip(names, stack(matrices), strict=True)
            if biases[0] is not None:
                moved |= zip((f"{name}_bias" for name in names), stack(biases), strict=True)
    rest = {name: move(each) for name, each in layer.weights.items() if name not in moved}
    return dataclasses.replace(layer, weights=rest | moved)


def _kind(stored: Stored | None) -> str:
    if stored is None:
        return ""
    return stored.format if isinstance(stored, Quantized) else str(stored.dtype)


def why_not_on_device(
    ops: KernelBackend,
    config: ModelConfig,
    whole: bool = True,
    shared: bool = False,
    cache_dtype: str = "f16",
) -> str:
    """Why a model's arrays do not stay on the device of these ops; "" if they do. `whole`: all weights are in
    memory at once. `shared`: processes share the model. `cache_dtype`: of its sequences.
    """
    if ops.extension("device_ops") is None:
        return f"{ops.name()} computes in host memory"
    if shared:
        return "processes that share a model add their results in host memory"
    if not whole:
        return "weights pass through host memory within a budget"
    if any(config.moe_layers):
        return "experts are chosen in host memory"
    if traits := sorted(config.traits() & _ON_HOST):
        return f"{', '.join(traits)} are computed in host memory"
    return why_dtype_not_movable(cache_dtype)


def all_movable(caches: Sequence[Cache]) -> bool:
    """Whether keys and values of these sequences can be on a device."""
    return not any(map(why_not_movable, caches))
