"""What one layer of a model computes: its mixer with sizes, window and rotation, and its feed-forward.

`ModelConfig.layer(i)` puts it together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airllm.architectures.recurrent import Recurrent


@dataclass(frozen=True)
class Rope:
    """Rotary positions. The first `dim` values of a head are rotated: neighbouring pairs if `interleaved`,
    else pairs (i, i + dim / 2). `scaling` is that of `tensor_ops.rope_table`.
    """

    theta: float
    dim: int
    interleaved: bool = False
    scaling: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class QueryTemperature:
    """Queries are scaled by 1 + scale * log(1 + floor(position / length)), so that attention stays sharp in
    texts longer than `length` (Llama 4, Ministral 3). `offset` is added to positions. `nope_only`: only those
    of layers without rotation.
    """

    scale: float
    length: int
    offset: int = 0
    nope_only: bool = False


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of a layer, in a model whose layers differ. A head has keys of `head_dim` values, and values
    of `value_dim`. `feed_forward` is the width of a dense one.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    feed_forward: int


@dataclass(frozen=True)
class Attention:
    """Attention of one layer. A head has keys of `key_dim` values and values of `value_dim`.

    `rope`: the rotation of queries and keys, if any. `window`: how many of the last keys a query attends to,
    None for all. `source`: the layer whose keys and values it reads: this one, unless they are shared.
    `keys_as_values`: values are the keys before their norm and rotation. `temperature`: how queries are
    scaled by position, if they are. `beside`: a mixer whose result is added.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    rope: Rope | None
    window: int | None
    source: int
    keys_as_values: bool = False
    temperature: QueryTemperature | None = None
    beside: Recurrent | None = None

    @property
    def widths(self) -> dict[str, int]:
        """Values of a token's "q", "k" and "v"."""
        return {
            "q": self.heads * self.key_dim,
            "k": self.kv_heads * self.key_dim,
            "v": self.kv_heads * self.value_dim,
        }

    @property
    def out(self) -> int:
        """Values of what a token's heads attended to."""
        return self.heads * self.value_dim


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention of one layer (DeepSeek-V2, 2024). A token keeps one row for all heads: a
    latent of `kv_rank` values, of which each head's keys and values are products, and a key of
    `rope.dim` values, which is rotated. A head's query has `plain_dim` values for the first and as many as
    that key for the second; its values are `value_dim`. `q_rank`: queries are products of a latent too, of
    this many values, unless 0. `temperature`: how queries are scaled by position, if they are.
    """

    heads: int
    q_rank: int
    kv_rank: int
    plain_dim: int
    value_dim: int
    rope: Rope
    temperature: QueryTemperature | None = None

    @property
    def query_dim(self) -> int:
        """Values of a head's query."""
        return self.plain_dim + self.rope.dim

    @property
    def row(self) -> int:
        """Values that a token keeps."""
        return self.kv_rank + self.rope.dim

    @property
    def widths(self) -> dict[str, int]:
        """Values of a token's queries to what tokens keep, "q", and of what it keeps, "k"."""
        return {"q": self.heads * self.row, "k": self.row}


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward of one layer: a dense one of `width`, 0 for none; experts; both; or neither."""

    width: int
    experts: bool


@dataclass(frozen=True)
class LayerSpec:
    """What one layer computes: how it mixes tokens, None if it does not, then what it computes of each."""

    mixer: Attention | Latent | Recurrent | None
    feed_forward: FeedForward

    @property
    def attention(self) -> Attention:
        """The mixer, which must be attention."""
        if not isinstance(self.mixer, Attention):
            raise TypeError(f"the layer mixes tokens by {self.mixer}, expected attention")
        return self.mixer

    @property
    def recurrent(self) -> Recurrent | None:
        """The mixer that has a recurrent state, if any."""
        if isinstance(self.mixer, Attention):
            return self.mixer.beside
        return self.mixer if isinstance(self.mixer, Recurrent) else None


@dataclass(frozen=True)
class Encoding:
    """What an encoder computes, a model that makes vectors of texts and does not write. Each token attends to
    all tokens of its text; in a layer with a window, to those that are at most half the window away.

    `positions`: a table has a row for each position, which is added to the token's; `skipped`: its first
    rows, which no position uses. `token_types`: rows of a table of types; each token has type 0.
    `embedding_norm`: the sum of these is normalized. `sum_norms`: the norms after attention and feed-forward
    are not of what they add, but of the sum. `bare_first`: the first layer has no norm before attention.
    """

    positions: bool = False
    skipped: int = 0
    token_types: int = 0
    embedding_norm: bool = False
    sum_norms: bool = False
    bare_first: bool = False
