"""A list of prompts that are all there at once, and all texts after them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

from airllm.engine.request import INTERRUPTED, Request, Statistics
from airllm.engine.scheduling.requests import CANCELLED, Event, SequenceRequest
from airllm.engine.scheduling.scheduler import Scheduler


class Batch:
    """Continues `prompts` by a scheduler that has nothing else to do."""

    def __init__(self, scheduler: Scheduler, prompts: Sequence[list[int]], request: Request):
        self._scheduler, self._on_prompt = scheduler, request.on_prompt
        self._lengths = [len(prompt) for prompt in prompts]
        self._done = [0] * len(prompts)  # tokens of prompts that are computed
        self._texts = [""] * len(prompts)
        self._last: dict[int, Event] = {}
        self._place: dict[int, int] = {}  # of each id
        for i, prompt in enumerate(prompts):
            wanted = request
            if request.on_prompt:
                wanted = dataclasses.replace(request, on_prompt=partial(self._report, i))
            self._place[scheduler.add(SequenceRequest(prompt, wanted))] = i

    def run(self) -> list[str]:
        """The text after each prompt. Raises the error of the first sequence that has one."""
        try:
            while not self._scheduler.is_idle:
                self._follow(self._scheduler.step())
        finally:
            self._cancel()
        return self._texts

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            place = self._place[event.id]
            self._texts[place] += event.text
            self._done[place] = self._lengths[place]
            self._last[place] = event
            if event.error:
                raise event.error

    def _cancel(self) -> None:
        """End what an error or an interrupt left."""
        if not self._scheduler.is_idle:
            for id in self._place:
                self._scheduler.cancel(id)
            self._last |= {self._place[event.id]: event for event in self._scheduler.step()}

    def _report(self, place: int, done: int, total: int) -> None:
        """Report the progress of all prompts together."""
        self._done[place] = done
        assert self._on_prompt
        self._on_prompt(sum(self._done), sum(self._lengths))

    @property
    def statistics(self) -> Statistics:
        """Counts and times of all sequences together. The time of all prompts counts as that to the first
        token, so that the rest is the time of decoding.
        """
        each = [self._last[place].statistics for place in sorted(self._last)]
        counters = self._scheduler.counters
        seconds = max((one.seconds for one in each), default=0.0)
        return Statistics(
            prompt_tokens=sum(one.prompt_tokens for one in each),
            cached_tokens=sum(one.cached_tokens for one in each),
            new_tokens=sum(one.new_tokens for one in each),
            seconds_to_first_token=min(counters.prompt_seconds, seconds),
            seconds=seconds,
            reasons=tuple(INTERRUPTED if one.reason == CANCELLED else one.reason for one in each),
        )
