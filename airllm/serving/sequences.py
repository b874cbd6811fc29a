"""Turns the fields of a request into the scheduler's sequences."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from airllm.engine.constraint import Constraint
from airllm.engine.sampling import Sampling
from airllm.serving.protocol.errors import invalid, unsupported
from airllm.serving.protocol.requests import GenerationFields, SamplingFields
from airllm.text.tokenizer import Tokenizer

_DRAWN = {"temperature": 1.0}  # OpenAI's default, if the model's files recommend nothing
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def refuse_unsupported(request: Any) -> None:
    """Raise ApiError for a field that would change the answer and that this server does not support."""
    for name, harmless in type(request).refused.items():
        value = getattr(request, name)
        if value is not None and value not in harmless:
            raise unsupported(f"'{name}' is not supported by this server.", name)


def sampling_of(
    fields: SamplingFields, recommended: Mapping[str, Any], vocabulary: int, choice: int = 0
) -> Sampling:
    """The sampling that was asked for, else what the model's files recommend, else OpenAI's defaults. Choices
    draw from different seeds, the first from the one that was given.
    """
    given = {name: value for name in _SAMPLING if (value := getattr(fields, name)) is not None}
    if given.get("top_k") == -1:  # vLLM's way to say: all
        given["top_k"] = 0
    seed = None if fields.seed is None else (fields.seed + choice) % 2**64
    bias = logit_bias(fields.logit_bias or {}, vocabulary)
    return Sampling(**{**_DRAWN, **recommended, **given}, seed=seed, logit_bias=bias)


def logit_bias(given: Mapping[str, float], vocabulary: int) -> dict[int, float]:
    """Token ids as numbers. JSON has only texts as keys."""
    found = {}
    for text, value in given.items():
        if not (text.isascii() and text.isdigit() and int(text) < vocabulary):
            expected = f"a token from 0 to {vocabulary - 1}"
            raise invalid(f"'logit_bias' has the key {text[:20]!r}, expected {expected}.", "logit_bias")
        found[int(text)] = value
    return found


def salt_of(key: str, fields: Any) -> str:
    """What keeps the prefixes of this request from those of other keys and salts."""
    if getattr(fields, "cache_prompt", None) is False:
        return secrets.token_hex(16)
    return f"{key}/{fields.cache_salt or ''}"


class EndsLater:
    """A constraint: no token that ends the text among the first `least` tokens, nor what `inner` forbids."""

    def __init__(self, tokenizer: Tokenizer, least: float, inner: Constraint | None):
        self._left, self._inner = least, inner
        self._mask = np.ones(len(tokenizer), bool)
        self._mask[list(tokenizer.stop_ids)] = False

    def mask(self) -> np.ndarray | None:
        mask = None if self._inner is None else self._inner.mask()
        if self._left <= 0:
            return mask
        both = self._mask if mask is None else mask & self._mask
        return both if both.any() else mask  # the text is complete and has nowhere to go

    def accept(self, token: int) -> None:
        self._left -= 1
        if self._inner is not None:
            self._inner.accept(token)

    @property
    def finished(self) -> bool:
        return self._inner is not None and self._inner.finished


def ends_later(fields: GenerationFields, tokenizer: Tokenizer, inner: Constraint | None) -> Constraint | None:
    """The constraint of `ignore_eos` and `min_tokens`, beside another one."""
    least = math.inf if fields.ignore_eos else fields.min_tokens or 0
    return EndsLater(tokenizer, least, inner) if least else inner
