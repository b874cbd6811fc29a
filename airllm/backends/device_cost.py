"""What a device takes for a launch, a wait, an upload and for reading weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceCost:
    """What a `device` takes: seconds of a `launch` and of a `wait` for a result; bytes per second of an
    `upload`, and of products of one row that `read` weights, by their format or dtype.
    """

    device: str
    launch: float
    wait: float
    upload: float
    read: Mapping[str, float]

    def covers(self, formats: Iterable[str]) -> bool:
        """Whether it knows these formats."""
        return set(formats) <= set(self.read)

    def seconds(self, launches: int, nbytes: Mapping[str, int]) -> float:
        """Of a pass with so many launches and one wait that reads so many bytes of each format."""
        reads = sum(number / self.read[kind] for kind, number in nbytes.items())
        return self.wait + launches * self.launch + reads
