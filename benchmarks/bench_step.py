"""Tokens per second of PersistentKernel and of the engine, and the share of a token outside the native call.

    python benchmarks/bench_step.py [--model smollm2] [--rounds 10]

Three methods decode the same tokens after a prompt, each token by all of them in turn: `engine.forward`,
`PersistentKernel.step`, and the layers as one call with embedding and output as ops. A fourth is a kernel
with a clock on its native call. It shows the time outside the call: Python, and the bookkeeping of the cache.
Each figure is the median of the first half of the rounds / of the second.
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

from airllm import PersistentKernel
from airllm.backends import KernelBackend
from airllm.bench import measure
from airllm.engine.model import Model
from airllm.files.hub import locate
from airllm.layer_engine import LayerWiseInferenceEngine
from benchmarks import record

AFTER, DECODED, CONTEXT = 16, 64, 512
OUTSIDE = 0.01  # share of a token, at most
ALIKE = 0.99  # of the engine's speed, at least: rounds differ by more
TOKENS = np.random.default_rng(0).integers(0, 1000, AFTER + DECODED).tolist()

Round = dict[str, float]
Way = tuple[Callable[[int], Any], Callable[[], None]]  # a step, and a function that starts a new sequence


class Clocked(KernelBackend):
    """The C++ backend with a clock on the call of a whole step."""

    seconds = 0.0

    def extension(self, name: str) -> Any:
        found = super().extension(name)
        return self._with_clock(found) if name == "decode_step" else found

    def _with_clock(self, call: Callable) -> Callable:
        def time_call(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            self.seconds += time.perf_counter() - start
            return result

        return time_call


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--model", default="smollm2", help="a path or a name (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    options = parser.parse_args()
    path = locate(options.model)
    with measure.threads(options.threads):
        rounds = measure_case(path, options.rounds)
    about = (
        f"{path.name}, {options.threads} threads, {options.rounds} rounds of {DECODED} tokens behind {AFTER}."
    )
    ways = ["tokens per second", "PersistentKernel", "engine", "ops at the ends"]
    titles = [*ways, "of the engine's", "outside the call", "verdict"]
    table = record.markdown(titles, [row_of(path.name, rounds)])
    record.write("step", about, table, {"model": path.name, "rounds": rounds}, options.output)


def measure_case(path: Path, count: int) -> list[Round]:
    """`figures_of` each round; the first one does not count."""
    clock = Clocked("cpp")
    with (
        LayerWiseInferenceEngine(path, backend="cpp", context=CONTEXT) as engine,
        PersistentKernel(model=engine) as kernel,
        PersistentKernel(model=Model(path, clock), context=CONTEXT) as watched,
    ):
        cache, other, model = engine.new_cache(), engine.new_cache(), engine.model

        def by_engine(token: int) -> None:
            engine.forward([token], cache)

        def by_ops(token: int) -> None:
            model.logits(model.forward([[token]], [other])[0])

        ways: dict[str, Way] = {
            "kernel": (kernel.step, kernel.reset),
            "engine": (by_engine, lambda: cache.truncate(0)),
            "ops": (by_ops, lambda: other.truncate(0)),
            "watched": (watched.step, watched.reset),
        }
        return [figures_of(round_of(ways, clock)) for _ in range(count + 1)][1:]


def round_of(ways: dict[str, Way], clock: Clocked) -> Round:
    """Seconds of each method for all tokens after the first ones, and of the clocked call."""
    for step, reset in ways.values():
        reset()
        for token in TOKENS[:AFTER]:
            step(token)
    clock.seconds = 0.0
    seconds = dict.fromkeys(ways, 0.0)
    order = list(ways)
    for token in TOKENS[AFTER:]:
        for name in order:
            step, _ = ways[name]
            start = time.perf_counter()
            step(token)
            seconds[name] += time.perf_counter() - start
        order.append(order.pop(0))
    return seconds | {"call": clock.seconds}


def figures_of(seconds: Round) -> Round:
    """Tokens per second of each method, the kernel's ratio to the engine, and the share outside the call."""
    rates = {name: DECODED / taken for name, taken in seconds.items()}
    ratio, outside = rates["kernel"] / rates["engine"], 1 - seconds["call"] / seconds["watched"]
    return rates | {"ratio": ratio, "outside": outside}


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
