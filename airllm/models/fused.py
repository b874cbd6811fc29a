"""Whole decoder layers as one call, where a backend's module has one and the rows are few: decode.

`decoder.decoder_layer` is the definition. A call of `FusedLayers.run` gives the same, with threads that stay
together over all layers in place of one start of them for each op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.models.decoder import Angles, Rows
from airllm.models.layers import Layer

_CACHE_DTYPES = ("f32", "f16")


class FusedLayers:
    """The layers of a model as a backend's module has prepared them; `why_not` says why there are none."""

    def __init__(self, ops: Any, layers: Sequence[Layer]):
        self._layers: tuple[Any, ...] = ()
        self.why_not = ""
        prepare, self._run = ops.extension("DecoderLayer"), ops.extension("decoder_layers")
        if prepare is None:
            self.why_not = f"{ops} has no call for whole layers"
            return
        self.most_rows = ops.extension("decoder_rows")
        try:
            self._layers = tuple(prepared(prepare, layer) for layer in layers)
        except NotImplementedError as error:
            self.why_not = str(error)

    def takes(self, rows: Sequence[Rows]) -> bool:
        """Whether the layers are run by one call for these rows."""
        return (
            not self.why_not
            and rows[-1].stop <= self.most_rows
            and all(part.cache.dtype in _CACHE_DTYPES for part in rows)
        )

    def run(
        self, x: np.ndarray, angles: Sequence[Angles], rows: Sequence[Rows], only: slice = slice(None)
    ) -> None:
        """`x` (rows, width), float32, goes through all layers, or those of `only`, in place; the rows' keys
        and values are put into their caches.
        """
        parts = [(part.start, part.stop, part.cache.data, part.cache.length) for part in rows]
        self._run(self._layers[only], x, [(each.cos, each.sin) for each in angles], parts)


def prepared(prepare: Any, layer: Layer) -> Any:
    """A layer as `tensor_ops_cpp.DecoderLayer` has it. Raises NotImplementedError where that lacks a part."""
    c = layer.config
    rope = c.rope_of(layer.index)
    return prepare(
        layer.weights,
        heads=c.heads,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        norm_eps=c.norm_eps,
        attention_scale=c.attention_scale,
        attention_softcap=c.attention_softcap,
        window=c.windows[layer.index],
        activation=c.activation,
        interleaved=rope.interleaved,
        index=layer.index,
        rotation=int(rope is c.local_rope),
    )
