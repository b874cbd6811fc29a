"""An encoder on a device: ids go there, and the states of its texts stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.engine.devices.placement import OnDevice
from airllm.engine.layers.decoder import normalize
from airllm.engine.layers.encoder import BLOCK, alike, band, encoder_layer
from airllm.engine.layers.rope_tables import Rotation
from airllm.engine.layers.rows import Angles


def table_bytes(config: ModelConfig, context: int) -> int:
    """The bytes of what an encoder has on a device besides weights: rows for positions, angles, masks."""
    of, ropes = config.encoding, [rope for rope in (config.rope, config.local_rope) if rope]
    added = context * config.width if of and (of.positions or of.token_types) else 0
    masks = [BLOCK * (BLOCK + window) for window in set(filter(None, config.windows))]
    return 4 * (added + config.width + context * sum(rope.dim for rope in ropes) + sum(masks))


class PlacedEncoder:
    """The passes of an encoder whose layers are `there`.

    `added` (context, width), float32, is what is added to the token at each position, `norm` the norm after
    it; None if there is none. `rotations`: those of the model, if any layer has one. Raises DeviceFault.
    """

    def __init__(
        self,
        there: OnDevice,
        added: np.ndarray | None,
        norm: np.ndarray | None,
        rotations: Iterable[Rotation],
        context: int,
    ):
        self.there = there
        self._masks = _Masks(there.device)
        with there.faults():
            self._added, self._norm = (None if each is None else self._move(each) for each in (added, norm))
            self._angles = [
                (*map(self._move, each.at(0, context, long=False)), each.rope.interleaved)
                for each in rotations
            ]

    def _move(self, array: np.ndarray) -> Any:
        return self.there.device.to_device(array)

    def run(self, ids: np.ndarray, lengths: Sequence[int]) -> Any:
        """The states (rows, width) of texts with these ids, one after the other, after the last norm."""
        with self.there.faults():
            positions = self._move(np.concatenate([np.arange(length) for length in lengths]))
            angles, rows = self._angles_at(positions), list(alike(lengths))
            x = self._embed(ids, positions)
            for layer in self.there.each_layer():
                rope = layer.config.rope_of(layer.index)
                own = angles[rope is layer.config.local_rope] if rope else None
                x = encoder_layer(self.there.ops, x, layer, own, rows, self._masks)
            return self.there.normalized(x)

    def _embed(self, ids: np.ndarray, positions: Any) -> Any:
        x = self.there.embed(ids)
        if self._added is not None:
            x += self.there.ops.embedding(positions, self._added)
        return x if self._norm is None else normalize(self.there.ops, x, self._norm, self.there.config)

    def _angles_at(self, positions: Any) -> list[Angles]:
        look_up, count = self.there.ops.embedding, len(positions)
        found = []
        for cos, sin, interleaved in self._angles:
            of_cos, of_sin = (look_up(positions, each).reshape(count, 1, -1) for each in (cos, sin))
            found.append(Angles(of_cos, of_sin, interleaved))
        return found


class _Masks:
    """`band` by parts of one mask for each width, on the device: 0 where a key is seen, else -inf."""

    def __init__(self, device: Any):
        self._device, self._whole = device, dict[int, Any]()

    def __call__(self, queries: range, keys: range, most: int) -> Any:
        if most not in self._whole:
            seen = band(range(most, most + BLOCK), range(BLOCK + 2 * most), most)
            self._whole[most] = self._device.to_device(np.where(seen, 0, -np.inf).astype(np.float32))
        first = keys.start - queries.start + most
        return self._whole[most][: len(queries), first : first + len(keys)]
