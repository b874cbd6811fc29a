"""Tokens per second of PersistentKernel beside the engine, and what of a token is spent outside the one call.

    python benchmarks/bench_step.py [--model smollm2] [--rounds 10]

Tokens one by one behind a prompt, three ways in turn: `PersistentKernel.step`, `engine.forward`, and the
layers as one call with embedding and output as ops. A clock on the one call of another kernel tells what is
outside it: Python, and the bookkeeping of the cache. Each figure is the median of the first half of the
rounds / of the second.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import PersistentKernel, measure
from airllm.backends import KernelBackend
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.models.hub import located
from airllm.models.model import Model
from benchmarks import record

AFTER, DECODED, CONTEXT = 16, 64, 512
OUTSIDE = 0.01  # of a token
ALIKE = 0.99  # of the engine's speed: rounds differ by more
TOKENS = np.random.default_rng(0).integers(0, 1000, AFTER + DECODED).tolist()

Round = dict[str, float]
Way = tuple[str, Callable[[int], Any], Callable[[], None]]  # its step, and how a sequence begins anew


class Clocked(KernelBackend):
    """The C++ backend with a clock on the call of a whole step."""

    seconds = 0.0

    def extension(self, name: str) -> Any:
        found = super().extension(name)
        return self._with_clock(found) if name == "decode_step" else found

    def _with_clock(self, call: Callable) -> Callable:
        def clocked(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            self.seconds += time.perf_counter() - start
            return result

        return clocked


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--model", default="smollm2", help="a path or a name (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    options = parser.parse_args()
    path = located(options.model)
    with measure.threads(options.threads):
        rounds = measured(path, options.rounds)
    about = (
        f"{path.name}, {options.threads} threads, {options.rounds} rounds of {DECODED} tokens behind {AFTER}."
    )
    ways = ["tokens per second", "PersistentKernel", "engine", "ops at the ends"]
    titles = [*ways, "of the engine's", "outside the call", "verdict"]
    table = record.markdown(titles, [row_of(path.name, rounds)])
    record.write("step", about, table, {"model": path.name, "rounds": rounds}, options.output)


def measured(path: Path, count: int) -> list[Round]:
    """Tokens per second of each way, and the share of a token outside the call; the first round does not
    count.
    """
    clock = Clocked("cpp")
    with (
        LayerWiseInferenceEngine(path, backend="cpp", context=CONTEXT) as engine,
        PersistentKernel(model=engine) as kernel,
        PersistentKernel(model=Model(path, clock), context=CONTEXT) as watched,
    ):
        cache, model = engine.new_cache(), engine.model

        def by_engine(token: int) -> None:
            engine.forward([token], cache)

        def by_ops(token: int) -> None:
            model.logits(model.forward([[token]], [cache])[0])

        ways: list[Way] = [("kernel", kernel.step, kernel.reset)]
        ways += [("engine", by_engine, lambda: cache.truncate(0)), ("ops", by_ops, lambda: cache.truncate(0))]
        rounds = []
        for i in range(count + 1):
            first = i % len(ways)
            rounds.append({way[0]: DECODED / seconds(*way[1:]) for way in ways[first:] + ways[:first]})
            rounds[-1]["ratio"] = rounds[-1]["kernel"] / rounds[-1]["engine"]
            rounds[-1]["outside"] = outside(watched, clock)
    return rounds[1:]


def seconds(step: Callable[[int], Any], reset: Callable[[], None]) -> float:
    """Of the tokens behind the first ones."""
    reset()
    for token in TOKENS[:AFTER]:
        step(token)
    start = time.perf_counter()
    for token in TOKENS[AFTER:]:
        step(token)
    return time.perf_counter() - start


def outside(kernel: PersistentKernel, clock: Clocked) -> float:
    """The share of the time that is not in the call."""
    kernel.reset()
    kernel.prefill(TOKENS[:AFTER])
    clock.seconds = 0.0
    start = time.perf_counter()
    for token in TOKENS[AFTER:]:
        kernel.step(token)
    return 1 - clock.seconds / (time.perf_counter() - start)


def row_of(name: str, rounds: list[Round]) -> list[str]:
    halves = rounds[: (len(rounds) + 1) // 2], rounds[len(rounds) // 2 :]
    medians = [{what: statistics.median(each[what] for each in half) for what in half[0]} for half in halves]
    rates = [" / ".join(f"{half[way]:.0f}" for half in medians) for way in ("kernel", "engine", "ops")]
    ratio = " / ".join(f"{half['ratio']:.3f}x" for half in medians)
    share = " / ".join(f"{half['outside']:.2%}" for half in medians)
    met = all(half["outside"] < OUTSIDE and half["ratio"] >= ALIKE for half in medians)
    wanted = f"{'met' if met else 'missed'} ({ALIKE}x, {OUTSIDE:.0%})"
    return [name, *rates, ratio, share, wanted]


if __name__ == "__main__":
    main()
