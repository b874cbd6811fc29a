"""Mixers that keep arrays of a fixed size instead of keys and values: each token replaces them.

A kind is a class here: its sizes, the shapes of its state, and the shapes of its weights. An architecture
names the kind (`Architecture.recurrent`), `recurrent_keys.py` has the keys of its sizes in files, and
`engine/recurrent.py` what it computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

Shape = tuple[int, ...]


class Recurrent:
    """A mixer with a state. `kind` names it, also as a trait of a model and in the names of its weights."""

    kind: ClassVar[str]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the arrays of its state, float32."""
        raise NotImplementedError

    def weights(self, width: int) -> Mapping[str, Shape]:
        """The shapes of its weights, by name, in a model of this width."""
        raise NotImplementedError


@dataclass(frozen=True)
class ShortConv(Recurrent):
    """A gated convolution over the last `taps` tokens of each channel (LFM2, Liquid AI, 2025). Its state has
    the `taps` - 1 inputs before the next token, the oldest first.
    """

    kind: ClassVar[str] = "short_conv"

    channels: int
    taps: int

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return ((self.taps - 1, self.channels),)

    def weights(self, width: int) -> Mapping[str, Shape]:
        return {
            "short_conv.in": (3 * self.channels, width),
            "short_conv.filter": (self.channels, self.taps),
            "short_conv.output": (width, self.channels),
        }
