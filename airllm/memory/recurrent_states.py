"""The recurrent states of a sequence, in host memory or on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from airllm.memory.cache_layout import STATES

Arrays = tuple[np.ndarray, ...]


class RecurrentStates:
    """Several states of each recurrent layer: a pass reads one, `now`, and writes another; `mark` keeps a
    third one to go back to. `shapes`: of a layer's arrays. `memory` (states, floats), float32: of all.
    """

    def __init__(self, shapes: Mapping[int, Sequence[tuple[int, ...]]], memory: np.ndarray):
        self._shapes, self._memory = shapes, memory
        self._places = self.in_host_memory()
        self.now = self._mark = 0
        self.marked = 0  # how many tokens the kept state has seen

    def in_host_memory(self) -> list[dict[int, Arrays]]:
        """The arrays there by place and layer, also of layers that are on a device."""
        found = []
        for floats in self._memory:
            at, arrays = 0, dict[int, list[np.ndarray]]()
            for layer, shapes in self._shapes.items():
                for shape in shapes:
                    size = int(np.prod(shape))
                    arrays.setdefault(layer, []).append(floats[at : at + size].reshape(shape))
                    at += size
            found.append({layer: tuple(each) for layer, each in arrays.items()})
        return found

    @property
    def native(self) -> tuple[np.ndarray, int, int]:
        """All states, and which is that before the next pass and after it, for native calls."""
        return self._memory, self.now, self.next

    @property
    def valid(self) -> set[int]:
        """The places of the states that mean something: that of all tokens, and the kept one."""
        return {self.now, self._mark} if self.marked else {self.now}

    @property
    def next(self) -> int:
        """The place of the state that the next pass writes."""
        return next(i for i in range(STATES) if i not in self.valid)

    @property
    def word(self) -> int:
        """Which states are where, as a number for a file: `restore` reads it."""
        return self.now | self._mark << 2 | self.marked << 4

    def restore(self, word: int, length: int) -> bool:
        """Take up a `word` of a sequence of so many tokens. False if it is of none."""
        now, mark, marked = word & 3, word >> 2 & 3, word >> 4
        if max(now, mark) >= STATES or marked > length:
            return False
        self.now, self._mark, self.marked = now, mark, marked
        return True

    def of(self, layer: int) -> tuple[Arrays, Arrays]:
        """A layer's state after the last token, and the arrays for that after the tokens of a pass."""
        return self._places[self.now][layer], self._places[self.next][layer]

    def advance(self) -> None:
        """What a pass has written is the state now."""
        self.now = self.next

    def mark(self, tokens: int) -> None:
        """Keep the state, of so many tokens."""
        self._mark, self.marked = self.now, tokens

    def go_back(self) -> None:
        """The kept state is the state now."""
        self.now = self._mark

    def clear(self) -> None:
        """Zeros, in host memory: the next pass brings them to a device, if the layers are there."""
        self._places, self.marked = self.in_host_memory(), 0
        for arrays in self._places[self.now].values():
            for array in arrays:
                array.fill(0)

    def copy(self, other: RecurrentStates, whole: bool) -> None:
        """Make the state of another sequence the next one, each layer's where it is; unless `whole`, the kept
        one.
        """
        number, there = other.now if whole else other._mark, other.on_device()
        for layer in self._shapes:
            given = other._places[number][layer]
            if layer in there and layer not in self.on_device():
                self.put(layer, [tuple(map(np.empty_like, given)) for _ in range(STATES)])
            for after, state in zip(self.of(layer)[1], given, strict=True):
                np.copyto(after, state)

    # ---- devices ----

    def put(self, layer: int, states: Sequence[Arrays]) -> None:
        """Keep a layer's states in other arrays from now on, such as those on a device."""
        for kept, arrays in zip(self._places, states, strict=True):
            kept[layer] = arrays

    def on_device(self) -> list[int]:
        """The layers whose states are in arrays on a device."""
        return [i for i, arrays in self._places[0].items() if not isinstance(arrays[0], np.ndarray)]

    def fetch(self, number: int) -> None:
        """Copy one of the states of layers on a device to host memory."""
        host = self.in_host_memory()[number]
        for layer in self.on_device():
            for to, kept in zip(host[layer], self._places[number][layer], strict=True):
                np.copyto(to, np.asarray(kept))

    def leave_device(self, fetched: bool) -> None:
        """Be in host memory from now on, to which the states are copied unless they were `fetched`."""
        for number in () if fetched else self.valid:
            self.fetch(number)
        self._places = self.in_host_memory()
