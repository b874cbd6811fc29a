"""Stored weights as float32, in every format, against gguf's NumPy code.

python benchmarks/bench_dequantize.py [--formats q8_0,q4_0]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from airllm.backends import open_backend
from airllm.bench import measure, op_benchmark
from airllm.bench.report import duration, figures
from airllm.formats import FORMATS, Quantized
from benchmarks import record
from benchmarks.bench_products import weight_of

PASSES = 2
SIZE = 2048
TARGET = 10  # times gguf's speed

Case = dict[str, Any]


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--formats", default=",".join(FORMATS), help="default: all")
    options = parser.parse_args()
    try:
        formats = op_benchmark.choose_names("format", options.formats, tuple(FORMATS))
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_dequantize.py: {error}\n")
    cpp = open_backend("cpp").module
    if not cpp:
        parser.exit(1, f"bench_dequantize.py: {open_backend('cpp').why_not}\n")
    with measure.threads(options.threads) as threads:
        passes = [[measure_case(name, cpp, options.seconds) for name in formats] for _ in range(PASSES)]
    about = f"{options.threads} threads, {SIZE}x{SIZE}. Times of the second pass, ratios of both."
    titles = ["format", "ours", "gguf", "GB/s", "vs gguf", "verdict"]
    table = record.markdown(titles, [row_of(both) for both in zip(*passes, strict=True)])
    record.write("dequantize", about, table, {"threads": threads, "passes": passes}, options.output)


def measure_case(name: str, cpp: Any, seconds: float) -> Case:
    weight = weight_of(name, SIZE, SIZE)
    assert isinstance(weight, Quantized)
    out = np.empty(weight.shape, np.float32)
    calls = {
        "ours": partial(cpp.dequantize, weight, out=out),
        "gguf": partial(dequantize, weight.data, GGMLQuantizationType(FORMATS[name].ggml_type)),
    }
    times = measure.compare(calls, seconds)
    return {"format": name, "bytes": out.nbytes} | {side: vars(timing) for side, timing in times.items()}


def row_of(both: tuple[Case, ...]) -> list[str]:
    last = both[-1]
    mine, theirs = last["ours"]["median"], last["gguf"]["median"]
    ratios = [case["gguf"]["median"] / case["ours"]["median"] for case in both]
    verdict = f"{'met' if min(ratios) >= TARGET else 'missed'} ({TARGET}x)"
    rate = figures(last["bytes"] / mine / 1e9)
    text = " / ".join(f"{figures(ratio)}x" for ratio in ratios)
    return [last["format"], duration(mine), duration(theirs), rate, text, verdict]


if __name__ == "__main__":
    main()
