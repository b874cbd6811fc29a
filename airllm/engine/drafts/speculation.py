"""Drafts for the sequences of an engine: which drafter guesses, how many tokens, and what was right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from airllm.architectures.model_config import ModelConfig
from airllm.engine.drafts.draft_model import DraftModel
from airllm.engine.drafts.drafter import Drafter, Kind
from airllm.engine.drafts.ngram import NgramDrafter
from airllm.engine.drafts.policy import ROWS, DraftPolicy
from airllm.engine.model import Model

MOST_DRAFTED = ROWS[-1] - 1


def require_return(config: ModelConfig, argument: str) -> None:
    """Raises ValueError for a model whose sequences cannot go back by a few tokens, as drafts need."""
    if config.recurrent:
        found = f"{config.architecture} keeps a recurrent state, which cannot take a guess back"
        raise ValueError(f"{argument} needs models with attention alone, but {found}: leave it out")


def may_speculate(model: Model) -> bool:
    """Whether drafts cannot change the text: a row has the bits that it has alone, and sequences go back."""
    return model.is_batch_invariant and not model.config.recurrent


class Speculation:
    """Drafts for the sequences of an engine, by prompt lookup and, if there is one, a draft model."""

    def __init__(self, draft_model: DraftModel | None = None):
        self.policy = DraftPolicy()
        self.draft_model = draft_model

    @contextmanager
    def begin(self, tokens: list[int]) -> Iterator[Speculator]:
        """Drafts for a sequence that begins with `tokens`."""
        with ExitStack() as stack:
            drafters: list[Drafter] = [NgramDrafter(tokens)]
            if self.draft_model:
                drafters.append(stack.enter_context(self.draft_model.drafter(tokens)))
            yield Speculator(self.policy, drafters)

    def close(self) -> None:
        """Close the draft model."""
        if self.draft_model:
            self.draft_model.close()


class Speculator:
    """Drafts for one sequence: `propose` before each call of the model, `observe` after it."""

    def __init__(self, policy: DraftPolicy, drafters: Sequence[Drafter]):
        self._policy, self._drafters = policy, drafters
        self._seconds = 0.0  # what the draft took
        self._guesses: list[tuple[Sequence[Kind], list[int]]] = []  # to learn from

    def propose(self, most: Callable[[], int]) -> list[int]:
        """The tokens to verify in the next call, at most `most()`; none if that promises no gain. Most calls
        of a text without repetitions end here early: they must cost next to nothing.
        """
        self._guesses, self._seconds = [], 0.0
        single = self._policy.costs.single
        asked = [(each, each.kinds(MOST_DRAFTED)) for each in self._drafters]
        if single is None or not any(kinds for _, kinds in asked) or (limit := most()) < 1:
            return []
        offers = [
            (self._policy.choose(kinds[:limit], each.seconds_per_token(single)), each, kinds)
            for each, kinds in asked
            if kinds
        ]
        best = max(offers, key=lambda offer: offer[0].rate, default=None)
        for offer in offers:
            if offer is not best or not offer[0].drafts:
                self._pass_over(*offer[1:])
        return self._draft(best[1], best[2][: best[0].drafts]) if best else []

    def _draft(self, drafter: Drafter, kinds: Sequence[Kind]) -> list[int]:
        if not kinds:
            return []
        guess = drafter.propose(len(kinds))
        self._seconds = drafter.seconds
        self._guesses.append((kinds, guess))
        return guess

    def _pass_over(self, drafter: Drafter, kinds: Sequence[Kind]) -> None:
        """A free guess need not be verified by a call: the next token shows whether it was right."""
        if drafter.free:
            self._guesses.append((kinds, drafter.propose(1)))
        else:
            self._policy.forget(kinds)

    def observe(self, tokens: Sequence[int], drafted: int, seconds: float) -> None:
        """A call of one row, and of `drafted` more, took `seconds` and gave the sequence these tokens."""
        self._policy.add(drafted, len(tokens), seconds, self._seconds)
        self.follow(tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """The sequence has got these tokens."""
        for kinds, guess in self._guesses:
            for kind, guessed, token in zip(kinds, guess, tokens, strict=False):
                self._policy.learn(kind, guessed == token)
                if guessed != token:
                    break
        for drafter in self._drafters:
            drafter.observe(tokens)
