"""Samples the next token from logits.

The options apply in this order: `repetition_penalty`, on all tokens of the sequence including the prompt;
`frequency_penalty` and `presence_penalty`, on generated tokens only; `logit_bias`; the mask of a constraint;
`temperature`; `top_k`; `top_p`; `min_p`. Those that transformers has mean the same, and apply in the same
order, as there. (llama.cpp applies the temperature last. With top_p or min_p and a temperature other than 1,
it keeps different tokens.) The penalties of presence and frequency and the bias are OpenAI's.

Log probabilities are those of the model: of the logits before any option, as in vLLM and llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

_GROUPS = 64  # values in a group; only its largest is compared first
_BLOCK = 256  # weights that are summed together
_COLDEST = np.float32(1e-30)  # below this, float32 computes 0 / 0 for the most likely token


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Raises ValueError or TypeError for invalid values.

    `temperature`: divides the logits; 0 always takes the most likely token, and then only penalties and
    `logit_bias` matter. `top_k`: only the k most likely tokens, and those as likely as the last of
    them; 0 for all. `top_p`: only the most likely tokens that together have this probability; 1 for all.
    `min_p`: only tokens at least this times as likely as the most likely; 0 for all. `repetition_penalty`:
    for tokens of the sequence, divides logits above 0 and multiplies those below; 1 for none. `seed`: of the
    random numbers; None for different ones each time. `presence_penalty`: subtracted from the logits of
    generated tokens; `frequency_penalty`: the same, once for each time that the token was generated.
    `logit_bias`: token id -> a number that is added to its logit; -100 and 100 forbid and force a token.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, "a number from 0 on", lambda x: x >= 0)
        _number("top_k", self.top_k, "a whole number from 0 on, 0 for all tokens", lambda x: x >= 0, Integral)
        _number("top_p", self.top_p, "a number above 0 and up to 1", lambda x: 0 < x <= 1)
        _number("min_p", self.min_p, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        _number("repetition_penalty", self.repetition_penalty, "a number above 0", lambda x: x > 0)
        if self.seed is not None:
            _number("seed", self.seed, "a whole number from 0 on, or None", lambda x: x >= 0, Integral)
        for name in ("presence_penalty", "frequency_penalty"):
            _number(name, getattr(self, name), "a number from -2 to 2", lambda x: -2 <= x <= 2)
        _check_bias(self.logit_bias)

    def require_known_tokens(self, vocabulary: int) -> None:
        """Raise ValueError if `logit_bias` has a token that is not in a vocabulary of this size."""
        if (most := max(self.logit_bias, default=0)) >= vocabulary:
            raise ValueError(f"logit_bias has token {most}, expected 0 to {vocabulary - 1}")


def _check_bias(bias: Mapping[int, float]) -> None:
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias has type {type(bias).__name__}, expected a dict of token ids to numbers")
    for token, value in bias.items():
        _number("logit_bias", token, "whole numbers from 0 on as tokens", lambda x: x >= 0, Integral)
        _number(f"logit_bias[{token}]", value, "a number from -100 to 100", lambda x: -100 <= x <= 100)


def _number(name: str, value: Any, expected: str, allowed: Any, kind: type = Real) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} has type {type(value).__name__}, expected {expected}")
    if not (kind is Integral or is_finite(value)) or not allowed(value):
        raise ValueError(f"{name} has value {_shown(value)}, expected {expected}")


def is_finite(value: Any) -> bool:
    """Whether a float holds this number; of a larger whole number math.isfinite() only fails."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: Any) -> str:
    """As Python writes it; it refuses to write thousands of digits."""
    try:
        return str(value)
    except ValueError:
        return f"of {value.bit_length()} bits"


class Sampler:
    """Chooses the tokens of one sequence, which begins with `tokens`."""

    def __init__(self, sampling: Sampling, tokens: Iterable[int] = ()):
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed) if sampling.temperature else None
        self._seen = np.unique(np.fromiter(tokens, np.int64)) if sampling.repetition_penalty != 1 else None
        counts = sampling.presence_penalty or sampling.frequency_penalty
        self._generated = _Generated(sampling) if counts else None
        self._bias = _arrays(sampling.logit_bias) if sampling.logit_bias else None

    def next(self, logits: np.ndarray, mask: np.ndarray | None = None) -> int:
        """The token after these logits (vocabulary). It becomes part of the sequence.

        `mask`, bool (vocabulary): only tokens with True are chosen; None for all. Raises ValueError for a
        mask without any.
        """
        logits = np.asarray(logits, np.float32)
        if self._seen is not None:
            logits = penalize(logits, self._seen, self.sampling.repetition_penalty)
        if self._generated is not None:
            logits = self._generated.penalize(logits)
        if self._bias is not None:
            logits = add_bias(logits, *self._bias)
        if mask is not None:
            logits = hide(logits, mask)
        token = int(logits.argmax()) if self._random is None else self._draw(logits, self._random)
        if not math.isfinite(logits[token]):
            raise FloatingPointError(f"logits have {logits[token]} as their largest, expected finite numbers")
        if self._seen is not None and token not in self._seen:
            self._seen = np.append(self._seen, token)
        if self._generated is not None:
            self._generated.add(token)
        return token

    def _draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
        if not math.isfinite(logits[best := int(logits.argmax())]):
            return best  # `next` raises for it
        ids, weights = candidates(logits, self.sampling)
        place = draw(weights, random.random())
        return place if ids is None else int(ids[place])


class _Generated:
    """Counts the tokens that a sequence generated, and makes them less likely by OpenAI's penalties."""

    def __init__(self, sampling: Sampling):
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._tokens = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def penalize(self, logits: np.ndarray) -> np.ndarray:
        penalties = self._presence + self._frequency * self._counts
        return add_bias(logits, self._tokens, -penalties)

    def add(self, token: int) -> None:
        places = np.flatnonzero(self._tokens == token)
        if len(places):
            self._counts[places] += 1
        else:
            self._tokens, self._counts = np.append(self._tokens, token), np.append(self._counts, 1)


def _arrays(bias: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and their values."""
    return np.fromiter(bias, np.int64), np.fromiter(bias.values(), np.float64)


def add_bias(logits: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A copy of the logits, with `values` added to those of `tokens`, which are distinct."""
    logits = logits.copy()
    logits[tokens] += values.astype(np.float32)
    return logits


def hide(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A copy of the logits, with minus infinity where `mask` is False. ValueError if it is False everywhere.

    Logits may have more entries than the vocabulary, since some models pad it: those are hidden too.
    """
    known = mask[: len(logits)]
    allowed = np.count_nonzero(known)
    if not allowed:
        raise ValueError(f"the mask of {len(mask)} tokens allows none, expected one or more")
    if 2 * allowed > len(known):  # the fewer places are written, the faster
        hidden = logits.copy()
        hidden[np.flatnonzero(~known)] = -np.inf
        hidden[len(known) :] = -np.inf
    else:
        hidden = np.full(len(logits), -np.inf, np.float32)
        places = np.flatnonzero(known)
        hidden[places] = logits[places]
    return hidden


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


# ------------------------------------------------------------------------------------------------ logprobs


@dataclass(frozen=True)
class TokenLogprob:
    """The natural logarithm of a token's probability, and the most likely tokens with theirs, in order."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def log_probabilities(logits: np.ndarray, token: int, top: int = 0) -> TokenLogprob:
    """The log probability of `token`, and of the `top` most likely tokens, by logits (vocabulary).

    Of equally likely tokens, the one with the smaller id comes first. `token` need not be among them.
    """
    logits = np.asarray(logits, np.float32)
    largest = float(logits.max())
    if not math.isfinite(largest):
        raise FloatingPointError(f"logits have {largest} as their largest, expected finite numbers")
    with np.errstate(under="ignore"):
        total = largest + math.log(np.exp(logits - np.float32(largest)).sum(dtype=np.float64))
    likely = _most_likely(logits, min(top, len(logits))) if top else ()
    pairs = tuple((int(each), float(logits[each]) - total) for each in likely)
    return TokenLogprob(token, float(logits[token]) - total, pairs)


def _most_likely(logits: np.ndarray, count: int) -> np.ndarray:
    places = top_k_places(logits, count)
    return places[np.argsort(-logits[places], kind="stable")][:count]
