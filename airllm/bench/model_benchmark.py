"""Time a model on each backend for the report: prompt, answer, start and memory.

Each round of each backend runs in a new process, in turns. That includes the start, which a user waits for,
and the memory and threads of one backend do not disturb another. A few layers (`airllm.engine.speed`) give an
estimate for each backend; one that is far slower than the fastest is not timed.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from airllm.bench.measure import Budget, Timing
from airllm.engine.speed import measure_speed as speed_of
from airllm.engine.speed import rate
from airllm.progress import Told

BEGIN, PROMPT, ANSWER = 16, 512, 64  # tokens: before the first, of the prompt, of the answer
SLOW = 20.0  # tokens per second: a slower backend gets a shorter prompt and answer
SHORT_PROMPT, SECONDS, LEAST = 64, 4.0, 2
TIMES = 20  # a backend this many times slower than the fastest is not timed
LIMIT = 120.0  # seconds per process
ROUNDS = 5
FIGURES = ("answer", "prompt", "first_token", "memory")  # tokens per second, twice; seconds; bytes

Row = dict[str, Any]


def measure_model(
    path: Path,
    names: Sequence[str],
    threads: int,
    on_progress: Told,
    rounds: int = ROUNDS,
    within: float = math.inf,
) -> list[Row]:
    """A row for each backend, fastest first: FIGURES with their quartiles, or "why_not".

    After `within` seconds, no further backend is tried and no further round begins. The first of `names`
    always gets its figures.
    """
    budget = Budget(within)
    rows: list[Row] = []
    for name in names:
        on_progress(0, 0, f"trying the model on {name}")
        found = (
            _ask_process(path, name, threads) if not rows or budget.left() else {"why_not": "the time was up"}
        )
        rows.append({"backend": name, "rounds": 0} | found)
    best = max((row.get("estimate", 0.0) for row in rows), default=0.0)
    for row in rows:
        if not row.get("why_not") and row["estimate"] * TIMES < best:
            row["why_not"] = f"far slower: about {rate(row['estimate'])} tokens/s, by its first layers"
    taken: dict[str, list[Row]] = {row["backend"]: [] for row in rows if not row.get("why_not")}
    for turn in range(rounds):
        for row in rows:
            if not row.get("why_not") and (not turn or budget.left()):
                on_progress(turn, rounds, f"the model on {row['backend']}")
                found = _ask_process(path, row["backend"], threads, *lengths(row["estimate"]))
                row |= {"why_not": found["why_not"]} if "why_not" in found else {}
                taken[row["backend"]].append(found)
    on_progress(rounds, rounds, "")
    return sorted((_combine_rounds(row, taken.get(row["backend"], [])) for row in rows), key=_slowness)


def lengths(estimate: float) -> tuple[int, int]:
    """Tokens of the prompt and of the answer for a backend with this estimate of tokens per second."""
    if estimate >= SLOW:
        return PROMPT, ANSWER
    return SHORT_PROMPT, min(ANSWER, max(LEAST, round(estimate * SECONDS)))


def _slowness(row: Row) -> float:
    return -row["answer"]["median"] if "answer" in row else 0.0


def _combine_rounds(row: Row, rounds: list[Row]) -> Row:
    if row.get("why_not") or not rounds:
        return row
    for figure in FIGURES:
        if values := [each[figure] for each in rounds if each[figure]]:
            timing = Timing.of(values)
            row[figure] = {"median": timing.median, "low": timing.low, "high": timing.high}
    return row | {"rounds": len(rounds), **{key: rounds[0][key] for key in ("prompt_tokens", "new_tokens")}}


def _ask_process(path: Path, name: str, threads: int, *tokens: int) -> Row:
    """Run a round in a new process and return its result, or "why_not"."""
    limits = dict.fromkeys(("AIRLLM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    call = [sys.executable, "-m", "airllm.bench.model_benchmark", str(path), name, str(time.monotonic())]
    try:
        done = subprocess.run(
            [*call, *map(str, tokens)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
            env={**os.environ, **limits},
        )
    except subprocess.TimeoutExpired:
        return {"why_not": f"took more than {LIMIT:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
        return {"why_not": lines[-1]}
    return json.loads(done.stdout.splitlines()[-1])


# ---- the process ----


def main(arguments: list[str]) -> None:
    """PATH BACKEND BEGUN [PROMPT ANSWER]: print the figures, or an estimate of the speed, as JSON."""
    path, name, started, *tokens = arguments
    from airllm.engine.engine import LayerWiseInferenceEngine

    with LayerWiseInferenceEngine(path, backend=name) as engine:
        found = _run(engine, float(started), *map(int, tokens)) if tokens else _estimate(engine)
    print(json.dumps(found))


def _estimate(engine: Any) -> Row:
    return {"estimate": speed_of(engine.model, engine.cache_dtype).tokens_per_second}


def _run(engine: Any, started: float, prompt: int, answer: int) -> Row:
    ids = np.random.default_rng(0).integers(0, engine.config.vocabulary, prompt + 1).tolist()
    cache = engine.new_cache()
    token = int(engine.forward(ids[:BEGIN], cache).argmax())
    first = time.monotonic() - started
    token = int(engine.forward([token], cache).argmax())  # the first step warms up the next ones
    start = time.perf_counter()
    for _ in range(answer):
        token = int(engine.forward([token], cache).argmax())
    answered = time.perf_counter() - start
    start = time.perf_counter()
    engine.forward(ids[1:], engine.new_cache())
    read = time.perf_counter() - start
    return {
        "answer": answer / answered,
        "prompt": prompt / read,
        "first_token": first,
        "memory": _peak_bytes(),
        "prompt_tokens": prompt,
        "new_tokens": answer,
    }


def _peak_bytes() -> int:
    """Peak memory of this process; 0 if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main(sys.argv[1:])
