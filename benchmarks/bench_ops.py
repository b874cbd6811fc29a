"""rms_norm, silu, gelu and softmax, compared with PyTorch, NumPy and the memory bandwidth.

    python benchmarks/bench_ops.py [--ops A,B] [--sizes 1x64,...] [--dtype float32]

One process, equal threads, libraries in turns, on a real model's values; everything is measured twice. `copy`
is tensor_ops_cpp's streaming copy of as many bytes, measured in turn too. Every library returns a new array
from each call; `out=` is the same call into an existing array.
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
from airllm.bench.activations import Data
from airllm.bench.report import duration, figures
from benchmarks import record

OPS = ("rms_norm", "silu", "gelu", "softmax")
SIZES = "1x64,1x576,1x4096,8x4096,32x4096,128x4096,512x4096,2048x4096,4096x4096,16384x4096"
NAMED = ((1, 4096), (128, 4096), (4096, 4096))  # the sizes with their own target
LARGE = 64 << 20  # bytes of output from which the memory bandwidth is the target
PASSES = 2


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--ops", help=f"default: {','.join(OPS)}")
    parser.add_argument("--sizes", default=SIZES, help="rows x columns (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=op_benchmark.DTYPES)
    options = parser.parse_args()
    try:
        ops = op_benchmark.choose_names("op", options.ops, OPS)
        sizes = op_benchmark.choose_sizes(options.sizes)
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_ops.py: {error}\n")
    data = record.real_input()
    with measure.threads(options.threads) as threads:
        bandwidth = measure.bandwidth()
        passes = [
            [
                measure_case(op, rows, cols, options.dtype, data, options.seconds)
                for op in ops
                for rows, cols in sizes
            ]
            for _ in range(PASSES)
        ]
    result = {"threads": threads, "bandwidth": vars(bandwidth), "input": data.source, "passes": passes}
    about = (
        f"{options.dtype}, {options.threads} threads, {data.source}. Copy {bandwidth.copy:.1f} GB/s, "
        f"read {bandwidth.read:.1f} GB/s. Medians of the second pass; ratios and shares of both."
    )
    name = "ops" if options.dtype == "float32" else f"ops_{options.dtype}"
    record.write(name, about, table_of(passes), result, options.output)


def measure_case(
    op_name: str, rows: int, cols: int, dtype: str, data: Data, seconds: float
) -> dict[str, Any]:
    """Seconds per call of each side for one op and size, and the figures derived from them."""
    op, call = op_benchmark.OPS[op_name], getattr(tensor_ops, op_name)
    print(f"{op_name} {rows}x{cols} {dtype}", file=sys.stderr)
    arrays = data.inputs(op, rows, cols, op_benchmark.DTYPES[dtype], np.random.default_rng(0))
    out = np.empty(op.out_shape(arrays), arrays[0].dtype)
    nbytes = op.nbytes(arrays, out)
    calls: dict[str, Callable[[], Any]] = {"tensor_ops": partial(call, *arrays)}
    calls["out"] = partial(call, *arrays, out=out)
    calls["numpy"] = partial(op.define, *arrays)
    if measure.optional("torch") and (peer := op_benchmark.torch_call(op_name, arrays)):
        calls["torch"] = peer
    if cpp := measure.optional("tensor_ops_cpp"):
        source, target = np.ones(nbytes // 8, np.float32), np.ones(nbytes // 8, np.float32)
        calls["copy"] = partial(cpp.copy, target, source)
    with op_benchmark.silence_warnings():
        times = measure.compare(calls, seconds)
    case = {"op": op_name, "rows": rows, "cols": cols, "bytes": nbytes, "out_bytes": out.nbytes}
    return case | {name: vars(timing) for name, timing in times.items()}


def table_of(passes: list[list[dict[str, Any]]]) -> str:
    titles = ["op, size", "tensor_ops", "out=", "NumPy", "PyTorch", "copy", "GB/s"]
    titles += ["of copy", "vs NumPy", "vs PyTorch", "target", "verdict"]
    return record.markdown(titles, [row_of(case) for case in zip(*passes, strict=True)])


def row_of(case: tuple[dict[str, Any], ...]) -> list[str]:
    last = case[-1]
    sides = ("tensor_ops", "out", "numpy", "torch", "copy")
    times = [duration(last[side]["median"]) if side in last else "-" for side in sides]
    rate = figures(last["bytes"] / last["tensor_ops"]["median"] / 1e9)
    shares = " / ".join(f"{100 * of(each, 'copy'):.0f} %" for each in case) if "copy" in last else "-"
    ratios = [
        " / ".join(f"{figures(of(each, peer))}x" for each in case) if peer in last else "-"
        for peer in ("numpy", "torch")
    ]
    return [f"{last['op']} {last['rows']}x{last['cols']}", *times, rate, shares, *ratios, *verdict(case)]


def of(case: dict[str, Any], peer: str) -> float:
    """Speed relative to a peer."""
    return case[peer]["median"] / case["tensor_ops"]["median"]


def verdict(case: tuple[dict[str, Any], ...]) -> list[str]:
    """The target, and whether both passes reach it."""
    last = case[-1]
    wanted = 1.0
    if (last["rows"], last["cols"]) in NAMED:
        wanted = 2.0 if last["op"] == "rms_norm" else 1.5
    met = all(of(each, "torch") >= wanted for each in case) if "torch" in last else None
    target = f"{wanted:g}x PyTorch"
    if last["out_bytes"] >= LARGE and "copy" in last:
        target += ", 80 % of copy"
        met = met is not False and all(of(each, "copy") >= 0.8 for each in case)
    return [target, "no peer" if met is None else "met" if met else "missed"]


if __name__ == "__main__":
    main()
