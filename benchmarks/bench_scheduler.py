"""A scheduler's tokens per second by number of sequences, the time to first tokens, how long answers wait.

    python benchmarks/bench_scheduler.py [--model smollm2] [--rounds 3] [--tokens 64]

Without HTTP. "Outside the model" is the share of a decode step that is not the model's pass: scheduling,
sampling, text. The first token is that of a prompt of 1000 tokens: computed, and then with all but its last
tokens known. The waits are those of 8 running answers while a prompt of 3900 tokens is computed. All figures
are medians of the rounds, but the longest wait, which is the longest of all.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airllm.bench import measure
from airllm.engine.request import request
from airllm.engine.scheduling.requests import SequenceRequest
from airllm.engine.scheduling.scheduler import Scheduler
from airllm.files.hub import locate
from airllm.layer_engine import LayerWiseInferenceEngine
from benchmarks import record

SEQUENCES = (1, 2, 4, 8, 16)
PROMPT, PREFIX, LONG, NEW = 40, 1000, 3900, (0, 1, 10, 20, 50)


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--model", default="smollm2", help="a path or a name (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=64, help="of each sequence (default: %(default)s)")
    options = parser.parse_args()
    path = locate(options.model)
    with (
        measure.threads(options.threads),
        LayerWiseInferenceEngine(path, backend="cpp", context=4096, speculative=False) as engine,
    ):
        rounds = [measure_round(engine, options.tokens) for _ in range(options.rounds)]
    names = list(rounds[0])
    found = {name: statistics.median(each[name] for each in rounds) for name in names}
    found["longest wait, ms"] = max(each["longest wait, ms"] for each in rounds)
    about = f"{path.name}, {options.threads} threads, {options.rounds} rounds."
    table = record.markdown(["what", "figure"], [[name, f"{value:.1f}"] for name, value in found.items()])
    record.write("scheduler", about, table, {"model": path.name, "rounds": rounds}, options.output)


def measure_round(engine: LayerWiseInferenceEngine, tokens: int) -> dict[str, float]:
    vocabulary = len(engine.tokenizer)
    text = np.random.default_rng(0).integers(vocabulary // 100, vocabulary // 2, 8192).tolist()
    ends = dict.fromkeys(engine.tokenizer.stop_ids, -100.0)  # random texts shall not end by chance
    found: dict[str, float] = {}
    for count in SEQUENCES:
        found |= measure_decoding(engine, text, count, tokens, ends)
    return found | measure_first_tokens(engine, text) | measure_waits(engine, text, ends)


def ask(text: list[int], start: int, count: int, tokens: int, **options: Any) -> SequenceRequest:
    return SequenceRequest(text[start : start + count], request(tokens, **options))


def start_answers(
    engine: LayerWiseInferenceEngine, text: list[int], count: int, tokens: int, ends: dict[int, float]
) -> Scheduler:
    """A scheduler with that many sequences, whose prompts are computed."""
    scheduler = engine.scheduler()
    started: set[int] = set()
    for i in range(count):
        scheduler.add(ask(text, i * PROMPT, PROMPT, tokens, logit_bias=ends))
    while len(started) < count:
        started |= {event.id for event in scheduler.step()}
    return scheduler


def measure_decoding(
    engine: LayerWiseInferenceEngine, text: list[int], count: int, tokens: int, ends: dict[int, float]
) -> dict[str, float]:
    scheduler = start_answers(engine, text, count, tokens + count, ends)
    counters = scheduler.counters
    before, passes = counters.new_tokens, counters.decode_seconds
    start = time.perf_counter()
    for _ in range(tokens // 2):
        scheduler.step()
    seconds = time.perf_counter() - start
    outside = 1 - (counters.decode_seconds - passes) / seconds
    return {
        f"{count} sequences, tokens/s": (counters.new_tokens - before) / seconds,
        f"{count} sequences, % outside the model": 100 * outside,
    }


def measure_first_tokens(engine: LayerWiseInferenceEngine, text: list[int]) -> dict[str, float]:
    scheduler = engine.scheduler()
    found = {f"{PREFIX} tokens to the first, ms": first_token(scheduler, text[:PREFIX])}
    for new in NEW:
        prompt = text[:PREFIX] + text[2000 + 100 * new :][:new]
        found[f"{PREFIX} known tokens and {new}, ms"] = first_token(scheduler, prompt)
    return found


def first_token(scheduler: Scheduler, tokens: list[int]) -> float:
    start = time.perf_counter()
    scheduler.add(SequenceRequest(tokens, request(1)))
    while not any(event.tokens for event in scheduler.step()):
        pass
    return 1e3 * (time.perf_counter() - start)


def measure_waits(
    engine: LayerWiseInferenceEngine, text: list[int], ends: dict[int, float]
) -> dict[str, float]:
    scheduler = start_answers(engine, text, 8, 1000, ends)
    last = scheduler.add(ask(text, 4000, LONG, 1))
    waits, done = [], False
    while not done:
        start = time.perf_counter()
        done = any(event.id == last for event in scheduler.step())
        waits.append(1e3 * (time.perf_counter() - start))
    return {"median wait, ms": statistics.median(waits), "longest wait, ms": max(waits)}


if __name__ == "__main__":
    main()
