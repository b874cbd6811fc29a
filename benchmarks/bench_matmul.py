"""Matrix products of a Llama layer, compared with NumPy's BLAS and PyTorch: rows x 4096 by 4096 x 4096.

    python benchmarks/bench_matmul.py [--rows 1,8,512] [--dtypes float32,...] [--width 4096]

NumPy's float16 and bfloat16 products are too slow to compare; for these dtypes its side converts to float32
and back.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import tensor_ops
from airllm.bench import measure, op_benchmark
from airllm.bench.report import duration, figures
from benchmarks import record

PASSES = 2
MATMUL = op_benchmark.OPS["matmul"]


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--rows", default="1,8,512", help="default: %(default)s")
    parser.add_argument(
        "--width", type=int, default=4096, help="of both sides of the weight (default: %(default)s)"
    )
    parser.add_argument("--dtypes", help="default: all")
    options = parser.parse_args()
    try:
        dtypes = op_benchmark.choose_names("dtype", options.dtypes, op_benchmark.DTYPES)
        sizes = op_benchmark.choose_sizes(
            ",".join(f"{rows}x{options.width}" for rows in options.rows.split(","))
        )
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_matmul.py: {error}\n")
    data = record.real_input()
    with measure.threads(options.threads) as threads, op_benchmark.silence_warnings():
        passes = [
            [
                measure_case(rows, cols, dtype, data, options.seconds)
                for dtype in dtypes
                for rows, cols in sizes
            ]
            for _ in range(PASSES)
        ]
    titles = [
        "product",
        "tensor_ops",
        "NumPy",
        "PyTorch",
        "GFLOP/s",
        "GB/s",
        "vs NumPy",
        "vs PyTorch",
        "verdict",
    ]
    table = record.markdown(titles, [row_of(case) for case in zip(*passes, strict=True)])
    about = f"{options.threads} threads, {data.source}. Medians of the second pass, ratios of both."
    record.write("matmul", about, table, {"threads": threads, "passes": passes}, options.output)


def measure_case(rows: int, width: int, dtype: str, data: Any, seconds: float) -> dict[str, Any]:
    print(f"matmul {rows}x{width}x{width} {dtype}", file=sys.stderr)
    a, b = data.inputs(MATMUL, rows, width, op_benchmark.DTYPES[dtype], np.random.default_rng(0))
    calls: dict[str, Callable[[], Any]] = {"tensor_ops": partial(tensor_ops.matmul, a, b)}
    calls["numpy"] = partial(MATMUL.define, a, b)
    if measure.optional("torch") and (peer := op_benchmark.torch_call("matmul", [a, b])):
        calls["torch"] = peer
    times = measure.compare(calls, seconds, pause=measure.AFTER_BLAS)
    case = {"rows": rows, "width": width, "dtype": dtype, "bytes": b.nbytes + 2 * a.nbytes}
    return case | {name: vars(timing) for name, timing in times.items()}


def row_of(case: tuple[dict[str, Any], ...]) -> list[str]:
    last = case[-1]
    mine = last["tensor_ops"]["median"]
    times = [
        duration(last[side]["median"]) if side in last else "-" for side in ("tensor_ops", "numpy", "torch")
    ]
    rates = [2 * last["rows"] * last["width"] ** 2 / mine / 1e9, last["bytes"] / mine / 1e9]
    ratios = [
        " / ".join(f"{figures(of(each, peer))}x" for each in case) if peer in last else "-"
        for peer in ("numpy", "torch")
    ]
    name = f"{last['dtype']} {last['rows']}x{last['width']}x{last['width']}"
    return [name, *times, *map(figures, rates), *ratios, verdict(case)]


def of(case: dict[str, Any], peer: str) -> float:
    """Speed relative to a peer."""
    return case[peer]["median"] / case["tensor_ops"]["median"]


def verdict(case: tuple[dict[str, Any], ...]) -> str:
    """The target and whether it is met. float32 has one: NumPy's speed with one row, 0.95 of it with more."""
    if case[-1]["dtype"] != "float32":
        return ""
    wanted = 1.0 if case[-1]["rows"] == 1 else 0.95
    met = all(of(each, "numpy") >= wanted for each in case)
    return f"{'met' if met else 'missed'} ({wanted:g}x NumPy)"


if __name__ == "__main__":
    main()
