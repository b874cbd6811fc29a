"""How many tokens of a model a backend makes in a second, found in a fraction of one, by some layers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from statistics import median

import numpy as np

from airllm.engine.model import Model
from airllm.memory.kv_cache import Cache

ENOUGH = 0.25  # seconds: layers are begun so long, and the same ones timed then
MOST = 25  # times

clock = time.perf_counter


@dataclass(frozen=True)
class Speed:
    """Tokens a second, one after the other; with `at_most` fewer than that, with `why_not` none."""

    tokens_per_second: float
    at_most: bool = False
    why_not: str = ""

    def __str__(self) -> str:
        return self.why_not or f"{'under ' if self.at_most else ''}{rate(self.tokens_per_second)} tokens/s"


def rate(value: float) -> str:
    """A number of tokens a second, to two or three figures."""
    return f"{value:.{0 if value >= 100 else 1}f}" if value >= 1 else f"{value:.2g}"


def measure_speed(model: Model, cache_dtype: str, best: float = 0.0) -> Speed:
    """The speed at which `model` makes a token after a first one. Where its layers alone are slower than
    `best`, the output is not tried.

    Every layer goes through memory before it is timed, as it does from the second token on.
    """
    cache = Cache(model.config, 1, cache_dtype)
    tried, x = _run_layers(model, cache, ENOUGH)
    layers = _seconds(lambda: _run_layers(model, cache, most=tried)) / tried * model.config.layers
    if layers * best > 1:
        return Speed(1 / layers, at_most=True)
    model.logits(x)
    return Speed(1 / (layers + _seconds(lambda: model.logits(x))))


def _run_layers(
    model: Model, cache: Cache, seconds: float = math.inf, most: int | None = None
) -> tuple[int, np.ndarray]:
    """A token goes through layers, none of which begins after so many seconds; how many, and the result."""
    started, results = clock(), []
    with closing(model.layer_by_layer(0, cache)) as layers:
        for x in islice(layers, most):
            results.append(x)
            if clock() - started > seconds:
                break
    return len(results), results[-1]


def _seconds(call: Callable[[], object]) -> float:
    """Of a call: the median of as many as there is time for, which other programs may disturb."""
    taken: list[float] = []
    while not taken or (sum(taken) < ENOUGH and len(taken) < MOST):
        start = clock()
        call()
        taken.append(clock() - start)
    return median(taken)


def fastest(speeds: Mapping[str, Speed]) -> str:
    """The name of the one that makes the most tokens; of those that make as many, the first."""
    return max(speeds, key=lambda name: -1.0 if speeds[name].why_not else speeds[name].tokens_per_second)
