"""A pass whose launches are recorded, so that those of the next tokens start without being planned.

A device computes one token like the one before: the same launches, on the same memory. Only some numbers
grow, such as how many keys there are. `Pass` notes what a pass does; `record` compares three of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from airllm.backends.device.tensor import Memory


class Recorded(NamedTuple):
    """A launch of a place, its memory by name, and by how much its numbers grow from one token to the next:
    by their places among its arguments.
    """

    launch: Any
    memory: Mapping[str, tuple[Any, int, int]]
    steps: Mapping[int, int]

    def numbers(self, tokens: int) -> dict[int, np.unsignedinteger]:
        """The numbers that grow, so many tokens later."""
        given = {i: self.launch.arguments[i] for i in self.steps}
        return {i: type(n)(int(n) + tokens * self.steps[i]) for i, n in given.items()}


class Replay(Protocol):
    """Launches that a place has recorded. They keep their memory."""

    def run(self, tokens: int) -> None:
        """Start them with the numbers of so many tokens later. Does not wait."""


class Result(NamedTuple):
    """An array that a pass brings to the host: where it is on the device."""

    buffer: Any
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


class _Noted(NamedTuple):
    """A launch, and its memory: each part named by what does not differ between passes."""

    launch: Any
    memory: Mapping[str, tuple[Any, int, int]]
    parts: Mapping[str, tuple[Any, int]]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must not differ between passes."""
        return self.launch.kind, self.parts


class Pass:
    """What a pass for the token at a `position` uploads, launches and downloads. With `holds`, the memory
    that it makes stays.
    """

    def __init__(self, position: int, holds: bool):
        self.position, self._holds = position, holds
        self.uploads: list[tuple[Any, np.ndarray]] = []
        self.launches: list[_Noted] = []
        self.results: list[Result] = []
        self.held: list[Memory] = []
        self.nbytes = self._count = 0  # of the memory that it makes
        self._made: dict[int, int] = {}

    def makes(self, memory: Memory) -> None:
        """Note new memory: the pass's n-th is the n-th of other passes."""
        self._made[id(memory.buffer)] = self._count
        self._count += 1
        self.nbytes += memory.nbytes
        if self._holds:
            self.held.append(memory)

    def uploaded(self, buffer: Any, array: np.ndarray) -> None:
        """Note an upload to the beginning of a buffer."""
        self.uploads.append((buffer if self._holds else None, array))

    def launched(self, launches: Sequence[Any], memory: Mapping[str, tuple[Any, int, int]]) -> None:
        """Note launches on this memory."""
        parts = {name: (self._name(buffer), at) for name, (buffer, at, _) in memory.items()}
        kept = memory if self._holds else {}
        self.launches += [_Noted(launch, kept, parts) for launch in launches]

    def downloaded(self, result: Result) -> None:
        """Note a download."""
        self.results.append(result if self._holds else result._replace(buffer=None))

    def _name(self, buffer: Any) -> Any:
        """The number of memory that the pass made; other memory is itself."""
        return self._made.get(id(buffer), buffer)


def record(place: Any, passes: Sequence[Pass], given: Sequence[np.ndarray]) -> Recording | None:
    """What the last of three passes did, for the tokens after its own; None if they differ in more than
    numbers that grow evenly, or upload anything but what is `given`.
    """
    first, second, last = passes
    steps = _growth(first, second)
    alike = steps is not None and steps == _growth(second, last)
    if not alike or len(last.results) != 1 or len(given) != len(last.uploads):
        return None
    if not all(np.array_equal(a, b) for (_, a), b in zip(last.uploads, given, strict=True)):
        return None
    return Recording(place, last, steps or [])


def _growth(before: Pass, after: Pass) -> list[dict[int, int]] | None:
    """By how much the numbers of each launch grow for each token between two passes; None if more differs."""
    if [each.kind for each in before.launches] != [each.kind for each in after.launches]:
        return None
    tokens = after.position - before.position
    found = []
    for a, b in zip(before.launches, after.launches, strict=True):
        if (steps := _steps(a.launch.arguments, b.launch.arguments, tokens)) is None:
            return None
        found.append(steps)
    return found


def _steps(before: Sequence[Any], after: Sequence[Any], tokens: int) -> dict[int, int] | None:
    """The same of a launch's arguments."""
    found = {}
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        if a == b:
            continue
        if not tokens or not isinstance(a, np.unsignedinteger) or not isinstance(b, np.unsignedinteger):
            return None
        found[i], rest = divmod(int(b) - int(a), tokens)
        if rest:
            return None
    return found


class Recording:
    """The launches of a pass for one token. Raises what its place raises."""

    def __init__(self, place: Any, last: Pass, steps: Sequence[Mapping[int, int]]):
        self._place, self._position, self._held = place, last.position, list(last.held)
        self._uploads, (self._result,) = [buffer for buffer, _ in last.uploads], last.results
        recorded = zip(last.launches, steps, strict=True)
        self._replay: Replay = place.record([Recorded(n.launch, n.memory, each) for n, each in recorded])

    def run(self, position: int, given: Sequence[np.ndarray]) -> np.ndarray:
        """The result for the token at another position."""
        for buffer, array in zip(self._uploads, given, strict=True):
            self._place.upload(buffer, array)
        self._replay.run(position - self._position)
        out = np.empty(self._result.shape, self._result.dtype)
        self._place.download(self._result.buffer, self._result.offset, out)
        return out
