"""Which kernels a token meets: those for few rows, or those for many, which round differently.

Each kernel computes a row in the same way, whatever other rows come with it. So the choice must depend on the
token's own sequence alone. Then its logits are the same bits in any company, and however a scheduler cuts its
prompt. Generated tokens and short prompts meet the kernels for few rows; all tokens of a longer prompt meet
those for many.

One product is outside this rule: NumPy's BLAS multiplies many rows by large float32 weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.files.weight_file import Stored
from airllm.formats import FORMATS
from airllm.memory.budget import CHUNK

# The kernels for few rows read all weights again for each call. Those for many rows unpack them once. On
# Zen 4 that costs as much as three calls of 16 rows with AVX-512, or four with AVX2, for a model of 135M in
# q4_0 and one of 1B in q4_k.
_CALLS = 3
_SMALL = 1 << 21  # values: a float32 matrix such as a router, which no number of rows sends to the BLAS


@dataclass(frozen=True)
class RowKernels:
    """The kernels of a pass: for few rows (or for many), and those of the experts, which get fewer rows."""

    few: bool
    few_experts: bool


def choose_kernels(config: ModelConfig, tokens: int, native: bool, most_rows: int) -> RowKernels:
    """The kernels for a prompt of `tokens`, all that its sequence is to be continued with, or for one
    generated token. `native`: one call computes whole layers for `most_rows` rows.
    """
    few = tokens <= (_CALLS * most_rows if native else most_rows)
    if few or not config.experts:
        return RowKernels(few, few)
    # Rows of an expert if the router spreads the prompt's tokens evenly.
    rows = min(tokens, CHUNK) * config.experts_used / config.experts
    return RowKernels(few, rows <= _CALLS * most_rows)


class RowOps:
    """The ops of a backend, whose products and attention meet the same kernels for any number of rows.

    `as_stored`: the most rows of a product with the kernels for few rows, for weights that are floats and for
    quantized ones. More of them are divided. Blocks of 256 values have one kernel for any number of rows.
    """

    def __init__(self, ops: Any, kernels: RowKernels, as_stored: tuple[int, int]):
        self.backend, self.few, self._as_stored = ops, kernels.few, as_stored
        self.of_experts: Any = self
        if kernels.few_experts != kernels.few:
            self.of_experts = RowOps(ops, RowKernels(kernels.few_experts, kernels.few_experts), as_stored)
        self._linear_of_many = ops.extension("linear_of_many_rows")
        attend = ops.extension("cached_attention")
        self._attend = partial(attend, few_rows=self.few) if attend else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def __repr__(self) -> str:
        return f"{self.backend!r} by kernels for {'few' if self.few else 'many'} rows"

    def extension(self, name: str) -> Any:
        """That of the backend."""
        return self._attend if name == "cached_attention" else self.backend.extension(name)

    def linear(self, x: np.ndarray, weight: Stored, bias: np.ndarray | None = None) -> np.ndarray:
        """`tensor_ops.linear` of x (rows, k)."""
        if takes_any_rows(weight):
            return self.backend.linear(x, weight, bias)
        most = self._as_stored[not isinstance(weight, np.ndarray)]
        if self.few or _is_small(weight):
            if len(x) <= most:
                return self.backend.linear(x, weight, bias)
            parts = (x[at : at + most] for at in range(0, len(x), most))
            return np.concatenate([self.backend.linear(part, weight, bias) for part in parts])
        return self._linear_of_many(x, weight, bias)


def takes_any_rows(weight: Stored) -> bool:
    """Whether its products have one kernel for any number of rows."""
    return not isinstance(weight, np.ndarray) and FORMATS[weight.format].values == 256


def _is_small(weight: Stored) -> bool:
    return isinstance(weight, np.ndarray) and weight.dtype == np.float32 and weight.size <= _SMALL


def is_for_few_rows(ops: Any) -> bool:
    """Whether these are ops for few rows, which must not depend on how many come together."""
    return bool(getattr(ops, "few", False))


def ops_of_experts(ops: Any) -> Any:
    """The ops for the experts of a layer that `ops` computes."""
    return getattr(ops, "of_experts", ops)


def passes(
    batch: Sequence[list[int]], each: int, most: int
) -> Iterator[tuple[list[int], list[list[int]], list[bool]]]:
    """The passes that run a batch: rounds of at most `each` tokens of a sequence, and `most` in a pass.

    Yields the indices of the sequences in a pass, their tokens in it, and whether those are their last.
    """
    for start in range(0, max(map(len, batch)), each):
        going = [i for i, tokens in enumerate(batch) if len(tokens) > start]
        parts = [batch[i][start : start + each] for i in going]
        for some in _group([len(part) for part in parts], most):
            yield going[some], parts[some], [start + each >= len(batch[i]) for i in going[some]]


def _group(lengths: Sequence[int], most: int) -> Iterator[slice]:
    """Runs of consecutive sequences that have at most `most` rows together; none has more alone."""
    start = rows = 0
    for i, length in enumerate(lengths):
        if rows + length > most:
            yield slice(start, i)
            start, rows = i, 0
        rows += length
    yield slice(start, len(lengths))
