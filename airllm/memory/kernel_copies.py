"""Copies of weights in the order in which SIMD kernels read them: blocks interleaved
(`airllm/formats/interleaved.py`), and floats in rows where a file stores experts by columns.

A model that fits in memory is copied once, when it is opened. The copies take as many bytes as the weights in
the file. The file's pages are released one matrix after another, so weights that fit once still fit.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from airllm.architectures.tensor_names import NamedTensors
from airllm.files import pages
from airllm.files.pages import Mapped, Piece, release
from airllm.files.weight_file import Stored
from airllm.formats import Interleaved, Quantized, can_interleave
from airllm.memory.layers import Layer
from airllm.memory.prefetch import Reader, Task

_LINE = 64  # bytes of a cache line, with which each copy begins
_AHEAD = 4  # matrices that are read from disk while one is copied


class KernelCopies:
    """Copies the matrices of layers and of the output. `interleave(weight, data)` writes a copy of blocks;
    `formats` are the names of those that are worth it.
    """

    def __init__(
        self,
        tensors: NamedTensors,
        interleave: Callable[[Quantized, np.ndarray], None],
        formats: Iterable[str],
    ):
        self._interleave, self._formats = interleave, frozenset(formats)
        self._files = [Mapped(map) for map in tensors.weights.maps()]
        self._copies: dict[int, np.ndarray | Interleaved] = {}  # by the address of the original

    def replace(self, layers: Sequence[Layer], output: Stored) -> tuple[list[Layer], Stored]:
        """The layers and the output, with copies of all matrices that kernels read in another order."""
        self._copy([weight for weight in _matrices(layers, output) if self._is_reordered(weight)])
        return [self._layer(layer) for layer in layers], self._copy_of(output)

    def replace_layers(self, layers: Sequence[Layer]) -> list[Layer]:
        """Some layers, likewise."""
        self._copy([weight for weight in _matrices(layers) if self._is_reordered(weight)])
        return [self._layer(layer) for layer in layers]

    def pieces(self, layers: Sequence[Layer], output: Stored) -> list[Piece]:
        """The pieces of mapped files that the layers and the output still read."""
        left = (weight for weight in _matrices(layers, output) if not isinstance(weight, Interleaved))
        found = [self._piece(_array(weight)) for weight in left]
        return [piece for piece in found if piece]

    def _is_reordered(self, weight: Stored) -> bool:
        if isinstance(weight, Quantized):
            return weight.format in self._formats and can_interleave(weight)
        return not weight.flags.c_contiguous

    def _copy(self, weights: list[Any]) -> None:
        """Copy these weights to one array, in order, while the next ones are read."""
        weights = list({_address(weight): weight for weight in weights}.values())
        places = np.cumsum([0, *(-(-weight.nbytes // _LINE) * _LINE for weight in weights)]).tolist()
        room = np.empty(places[-1] + _LINE, np.uint8)
        room = room[-room.ctypes.data % _LINE :]
        for weight, start in zip(self._read(weights), places, strict=False):
            self._copies[_address(weight)] = self._reorder(weight, room[start : start + weight.nbytes])

    def _reorder(self, weight: Stored, room: np.ndarray) -> np.ndarray | Interleaved:
        """A copy of the weight, in these bytes."""
        if isinstance(weight, Quantized):
            data = room.reshape(weight.data.shape)
            self._interleave(weight, data)
            return Interleaved(data, weight.format)
        rows = room.view(weight.dtype).reshape(weight.shape)
        rows[:] = weight
        return rows

    def _read(self, weights: list[Stored]) -> Iterator[Stored]:
        """The weights, one by one, in memory. They are released afterwards."""
        reader, coming = Reader(), deque[tuple[Stored, Piece | None, Task | None]]()
        try:
            for weight in [*weights, *[None] * _AHEAD]:
                if weight is not None:
                    piece = self._piece(_array(weight)) if pages.SUPPORTED else None
                    coming.append((weight, piece, reader.fill([piece]) if piece else None))
                if coming and (weight is None or len(coming) > _AHEAD):
                    yield from _take(reader, *coming.popleft())
        finally:
            reader.close()

    def _piece(self, array: np.ndarray) -> Piece | None:
        """The piece of a mapped file that an array is; None if it is in other memory."""
        address = array.ctypes.data
        for file in self._files:
            if file.address <= address < file.address + file.size:
                return Piece(file, address - file.address, address - file.address + _extent(array))
        return None

    def _copy_of(self, weight: Stored) -> Any:
        return weight if isinstance(weight, Interleaved) else self._copies.get(_address(weight), weight)

    def _copies_of(self, weights: Any) -> dict[str, Any]:
        return {name: self._copy_of(weight) for name, weight in weights.items()}

    def _layer(self, layer: Layer) -> Layer:
        experts = layer.experts
        if experts:
            found = {number: self._copies_of(weights) for number, weights in experts.every()}
            experts = dataclasses.replace(experts, _found=found)
        return dataclasses.replace(layer, weights=self._copies_of(layer.weights), experts=experts)


def _take(reader: Reader, weight: Stored, piece: Piece | None, task: Task | None) -> Iterator[Stored]:
    if task:
        reader.wait(task)
    yield weight
    if piece:
        release([piece])


def _array(weight: Stored) -> np.ndarray:
    """The array of a weight's values or blocks."""
    return weight.data if isinstance(weight, Quantized) else weight


def _address(weight: Stored) -> int:
    return _array(weight).ctypes.data


def _extent(array: np.ndarray) -> int:
    """Bytes from the first value of an array to the end of its last."""
    steps = zip(array.shape, array.strides, strict=True)
    return array.itemsize + sum((count - 1) * stride for count, stride in steps)


def _matrices(layers: Sequence[Layer], *others: Stored) -> Iterator[Stored]:
    for layer in layers:
        yield from layer.weights.values()
        if layer.experts:
            for _, weights in layer.experts.every():
                yield from weights.values()
    yield from others
