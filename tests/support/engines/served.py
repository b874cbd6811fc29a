"""Sequences by themselves, and the same sequences served by a scheduler: every bit of their logits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from airllm.engine.request import Request
from airllm.engine.sampling import Sampler
from airllm.engine.scheduling.prefixes import BLOCK, Entry, PrefixCache
from airllm.engine.scheduling.requests import Event, Limits, SequenceRequest
from airllm.engine.scheduling.scheduler import Scheduler
from airllm.layer_engine import LayerWiseInferenceEngine

Chosen = tuple[int, bytes]  # a token, and the logits that it was chosen by


def alone(engine: LayerWiseInferenceEngine, tokens: list[int], request: Request) -> list[Chosen]:
    """What a sequence gets that nothing else is computed with: the prompt at once, then token by token."""
    cache, sampler, pending = engine.new_cache(), Sampler(request.sampling, tokens), tokens
    found: list[Chosen] = []
    while len(found) != request.max_new_tokens and cache.length < cache.capacity:
        (logits,) = engine.model.run([pending], [cache])
        found.append((sampler.next(logits), logits.tobytes()))
        pending = [found[-1][0]]
        if pending[0] in engine.tokenizer.stop_ids:
            break
    return found


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Served:
    """A scheduler, and all that it said of each sequence."""

    engine: LayerWiseInferenceEngine
    limits: Limits
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.chosen: dict[int, list[Chosen]] = defaultdict(list)
        self.events: dict[int, list[Event]] = defaultdict(list)
        self.asked: dict[int, SequenceRequest] = {}
        self.scheduler = Scheduler(self.engine._generator, self.limits, self.clock)
        take = self.scheduler._take

        def record(sequence, logits, now):
            kept, before = np.array(logits).tobytes(), len(sequence.text.tokens)
            take(sequence, logits, now)
            self.chosen[sequence.id] += [(token, kept) for token in sequence.text.tokens[before:]]

        self.scheduler._take = record  # type: ignore[method-assign]

    def add(self, tokens: list[int], request: Request, **options) -> int:
        asked = SequenceRequest(tokens, request, **options)
        id = self.scheduler.add(asked)
        self.asked[id] = asked
        return id

    def step(self) -> None:
        for event in self.scheduler.step():
            assert not self.reason(event.id), "an event after the last"
            self.events[event.id].append(event)
        self.check_memory()

    def run(self) -> None:
        """Until nothing is left to do."""
        while not self.scheduler.is_idle:
            self.step()

    def reason(self, id: int) -> str:
        """Why a sequence ended; "" if it runs."""
        return self.events[id][-1].reason if self.events[id] else ""

    def text(self, id: int) -> str:
        return "".join(event.text for event in self.events[id])

    def tokens(self, id: int) -> list[int]:
        return [token for event in self.events[id] for token in event.tokens]

    def check_memory(self) -> None:
        """What caches take is reserved, and no more than the limit."""
        scheduler, memory = self.scheduler, self.scheduler._caches.memory
        active = sum(each.cache.resident_bytes() for each in scheduler._active)
        idle = sum(entry.cache.resident_bytes() for entry in memory.prefixes._idle)
        assert active <= memory.reserved and idle == memory.prefixes.nbytes
        assert memory.nbytes <= memory.most
        assert memory.prefixes.nbytes <= memory.prefixes._most
        assert len(scheduler._active) <= self.limits.max_running
        entries = {*memory.prefixes._idle, *(each.entry for each in scheduler._active)}
        assert set(entries_of(memory.prefixes)) == {each for each in entries if each.length >= BLOCK}

    def check_text(self, id: int, expected: list[Chosen]) -> None:
        """The sequence has the tokens and the logits of `expected`; if it was cut off, the first of them."""
        found = self.chosen[id]
        assert self.tokens(id) == [token for token, _ in found]
        if self.reason(id) in ("end", "length", "context", "stop"):
            assert len(found) == len(expected), f"{id} ended with {self.reason(id)}"
        for i, (one, other) in enumerate(zip(found, expected, strict=False)):
            assert one == other, f"sequence {id}, prompt of {len(self.asked[id].tokens)}, token {i}"


def entries_of(prefixes: PrefixCache) -> Iterator[Entry]:
    """The entries that the trie has, in any node. No node is without one."""
    nodes = [child for root in prefixes._roots.values() for child in root.children.values()]
    while nodes:
        node = nodes.pop()
        assert node.entries
        yield from node.entries
        nodes += node.children.values()
