"""One float32 row times matrices of many widths: speed relative to NumPy's BLAS.

    python benchmarks/bench_one_row.py [--op linear] [--depths 64,...] [--widths 1,...]

`matmul` has matrices (depth, width); `linear` has weights (width, depth), as in checkpoints. One process,
equal threads, both in turns; everything is measured twice. Matrices that fit in a cache are read from it.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import tensor_ops
from airllm.bench import measure, op_benchmark
from airllm.bench.report import duration, figures
from benchmarks import record

DEPTHS = "64,256,576,1536,4096,16384"
WIDTHS = "1,3,8,16,33,64,192,576,1024,1536,2047,4096,11008"
PASSES = 2
OPS = ("matmul", "linear")

Case = dict[str, Any]


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--op", choices=OPS, default="matmul")
    parser.add_argument("--depths", default=DEPTHS, help="elements of the row (default: %(default)s)")
    parser.add_argument("--widths", default=WIDTHS, help="those of the result (default: %(default)s)")
    options = parser.parse_args()
    try:
        shapes = [op_benchmark.choose_sizes(",".join(f"{k}x{n}" for n in options.widths.split(",")))
                  for k in options.depths.split(",")]  # fmt: skip
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_one_row.py: {error}\n")
    with measure.threads(options.threads) as threads, op_benchmark.silence_warnings():
        passes = [
            [[measure_case(options.op, *shape, options.seconds) for shape in row] for row in shapes]
            for _ in range(PASSES)
        ]
    rows = [row_of(cases) for cases in zip(*passes, strict=True)]
    table = record.markdown(["depth", *(f"{n} wide" for _, n in shapes[0])], rows)
    ratios = [[ratio(case) for case in row] for row in passes[-1]]
    slower = sum(each < 1 for row in ratios for each in row)
    about = (
        f"{options.threads} threads. Times NumPy's speed in both passes, and the time of a call. In the "
        f"second {slower} of {sum(map(len, ratios))} are below NumPy's (target: none), "
        f"the slowest {min(map(min, ratios)):.2f}x."
    )
    name = "one_row" if options.op == "matmul" else f"one_row_{options.op}"
    record.write(name, about, table, {"threads": threads, "passes": passes}, options.output)


def measure_case(op: str, k: int, n: int, seconds: float) -> Case:
    print(f"{op} 1x{k} by {k}x{n}", file=sys.stderr)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((1, k), np.float32)
    b = rng.standard_normal((k, n) if op == "matmul" else (n, k), np.float32)
    calls = {
        "tensor_ops": partial(getattr(tensor_ops, op), a, b),
        "numpy": partial(np.matmul, a, b if op == "matmul" else b.T),
    }
    times = measure.compare(calls, seconds, pause=measure.AFTER_BLAS)
    return {"k": k, "n": n} | {side: vars(t) for side, t in times.items()}


def ratio(case: Case) -> float:
    return case["numpy"]["median"] / case["tensor_ops"]["median"]


def row_of(cases: tuple[list[Case], ...]) -> list[str]:
    return [str(cases[0][0]["k"]), *(cell(both) for both in zip(*cases, strict=True))]


def cell(both: tuple[Case, ...]) -> str:
    ratios = " / ".join(f"{figures(ratio(case))}x" for case in both)
    return f"{ratios}, {duration(both[-1]['tensor_ops']['median'])}"


if __name__ == "__main__":
    main()
