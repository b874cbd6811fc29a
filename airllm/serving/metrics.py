"""Counts and times for Prometheus. Labels are endpoints and reasons, never what a client sent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from airllm.engine.scheduling.requests import Load
from airllm.serving.engine_thread import EngineThread
from airllm.serving.pieces import Piece

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STEPS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.5, 1, 2, 5)
_ANSWERS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Everything that /metrics tells."""

    def __init__(self, thread: EngineThread):
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineLoad(thread))
        self.requests = Counter(
            "airllm_requests", "Answered requests.", ("endpoint", "status"), registry=registry
        )
        self.seconds = Histogram(
            "airllm_request_seconds",
            "From a request to the end of its answer.",
            ("endpoint",),
            buckets=_ANSWERS,
            registry=registry,
        )
        self._prompt = Counter("airllm_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._cached = Counter(
            "airllm_cached_prompt_tokens",
            "Tokens of prompts that were in the prefix cache.",
            registry=registry,
        )
        self._new = Counter("airllm_generated_tokens", "Tokens that were generated.", registry=registry)
        self._ended = Counter(
            "airllm_sequences", "Sequences that ended, by the reason.", ("reason",), registry=registry
        )
        self._first = Histogram(
            "airllm_first_token_seconds",
            "From a request's place in the queue to its first token.",
            buckets=_ANSWERS,
            registry=registry,
        )
        self._between = Histogram(
            "airllm_between_tokens_seconds",
            "Between the tokens of a sequence.",
            buckets=_STEPS,
            registry=registry,
        )

    def watch(self) -> Watch:
        """Observes the pieces of one request."""
        return Watch(self)

    def see_end(self, piece: Piece) -> None:
        done = piece.statistics
        self._prompt.inc(done.prompt_tokens)
        self._cached.inc(done.cached_tokens)
        self._new.inc(done.new_tokens)
        self._ended.labels(piece.reason).inc()

    def see_first(self, seconds: float) -> None:
        self._first.observe(seconds)

    def see_next(self, seconds: float, tokens: int) -> None:
        """So many tokens that came together, so long after those before them."""
        for _ in range(tokens):
            self._between.observe(seconds / tokens)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class Watch:
    """Takes the times between the pieces of one request."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._start = time.monotonic()
        self._last: dict[int, float] = {}

    def see(self, pieces: Iterable[Piece]) -> None:
        now = time.monotonic()
        for piece in pieces:
            if piece.tokens:
                last = self._last.get(piece.index)
                if last is None:
                    self._metrics.see_first(now - self._start)
                    self._metrics.see_next(0.0, len(piece.tokens) - 1)
                else:
                    self._metrics.see_next(now - last, len(piece.tokens))
                self._last[piece.index] = now
            if piece.reason:
                self._metrics.see_end(piece)


def load_numbers(load: Load) -> dict[str, float]:
    """The scheduler's own numbers, as of the last step. Those that end in `_total` only grow."""
    counters = load.counters
    return {
        "running_sequences": load.running,
        "waiting_sequences": load.waiting,
        "cache_bytes": load.cache_bytes,
        "prefix_cache_bytes": load.prefix_bytes,
        "cache_limit_bytes": load.most_cache_bytes,
        "prefix_hits_total": counters.prefix_hits,
        "preempted_sequences_total": counters.preempted,
        "prompt_passes_total": counters.prompt_passes,
        "decode_passes_total": counters.decode_passes,
        "prompt_seconds_total": counters.prompt_seconds,
        "decode_seconds_total": counters.decode_seconds,
    }


class _EngineLoad(Collector):
    """The numbers of a scheduler."""

    def __init__(self, thread: EngineThread):
        self._thread = thread

    def collect(self) -> Iterator[Metric]:
        for name, value in load_numbers(self._thread.load).items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            what = name.removesuffix("_total").replace("_", " ").capitalize()
            yield family(f"airllm_{name}", f"{what} of the scheduler.", value=value)
