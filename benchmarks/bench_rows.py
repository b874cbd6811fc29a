"""Products of quantized weights with one row of x and with more: fewer rows must not take longer than more.

    python benchmarks/bench_rows.py [--formats q4_k,...] [--shapes 4096x14336,...]
    AIRLLM_CPU_ISA=avx2 python benchmarks/bench_rows.py

One process, all row counts in turns, everything twice. The weights are in no cache: every call takes the next
of several copies. The last column is the maximum of t(m) / (t(i) + t(m - i)): above 1, m rows are slower in
one call than in two.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm.backends import open_backend
from airllm.bench import measure, op_benchmark
from airllm.bench.report import duration
from airllm.formats import FORMATS
from benchmarks import record
from benchmarks.bench_quantized import copies, in_turn, weight_of

PASSES = 2
ROWS = (1, 2, 3, 4, 8, 9, 16, 17)
SHAPES = "2048x8192,4096x14336"

Case = dict[str, Any]


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--formats", default=",".join(FORMATS), help="default: all")
    parser.add_argument("--shapes", default=SHAPES, help="k x n (default: %(default)s)")
    options = parser.parse_args()
    try:
        formats = op_benchmark.choose_names("format", options.formats, tuple(FORMATS))
        shapes = op_benchmark.choose_sizes(options.shapes)
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_rows.py: {error}\n")
    cpp = open_backend("cpp").module
    if not cpp:
        parser.exit(1, f"bench_rows.py: {open_backend('cpp').why_not}\n")
    cases = [(name, *shape) for shape in shapes for name in formats]
    with measure.threads(options.threads) as threads:
        passes = [[measure_case(cpp, *case, options.seconds) for case in cases] for _ in range(PASSES)]
    about = f"{options.threads} threads, {cpp.device()}. Medians of the second pass, ratios of both."
    table = record.markdown(
        ["weights", *(f"{m} rows" for m in ROWS), "of memory's speed, 1 row", "in two calls"],
        [row_of(both) for both in zip(*passes, strict=True)],
    )
    record.write("rows", about, table, {"threads": threads, "passes": passes}, options.output)


def measure_case(cpp: Any, name: str, k: int, n: int, seconds: float) -> Case:
    print(f"{name} {k}x{n}", file=sys.stderr)
    weights = copies(weight_of(name, n, k), 1)
    x = np.random.default_rng(0).standard_normal((max(ROWS), k), np.float32)
    out = np.empty((max(ROWS), n), np.float32)
    calls = {str(m): in_turn([partial(cpp.linear, x[:m], w, out=out[:m]) for w in weights]) for m in ROWS}
    probe = np.ones(measure.large_array_bytes() // 4, np.float32)
    times = measure.compare({**calls, "read": partial(cpp.read, probe)}, seconds)
    case: Case = {"format": name, "k": k, "n": n, "bytes": weights[0].nbytes, "read_bytes": probe.nbytes}
    return case | {rows: vars(timing) for rows, timing in times.items()}


def of_read(case: Case) -> float:
    """Share of the read bandwidth measured in the same seconds, for one row."""
    return case["bytes"] / case["1"]["median"] / (case["read_bytes"] / case["read"]["median"])


def in_two_calls(case: Case) -> float:
    """The maximum of t(m) relative to the time of the same rows in two calls."""
    time = {m: case[str(m)]["median"] for m in ROWS}
    return max(time[m] / (time[i] + time[m - i]) for m in ROWS for i in ROWS if m - i in time)


def row_of(both: tuple[Case, ...]) -> list[str]:
    last = both[-1]
    shares = (
        " / ".join(f"{of_read(case):.0%}" for case in both),
        " / ".join(f"{in_two_calls(case):.2f}" for case in both),
    )
    times = [duration(last[str(m)]["median"]) for m in ROWS]
    return [f"{last['format']} {last['k']}x{last['n']}", *times, *shares]


if __name__ == "__main__":
    main()
