"""Mixers that keep arrays of a fixed size instead of keys and values: each token replaces them.

A kind is a class here: its sizes, the shapes of its state, and the shapes of its weights. An architecture
names the kind (`Architecture.recurrent`), `recurrent_keys.py` has the keys of its sizes in files, and
`engine/layers/recurrent.py` what it computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

Shape = tuple[int, ...]


class Recurrent:
    """A mixer with a state. `kind` names it, also as a trait of a model and in the names of its weights.
    `shared`: the names of two sizes, if the second must divide the first.
    """

    kind: ClassVar[str]
    shared: ClassVar[tuple[str, str] | None] = None

    @property
    def row_values(self) -> int:
        """How many values of a token its definition has in memory at the most, besides those of `x`."""
        raise NotImplementedError

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
    def row_values(self) -> int:
        return 6 * self.channels

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return ((self.taps - 1, self.channels),)

    def weights(self, width: int) -> Mapping[str, Shape]:
        return {
            "short_conv.in": (3 * self.channels, width),
            "short_conv.filter": (self.channels, self.taps),
            "short_conv.output": (width, self.channels),
        }


@dataclass(frozen=True)
class DeltaRule(Recurrent):
    """The gated delta rule (Yang et al., 2024), as in Qwen3-Next (Alibaba, 2025): `value_heads` heads, each
    with a matrix that a token reads and changes. They share `key_heads` heads of queries and keys. All three
    go through a convolution over `taps` tokens first. The state has the inputs of that, the oldest first, and
    the matrices.

    How files store it: `tiled`: value head i has key head i modulo their number; else as many in a row share
    one. `log_decay`: decays are stored as logarithms. `joined`: one matrix makes queries, keys, values and
    gates, in this order for each key head. `paired`: one makes rates and decays, likewise.
    """

    kind: ClassVar[str] = "delta_rule"
    shared: ClassVar[tuple[str, str] | None] = ("value_heads", "key_heads")

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = False
    log_decay: bool = False
    joined: bool = False
    paired: bool = False

    @property
    def values(self) -> int:
        """Values of a token in all heads."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Values that go through the convolution: queries, keys, values."""
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def row_values(self) -> int:
        keys = self.value_heads * self.key_dim  # of each value head
        return 5 * self.channels + 8 * keys + 6 * self.values

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.taps - 1, self.channels), (self.value_heads, self.key_dim, self.value_dim)

    def weights(self, width: int) -> Mapping[str, Shape]:
        heads, values = self.value_heads, self.values
        inputs: dict[str, Shape] = {"delta.qkv": (self.channels, width), "delta.gate": (values, width)}
        rates: dict[str, Shape] = {"delta.rate": (heads, width), "delta.step": (heads, width)}
        if self.joined:
            inputs = {"delta.qkvz": (self.channels + values, width)}
        if self.paired:
            rates = {"delta.rates": (2 * heads, width)}
        return {
            "delta.output": (width, values),
            **inputs,
            **rates,
            "delta.filter": (self.channels, self.taps),
            "delta.decay_log" if self.log_decay else "delta.decay": (heads,),
            "delta.step_bias": (heads,),
            "delta.head_scale": (self.value_dim,),
        }


@dataclass(frozen=True)
class Mamba2(Recurrent):
    """Mamba-2's mixer: state spaces with a decay for each head (Dao and Gu, 2024). `heads` heads, each
    with a matrix (state_dim, head_dim) that fades, gets a token's values at the places that its input vector
    says, and is read at those that its output vector says. `groups` of heads share these two vectors. Values
    and vectors go through a convolution over `taps` tokens first, which has a bias if `filter_bias`. The
    result is gated, then normalized by group, unless `norm` is False; in this order unless `norm_first`.

    `multipliers`, if any: of the gate, the values, the two vectors, the steps, and the result.

    The state has the inputs of the convolution, the oldest first, and the matrices. `log_decay`: files store
    decays as logarithms.
    """

    kind: ClassVar[str] = "mamba2"
    shared: ClassVar[tuple[str, str] | None] = ("heads", "groups")

    heads: int
    groups: int
    head_dim: int
    state_dim: int
    taps: int
    filter_bias: bool = True
    norm: bool = True
    norm_first: bool = False
    multipliers: tuple[float, ...] = ()
    log_decay: bool = False

    @property
    def values(self) -> int:
        """Values of a token in all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Values that go through the convolution: those of the heads, input vectors, output vectors."""
        return self.values + 2 * self.groups * self.state_dim

    @property
    def row_values(self) -> int:
        return 5 * self.channels + 6 * self.values

    @cached_property
    def input_multipliers(self) -> np.ndarray:
        """The multipliers of what its first product makes, float32."""
        of_groups = self.groups * self.state_dim
        sizes = (self.values, self.values, of_groups, of_groups, self.heads)
        return np.repeat(np.array(self.multipliers[:-1], np.float32), sizes)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.taps - 1, self.channels), (self.heads, self.state_dim, self.head_dim)

    def weights(self, width: int) -> Mapping[str, Shape]:
        return {
            "mamba.in": (self.values + self.channels + self.heads, width),
            "mamba.filter": (self.channels, self.taps),
            **({"mamba.filter_bias": (self.channels,)} if self.filter_bias else {}),
            "mamba.step_bias": (self.heads,),
            "mamba.decay_log" if self.log_decay else "mamba.decay": (self.heads,),
            "mamba.skip": (self.heads,),
            **({"mamba.scale": (self.values,)} if self.norm else {}),
            "mamba.output": (width, self.values),
        }
