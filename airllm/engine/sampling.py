"""Samples the next token from logits.

The options mean the same, and apply in the same order, as in transformers: the repetition penalty first, on
all tokens of the sequence including the prompt; then temperature, top_k, top_p, min_p. (llama.cpp applies the
temperature last. With top_p or min_p and a temperature other than 1, it keeps different tokens.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

_GROUPS = 64  # values in a group; only its largest is compared first
_BLOCK = 256  # weights that are summed together
_COLDEST = np.float32(1e-30)  # below this, float32 computes 0 / 0 for the most likely token


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Raises ValueError or TypeError for invalid values.

    `temperature`: divides the logits; 0 always takes the most likely token, and then only
    `repetition_penalty` matters. `top_k`: only the k most likely tokens, and those as likely as the last of
    them; 0 for all. `top_p`: only the most likely tokens that together have this probability; 1 for all.
    `min_p`: only tokens at least this times as likely as the most likely; 0 for all. `repetition_penalty`:
    for tokens of the sequence, divides logits above 0 and multiplies those below; 1 for none. `seed`: of the
    random numbers; None for different ones each time.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, "a number from 0 on", lambda x: x >= 0)
        _number("top_k", self.top_k, "a whole number from 0 on, 0 for all tokens", lambda x: x >= 0, Integral)
        _number("top_p", self.top_p, "a number above 0 and up to 1", lambda x: 0 < x <= 1)
        _number("min_p", self.min_p, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        _number("repetition_penalty", self.repetition_penalty, "a number above 0", lambda x: x > 0)
        if self.seed is not None:
            _number("seed", self.seed, "a whole number from 0 on, or None", lambda x: x >= 0, Integral)


def _number(name: str, value: Any, expected: str, allowed: Any, kind: type = Real) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} has type {type(value).__name__}, expected {expected}")
    if not math.isfinite(value) or not allowed(value):  # type: ignore[arg-type]
        raise ValueError(f"{name} has value {value}, expected {expected}")


class Sampler:
    """Chooses the tokens of one sequence, which begins with `tokens`."""

    def __init__(self, sampling: Sampling, tokens: Iterable[int] = ()):
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed) if sampling.temperature else None
        self._seen = np.unique(np.fromiter(tokens, np.int64)) if sampling.repetition_penalty != 1 else None

    def next(self, logits: np.ndarray) -> int:
        """The token after these logits (vocabulary). It becomes part of the sequence."""
        logits = np.asarray(logits, np.float32)
        if self._seen is not None:
            logits = penalize(logits, self._seen, self.sampling.repetition_penalty)
        token = int(logits.argmax()) if self._random is None else self._draw(logits, self._random)
        if not math.isfinite(logits[token]):
            raise FloatingPointError(f"logits have {logits[token]} as their largest, expected finite numbers")
        if self._seen is not None and token not in self._seen:
            self._seen = np.append(self._seen, token)
        return token

    def _draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
        if not math.isfinite(logits[best := int(logits.argmax())]):
            return best  # `next` raises for it
        ids, weights = candidates(logits, self.sampling)
        place = draw(weights, random.random())
        return place if ids is None else int(ids[place])


def penalize(logits: np.ndarray, seen: np.ndarray, penalty: float) -> np.ndarray:
    """A copy of the logits in which the tokens `seen` are less likely, for a penalty above 1."""
    logits = logits.copy()
    values = logits[seen]
    logits[seen] = np.where(values < 0, values * np.float32(penalty), values / np.float32(penalty))
    return logits


def candidates(logits: np.ndarray, sampling: Sampling) -> tuple[np.ndarray | None, np.ndarray]:
    """The tokens that may come next, None for all, and their likelihood relative to the best, float32."""
    ids = None
    if 0 < sampling.top_k < len(logits):
        ids = top_k_places(logits, sampling.top_k)
    x = logits if ids is None else logits[ids]
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((x - x.max()) / np.float32(max(sampling.temperature, _COLDEST)))
    total = float(weights.sum(dtype=np.float64)) if sampling.top_p < 1 else 0.0
    if sampling.min_p > 0:
        ids, weights = _pick(np.flatnonzero(weights >= np.float32(sampling.min_p)), ids, weights)
    if sampling.top_p < 1:
        ids, weights = _pick(nucleus(weights, sampling.top_p * total, total), ids, weights)
    return ids, weights


def _pick(places: np.ndarray, ids: np.ndarray | None, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return places if ids is None else ids[places], weights[places]


def top_k_places(x: np.ndarray, k: int) -> np.ndarray:
    """Indices, ascending, of the k largest values and of those equal to the last of them.

    The k-th largest of the groups' maxima is at most the k-th largest value. So only values that reach it,
    a small part, are compared.
    """
    columns = len(x) // _GROUPS
    if k < columns:
        maxima = x[: columns * _GROUPS].reshape(_GROUPS, columns).max(axis=0)
        places = np.flatnonzero(x >= np.partition(maxima, columns - k)[columns - k])
    else:
        places = np.arange(len(x))
    values = x[places]
    return places[values >= np.partition(values, len(values) - k)[len(values) - k]]


def nucleus(weights: np.ndarray, needed: float, total: float) -> np.ndarray:
    """Indices of the largest weights that together reach `needed` of `total`, and of those equal to the last.

    Weights so small that all of their size could be left out are skipped.
    """
    places = np.flatnonzero(weights >= (total - needed) / len(weights))
    values = np.sort(weights[places])[::-1]
    reached = np.cumsum(values, dtype=np.float64)
    last = min(int(np.searchsorted(reached, needed)), len(values) - 1)
    return places[weights[places] >= values[last]]


def draw(weights: np.ndarray, random: float) -> int:
    """An index, drawn in proportion to the weights by a random number in [0, 1). Sums blocks first, and then
    only the block that contains the number.
    """
    start = 0
    if len(weights) > _BLOCK:
        sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).astype(np.float64)
        block, random = _place(np.cumsum(sums), random)
        start = block * _BLOCK
    return start + _place(np.cumsum(weights[start : start + _BLOCK], dtype=np.float64), random)[0]


def _place(reached: np.ndarray, random: float) -> tuple[int, float]:
    """The index whose share of the running sums contains the random number, and the place in that share."""
    at = random * reached[-1]
    place = int(min(np.searchsorted(reached, at, "right"), np.searchsorted(reached, reached[-1])))
    before = reached[place - 1] if place else 0.0
    return place, float((at - before) / (reached[place] - before))
