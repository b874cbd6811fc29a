"""Weights that pass through host memory to a device within a budget, a layer at a time."""

from __future__ import annotations

from collections.abc import Sequence

from airllm.architectures.tensor_names import NamedTensors
from airllm.files.pages import find_gaps, release, release_to_disk, resident_bytes
from airllm.memory.budget import Limit
from airllm.memory.device_plan import SPLIT, DeviceOptions
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer
from airllm.memory.residency import Residency, Unlimited
from airllm.memory.weight_units import divide_weights

_SLACK = 2 << 20  # bytes: vectors of all layers, angles, logits


class Passing(Unlimited):
    """Nothing stays in host memory: a layer is released after it was uploaded, with its experts. `limit`: the
    bytes that what passes may take.
    """

    def __init__(self, tensors: NamedTensors, layers: list[Layer], limit: Limit, context: int):
        super().__init__(tensors, layers, context)
        self.limit: Limit = limit
        self._units = divide_weights(tensors)
        self._layers = [self._units.whole_layer(layer) for layer in range(len(layers))]
        self._others = find_gaps(self._units.files, [each for pieces in self._layers for each in pieces])
        self._release = release_to_disk if limit.from_disk else release

    @property
    def needed(self) -> int:
        """Bytes of what is in memory at once: two layers, or one and a copy of its matrices; or the ends."""
        layers = 2 * max(map(resident_bytes, self._layers))
        return max(layers, resident_bytes(self._others)) + _SLACK

    def fill(self, pieces: object = None) -> None:
        """Nothing: layers come as they are uploaded."""

    def begin(self, grows: Sequence[tuple[Cache, int]], outputs: int = 1, tokens: int = 0) -> None:
        super().begin(grows, outputs, tokens)
        self._units.check()
        self.leave_ends()

    def expect(self, layer: int) -> None:
        """Read a layer that is needed soon into the page cache, if the page cache cannot keep the file."""
        if self.limit.from_disk:
            self._reader.ask(self._layers[layer])

    def leave(self, layer: int) -> None:
        """A layer was uploaded: release it."""
        self._release(self._layers[layer])

    def leave_ends(self) -> None:
        """Release what is in no layer: the embedding and the output."""
        release(self._others)


def pass_through(tensors: NamedTensors, on_host: Residency, options: DeviceOptions) -> Passing | None:
    """Host memory that weights pass through on their way to a device, instead of staying in it, if it has a
    budget with room for that.
    """
    limit = on_host.limit
    if limit is None or options.offload == SPLIT:
        return None
    passing = Passing(tensors, on_host.layers, limit, on_host.context)
    return passing if passing.needed <= limit.nbytes else None
