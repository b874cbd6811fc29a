"""Matrices of layers that pass through a device: two staging places, one of which is filled while the
other is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from airllm.backends.device.device_ops import DeviceOps
from airllm.backends.device.tensor import Memory, Tensor
from airllm.backends.devices import host_memory
from airllm.formats import Quantized

Group: TypeAlias = Sequence[Any]  # matrices of one format and row length, which lie one after the other


class Joined(NamedTuple):
    """Weights of one format that lie one after the other and are read as one array. `shape` is that of the
    stored data: of blocks, the last axis has bytes.
    """

    parts: Sequence[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.parts)

    def join(self) -> Any:
        """The one array, in new memory."""
        data = np.concatenate([_data(each) for each in self.parts]).reshape(self.shape)
        return Quantized(data, self.parts[0].format) if isinstance(self.parts[0], Quantized) else data


class Bus(Protocol):
    """What a `Place` needs besides, to upload while it computes."""

    def mark(self) -> Any:
        """A mark behind all launches that were started. Does not wait."""

    def begin_upload(self, buffer: Any, pieces: Sequence[np.ndarray], after: Any) -> Any:
        """Begin to copy bytes of the host, one piece after the other, to the beginning of a buffer. The copy
        starts `after` a mark, if that is not None. The pieces must not change until it ends.
        """

    def finish_upload(self, upload: Any) -> None:
        """Launches from now on start after this upload. Does not wait."""

    def wait_upload(self, upload: Any) -> None:
        """Return when the host memory of an upload has been read."""

    def pinned(self, nbytes: int) -> np.ndarray | None:
        """Host memory, as bytes, that the device copies from without the host; None if that is no faster."""


def why_not_streamed(ops: DeviceOps) -> str:
    """Why layers cannot pass through a device; "" if they can."""
    able = all(hasattr(ops.place, name) for name in ("mark", "begin_upload", "finish_upload", "pinned"))
    return "" if able else f"{ops.name()} cannot upload while it computes"


class HostMemory(Protocol):
    """Host memory within a budget, through which layers pass."""

    def expect(self, layer: int) -> None:
        """The layer is uploaded soon."""

    def leave(self, layer: int) -> None:
        """The layer was uploaded."""


class _Slot:
    """One of the two places: a buffer for each group, the layer that is in it, its upload and its readers."""

    def __init__(self, memories: list[Memory]):
        self.memories = memories
        self.layer = -1
        self.upload: Any = None
        self.read_until: Any = None


class Staging:
    """The matrices of `layers`, groups of them for each, as they pass through the device of `ops`.

    A pass calls `enter` and `leave` for each layer in order. While the launches of a layer run, the next one
    is uploaded, after the last one the first. So a pass uploads each layer once. `uploads` counts layers.
    `host`: where they come from, if they must leave that; it knows them by number, from 0.
    """

    def __init__(self, ops: DeviceOps, layers: Sequence[Sequence[Group]], host: HostMemory | None = None):
        self._ops, self._layers, self.uploads = ops, layers, 0
        self._bus: Any = ops.place
        self._pieces = [[_bytes_of(group) for group in groups] for groups in layers]
        self._views: dict[tuple[int, int], list[list[Any]]] = {}
        self._slots = [_Slot([ops.memory(size) for size in group_bytes(layers)]) for _ in range(2)]
        self._host = host
        self.pins = host is None and self._pin()
        for layer, slot in zip(range(len(layers)), self._slots, strict=False):
            self._fill(slot, layer)

    def enter(self, layer: int) -> tuple[int, list[list[Any]]]:
        """The matrices of a layer on the device, group by group, for launches from now until `leave`; and
        in which of the two places they are.
        """
        slot = next((each for each in self._slots if each.layer == layer), None)
        if slot is None:  # the pass before was left early, or there is none
            slot = self._slots[0]
            self._fill(slot, layer)
        self._bus.finish_upload(slot.upload)
        place = self._slots.index(slot)
        if (layer, place) not in self._views:
            held = zip(slot.memories, self._layers[layer], strict=False)
            self._views[layer, place] = [_views(self._ops, memory, group) for memory, group in held]
        return place, self._views[layer, place]

    def leave(self, layer: int) -> None:
        """All launches that read the layer were started. The next layer is uploaded while they run."""
        first, second = self._slots
        slot, other = (first, second) if first.layer == layer else (second, first)
        slot.read_until = self._bus.mark()
        coming = (layer + 1) % len(self._layers)
        if coming not in (slot.layer, other.layer):
            self._fill(other, coming)
        if self._host:
            self._bus.wait_upload(slot.upload)
            self._host.leave(layer)
            self._host.expect((coming + 1) % len(self._layers))

    def _fill(self, slot: _Slot, layer: int) -> None:
        """Begin to upload a layer."""
        after, slot.layer, slot.read_until = slot.read_until, layer, None
        for memory, pieces in zip(slot.memories, self._pieces[layer], strict=False):
            slot.upload = self._bus.begin_upload(memory.buffer, pieces, after)
            after = None  # uploads are in order
        self.uploads += 1

    def _pin(self) -> bool:
        """Copy the matrices to pinned host memory, if the device has any and the host has room for it."""
        nbytes = sum(each.nbytes for groups in self._pieces for pieces in groups for each in pieces)
        free = host_memory()[1]
        if free is not None and free < 2 * nbytes:
            return False
        for groups in self._pieces:
            for i, pieces in enumerate(groups):
                room = self._bus.pinned(sum(each.nbytes for each in pieces))
                if room is None:
                    return False
                np.concatenate(pieces, out=room)
                groups[i] = [room]
        return True


def group_bytes(layers: Sequence[Sequence[Group]]) -> list[int]:
    """The bytes of each group of a place that all of the layers fit in."""
    sizes = [[sum(each.nbytes for each in group) for group in groups] for groups in layers]
    most = max(map(len, sizes), default=0)
    return [max(each[i] for each in sizes if i < len(each)) for i in range(most)]


def _bytes_of(group: Group) -> list[np.ndarray]:
    parts = (part for each in group for part in (each.parts if isinstance(each, Joined) else (each,)))
    return [np.ascontiguousarray(_data(part)).reshape(-1).view(np.uint8) for part in parts]


def _data(stored: Any) -> np.ndarray:
    return stored.data if isinstance(stored, Quantized) else np.asarray(stored)


class _Uncounted:
    """Counts nothing: the memory is a place's, which is counted."""

    def add(self, *, resident: int) -> None: ...


def _views(ops: DeviceOps, memory: Memory, group: Group) -> list[Any]:
    """The matrices of a group that begin a place's memory."""
    kinds = [each.parts[0] if isinstance(each, Joined) else each for each in group]
    shapes = [each.shape if isinstance(each, Joined) else _data(each).shape for each in group]
    own = Memory(memory.buffer, memory.nbytes, _Uncounted())
    own.stack = tuple(shape[0] for shape in shapes) if len(shapes) > 1 else ()
    views, at = [], 0
    for each, kind, shape in zip(group, kinds, shapes, strict=True):
        view: Any = Tensor(ops, own, _data(kind).dtype, shape, offset=at)
        views.append(Quantized(view, kind.format) if isinstance(kind, Quantized) else view)
        at += each.nbytes
    return views


__all__ = ["Group", "Joined", "Staging", "group_bytes", "why_not_streamed"]
