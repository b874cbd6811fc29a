"""Tensor parallelism: each process has some heads and a part of the feed-forward of every layer.

Two all-reduces per layer sum the results of attention and of the feed-forward. The output matrix is divided
by tokens of the vocabulary. All processes have the embedding and the norms. (Shoeybi et al., 2019,
arXiv:1909.08053.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from airllm.architectures.layer_spec import LayerSizes
from airllm.architectures.model_config import ModelConfig
from airllm.files.weight_file import Stored
from airllm.formats import FORMATS, Quantized
from airllm.memory.layers import Experts, Layer


class Processes(Protocol):
    """The processes that share a model: this is number `rank` of `size`."""

    rank: int
    size: int

    def all_reduce(self, array: np.ndarray) -> None:
        """Replace a float32 array, in place, by its sum over all processes."""

    def gather(self, part: np.ndarray, counts: list[int]) -> np.ndarray:
        """The concatenated float32 parts of all processes, of `counts` values each."""


class Shard:
    """The part of a model that one of `processes` has; `config` describes the part.

    Key-value heads, with the query heads that use them, may be divided unevenly; the rest is divided equally.
    ValueError if the model cannot be divided so; it lists the numbers of processes that work.
    """

    def __init__(self, whole: ModelConfig, processes: Processes):
        size = processes.size
        if whole.qk_norm == "row":
            found = "normalizes whole rows of q and k, and a process has only a part of them"
            raise ValueError(f"world_size has value {size}, expected 1: {whole.architecture} {found}")
        if whole.dense_and_experts:
            found = "normalizes the results of experts apart, and a process has only a part of each"
            raise ValueError(f"world_size has value {size}, expected 1: {whole.architecture} {found}")
        if whole.recurrent:
            found = "keeps a recurrent state, which cannot be divided"
            raise ValueError(f"world_size has value {size}, expected 1: {whole.architecture} {found}")
        if whole.halves:
            found = "has layers that are a mixer or a feed-forward alone, which are not divided"
            raise ValueError(f"world_size has value {size}, expected 1: {whole.architecture} {found}")
        if not _is_divisible(whole, size):
            would_do = ", ".join(str(n) for n in range(1, whole.heads + 1) if _is_divisible(whole, n))
            found = f"{whole.heads} heads, {whole.kv_heads} key-value heads and {_widths(whole)} wide"
            raise ValueError(
                f"world_size has value {size}, expected one of {would_do} for a model of {found}"
            )
        self.whole, self.processes = whole, processes
        mine = [self._sizes(whole.sizes_of(layer)) for layer in range(whole.layers)]
        self.config = dataclasses.replace(
            whole,
            heads=max(each.heads for each in mine),
            kv_heads=max(each.kv_heads for each in mine),
            feed_forward=whole.feed_forward // size,
            sizes=tuple(mine) if whole.sizes else (),
            expert_feed_forward=whole.expert_feed_forward // size,
            shared_expert=whole.shared_expert // size,
        )

    def _sizes(self, whole: LayerSizes) -> LayerSizes:
        """This process's part of a layer's sizes."""
        heads, kv_heads = self._heads_of(whole)
        wide = whole.feed_forward // self.processes.size
        return dataclasses.replace(whole, heads=len(heads), kv_heads=len(kv_heads), feed_forward=wide)

    def _heads_of(self, whole: LayerSizes) -> tuple[range, range]:
        return _heads_of(whole, self.processes.rank, self.processes.size)

    def layer(self, layer: Layer) -> Layer:
        """This process's part of a layer. Rows are views; the columns of two matrices are copied."""
        experts = layer.experts
        if experts:
            known = {field.name: getattr(experts, field.name) for field in dataclasses.fields(Experts)}
            experts = ExpertsPart(**known | {"_found": {}}, part=self._expert)
        weights = {name: self._cut(layer.index, name, stored) for name, stored in layer.weights.items()}
        for name in ("attention.output_bias", "feed_forward.down_bias") if self.processes.rank else ():
            weights.pop(name, None)  # only one process adds it
        return Layer(self.config, layer.index, weights, experts, self.processes.all_reduce)

    def output(self, table: Stored) -> Stored:
        """This process's rows of the output matrix."""
        mine = _part(self.whole.vocabulary, self.processes.rank, self.processes.size)
        return table[mine.start : mine.stop]

    def gather_logits(self, logits: np.ndarray) -> np.ndarray:
        """Logits (rows, vocabulary) from the parts of all processes."""
        size = self.processes.size
        counts = [len(_part(self.whole.vocabulary, rank, size)) for rank in range(size)]
        return np.stack([self.processes.gather(row, counts) for row in logits])

    def _cut(self, layer: int, name: str, stored: Stored) -> Stored:
        part, _, rest = name.partition(".")
        if part == "attention":
            return self._of_attention(self.whole.sizes_of(layer), rest, stored)
        if part == "feed_forward" and not rest.endswith(("norm", "down_bias")):
            return self._of_feed_forward(name, stored, self.config.sizes_of(layer).feed_forward)
        if part == "shared_expert" and rest != "router":
            return self._of_feed_forward(name, stored, self.config.shared_expert)
        return stored

    def _of_attention(self, sizes: LayerSizes, name: str, stored: Stored) -> Stored:
        heads, kv_heads = self._heads_of(sizes)
        if name == "sinks":
            return stored[heads.start : heads.stop]
        if name == "output":
            mine = _rows(heads, sizes.value_dim)
            return columns(f"attention.{name}", stored, mine.start, mine.stop)
        if name in ("k_b", "v_b"):
            return stored[heads.start : heads.stop]
        if name in ("q", "q_bias", "q_b"):
            return stored[_rows(heads, sizes.head_dim)]
        if name in ("k", "k_bias"):
            return stored[_rows(kv_heads, sizes.head_dim)]
        return stored[_rows(kv_heads, sizes.value_dim)] if name in ("v", "v_bias") else stored

    def _of_feed_forward(self, name: str, stored: Stored, wide: int) -> Stored:
        start = self.processes.rank * wide
        if name.endswith("down"):
            return columns(name, stored, start, start + wide)
        return stored[start : start + wide]

    def _expert(self, weights: Mapping[str, Stored]) -> dict[str, Stored]:
        wide, last = self.config.expert_feed_forward, "down_bias"
        found = {n: self._of_feed_forward(n, each, wide) for n, each in weights.items() if n != last}
        if last in weights and not self.processes.rank:
            found[last] = weights[last]  # only one process adds it
        return found


@dataclass(frozen=True)
class ExpertsPart(Experts):
    """A process's part of each expert."""

    part: Callable[[Mapping[str, Stored]], dict[str, Stored]] = dict

    def _expert(self, number: int) -> dict[str, Stored]:
        return self.part(super()._expert(number))


def columns(name: str, stored: Stored, start: int, stop: int) -> Stored:
    """Columns [start, stop) of a stored matrix, copied. ValueError if they do not begin and end at blocks."""
    if not isinstance(stored, Quantized):
        return np.ascontiguousarray(stored[:, start:stop])
    of = FORMATS[stored.format]
    if start % of.values or stop % of.values:
        expected = f"a multiple of {of.values}, the values in a block of {of.name}: use fewer processes"
        raise ValueError(f"{name} has {stop - start} columns for this process, expected {expected}")
    first, last = (at // of.values * of.bytes for at in (start, stop))
    return Quantized(np.ascontiguousarray(stored.data[:, first:last]), stored.format)


def _is_divisible(c: ModelConfig, size: int) -> bool:
    """Whether this many processes can share the model; several may have the same key-value head."""
    layers = [c.sizes_of(layer) for layer in range(c.layers)]
    alike = all(size <= of.kv_heads or not (size % of.kv_heads or of.heads % size) for of in layers)
    return alike and not any(wide % size for wide in _widths(c))


def _heads_of(c: LayerSizes, rank: int, size: int) -> tuple[range, range]:
    """The heads of a process, and the key-value heads that they use."""
    if size > c.kv_heads:
        kv = rank * c.kv_heads // size
        return _part(c.heads, rank, size), range(kv, kv + 1)
    kv_heads, each = _part(c.kv_heads, rank, size), c.heads // c.kv_heads
    return range(kv_heads.start * each, kv_heads.stop * each), kv_heads


def _part(count: int, rank: int, size: int) -> range:
    """The range of `count` items that a process has. Ranges differ by at most one item in length."""
    return range(count * rank // size, count * (rank + 1) // size)


def _rows(heads: range, head_dim: int) -> slice:
    """The rows of a matrix that belong to these heads."""
    return slice(heads.start * head_dim, heads.stop * head_dim)


def _widths(c: ModelConfig) -> list[int]:
    """Widths of all kinds of feed-forward in the model."""
    moe = [c.is_moe(layer) for layer in range(c.layers)]
    experts = [c.expert_feed_forward] + [c.shared_expert] * (c.shared_expert > 0)
    dense = {c.sizes_of(layer).feed_forward for layer in range(c.layers) if not moe[layer]}
    return sorted(dense) + experts * any(moe)
