"""Measures how many tokens a second a backend generates, in a fraction of a second, on some of the layers; or
how many of a text an encoder takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from statistics import median

import numpy as np

from airllm.engine.encoder import Encoder
from airllm.engine.model import Model
from airllm.memory.kv_cache import Cache

ENOUGH = 0.25  # seconds in which layers are started; those are then timed, repeatedly, for as long
MOST = 25  # repetitions
TEXT = 64  # tokens of a text that an encoder is timed with

clock = time.perf_counter


@dataclass(frozen=True)
class Speed:
    """Tokens a second, one after the other, or of an encoder those of a text. `at_most`: it is slower than
    that. `why_not`: it does not run. `how`: what it was predicted from; "" if it was measured.
    """

    tokens_per_second: float
    at_most: bool = False
    why_not: str = ""
    how: str = ""

    def __str__(self) -> str:
        found = f"{'under ' if self.at_most else ''}{rate(self.tokens_per_second)} tokens/s"
        return self.why_not or found + (f" predicted: {self.how}" if self.how else "")


def rate(value: float) -> str:
    """Tokens a second, to two or three figures."""
    return f"{value:.{0 if value >= 100 else 1}f}" if value >= 1 else f"{value:.2g}"


def measure_speed(model: Model, cache_dtype: str, best: float = 0.0) -> Speed:
    """The speed of `model` after the first token. If its layers alone are slower than `best`, the output is
    not timed.

    Every layer runs once before it is timed, so that its weights are in memory as from the second token on.
    """
    cache = Cache(model.config, 1, cache_dtype)
    tried, x = _run_layers(model, cache, ENOUGH)
    layers = _seconds(lambda: _run_layers(model, cache, most=tried)) / tried * model.config.layers
    if layers * best > 1:
        return Speed(1 / layers, at_most=True)
    model.logits(x)
    return Speed(1 / (layers + _seconds(lambda: model.logits(x))))


def measure_encoder(model: Model) -> Speed:
    """The speed of an encoder with a text, after the first one."""
    tokens = [0] * min(TEXT, model.residency.context)
    encoder = Encoder(model)

    def run() -> None:
        for _, _, states in encoder.passes([tokens]):
            np.asarray(states)  # waits for a device

    run()
    return Speed(len(tokens) / _seconds(run))


def _run_layers(
    model: Model, cache: Cache, seconds: float = math.inf, most: int | None = None
) -> tuple[int, np.ndarray]:
    """Run a token through layers and start none after `seconds`. Returns how many ran, and the result."""
    started, results = clock(), []
    with closing(model.layer_by_layer(0, cache)) as layers:
        for x in islice(layers, most):
            results.append(x)
            if clock() - started > seconds:
                break
    np.asarray(results[-1])  # waits for a device
    return len(results), results[-1]


def _seconds(call: Callable[[], object]) -> float:
    """Median seconds of a call, over as many calls as there is time for, since other programs may disturb."""
    taken: list[float] = []
    while not taken or (sum(taken) < ENOUGH and len(taken) < MOST):
        start = clock()
        call()
        taken.append(clock() - start)
    return median(taken)


def fastest(speeds: Mapping[str, Speed]) -> str:
    """The name of the fastest; the first of several that are equal."""
    return max(speeds, key=lambda name: -1.0 if speeds[name].why_not else speeds[name].tokens_per_second)
