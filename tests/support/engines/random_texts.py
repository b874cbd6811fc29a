"""Texts that a constraint allows, by random logits, and whether it allows a given text."""

from collections.abc import Callable

import numpy as np

from airllm.engine.constraint import Constraint
from airllm.engine.sampling import Sampler, Sampling
from airllm.text.tokenizer import Tokenizer

# Texts that make an answer end sooner, and how much likelier they are.
_LIKELY = {'"': 4, "}": 4, "]": 4, ",": -1, " ": -2, "\n": -3, "[": -1, "{": -1}
_END = 6


def generate(new: Callable[[], Constraint], tokenizer: Tokenizer, seed: int, most: int = 300) -> str | None:
    """A text that the constraint allows; None if it does not end within `most` tokens."""
    random, constraint = np.random.default_rng(seed), new()
    sampler, likely, tokens = Sampler(Sampling(1.0, seed=seed)), _likely(tokenizer), list[int]()
    for _ in range(most):
        noise = random.standard_normal(len(tokenizer)).astype(np.float32)
        token = sampler.next(noise + likely, constraint.mask())
        constraint.accept(token)
        if token not in tokenizer.stop_ids:
            tokens.append(token)
        if token in tokenizer.stop_ids or constraint.finished:
            return tokenizer.decode(tokens, special=True)
    return None


def _likely(tokenizer: Tokenizer) -> np.ndarray:
    likely = np.zeros(len(tokenizer), np.float32)
    for text, value in _LIKELY.items():
        likely[tokenizer.encode(text, special=False, add_bos=False)] = value
    likely[list(tokenizer.stop_ids)] = _END
    return likely


def allowed(
    new: Callable[[], Constraint], tokenizer: Tokenizer, text: str, special: bool = False
) -> int | None:
    """How many characters of the text the constraint allows; None if the text is allowed and may end."""
    constraint, decoded = new(), ""
    decoder = tokenizer.decoder(True)
    for token in tokenizer.encode(text, special=special, add_bos=False):
        mask = None if constraint.finished else constraint.mask()
        if mask is None or not mask[token]:
            return len(decoded)
        constraint.accept(token)
        decoded += decoder.add(token)
    ended = constraint.finished or constraint.mask()[min(tokenizer.stop_ids)]
    return None if ended else len(decoded)
