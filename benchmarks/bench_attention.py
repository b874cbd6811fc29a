"""Attention compared with PyTorch's scaled_dot_product_attention: prefill, and one token after long contexts.

    python benchmarks/bench_attention.py [--cases prefill,2048] [--models 9:3:64,32:8:128] [--dtypes float32]

One process, equal threads, libraries in turns; everything is measured twice. With grouped heads, PyTorch runs
with enable_gqa=True and, separately, with keys and values repeated for every head beforehand; the faster one
is the peer. A share is relative to this machine's limit. If keys and values are read once, the limit is
tensor_ops_cpp's memory read rate (above 100 %, they came from a cache); if arithmetic is the limit, it is the
rate of a large float32 product in NumPy. Causal attention counts only the half of the scores that is needed.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import tensor_ops
from airllm.bench import measure, op_benchmark, torch_peer
from airllm.bench.report import duration, figures
from benchmarks import record

CASES = {"prefill": (512, 512), "2048": (1, 2048), "8192": (1, 8192)}  # queries and keys
MODELS = ("9:3:64", "32:8:128")  # query heads, key-value heads, length of a head: SmolLM2-135M and Llama-3-8B
TARGET = 1.5
PASSES = 2
PEERS = ("gqa", "repeated")


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--cases", help=f"default: {','.join(CASES)}")
    parser.add_argument("--models", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--dtypes", help="default: all")
    options = parser.parse_args()
    try:
        cases = op_benchmark.choose_names("case", options.cases, CASES)
        models = op_benchmark.choose_names("model", options.models, MODELS)
        dtypes = op_benchmark.choose_names("dtype", options.dtypes, op_benchmark.DTYPES)
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_attention.py: {error}\n")
    with measure.threads(options.threads) as threads, op_benchmark.silence_warnings():
        read, peak = measure.bandwidth().read, product_rate(options.seconds)
        passes = [
            [
                measure_case(model, case, dtype, options.seconds)
                for dtype in dtypes
                for model in models
                for case in cases
            ]
            for _ in range(PASSES)
        ]
    titles = ["attention", "tensor_ops", "PyTorch, grouped", "PyTorch, repeated", "GFLOP/s", "GB/s", "share"]
    rows = [row_of(each, read, peak) for each in zip(*passes, strict=True)]
    table = record.markdown([*titles, "vs PyTorch", "verdict"], rows)
    about = (
        f"{options.threads} threads, random input. Memory is read at {read:.1f} GB/s, NumPy's product of "
        f"2048 rows runs at {peak:.0f} GFLOP/s. Medians of the second pass, ratios of both."
    )
    result = {"threads": threads, "read": read, "product": peak, "passes": passes}
    record.write("attention", about, table, result, options.output)


def product_rate(seconds: float) -> float:
    """GFLOP/s of a product limited by arithmetic."""
    a = np.ones((2048, 2048), np.float32)
    return 2 * 2048**3 / measure.compare({"product": lambda: a @ a}, seconds)["product"].median / 1e9


def measure_case(model: str, case: str, dtype: str, seconds: float) -> dict[str, Any]:
    """Seconds per call of each side."""
    print(f"attention {dtype} {model} {case}", file=sys.stderr)
    h, g, d = map(int, model.split(":"))
    t, s = CASES[case]
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal(shape, np.float32).astype(op_benchmark.DTYPES[dtype])
        for shape in ((1, h, t, d), (1, g, s, d), (1, g, s, d))
    )
    causal = t > 1
    calls: dict[str, Callable[[], Any]] = {
        "tensor_ops": partial(tensor_ops.attention, q, k, v, causal=causal)
    }
    if measure.optional("torch"):
        calls |= torch_calls(q, k, v, causal)
    times = measure.compare(calls, seconds)
    scores = h * t * (s / 2 if causal else s)
    about = {"model": model, "case": case, "dtype": dtype, "flop": 4 * scores * d, "bytes": 2 * k.nbytes}
    return about | {name: vars(timing) for name, timing in times.items()}


def torch_calls(q: Any, k: Any, v: Any, causal: bool) -> dict[str, Callable[[], Any]]:
    from torch.nn.functional import scaled_dot_product_attention as attend

    times = q.shape[1] // k.shape[1]
    q, k, v = (torch_peer.as_torch(a) for a in (q, k, v))
    all_k, all_v = (a.repeat_interleave(times, 1) for a in (k, v))
    return {
        "gqa": lambda: attend(q, k, v, is_causal=causal, enable_gqa=True),
        "repeated": lambda: attend(q, all_k, all_v, is_causal=causal),
    }


def row_of(case: tuple[dict[str, Any], ...], read: float, peak: float) -> list[str]:
    last = case[-1]
    mine = last["tensor_ops"]["median"]
    times = [duration(last[side]["median"]) if side in last else "-" for side in ("tensor_ops", *PEERS)]
    rates = last["flop"] / mine / 1e9, last["bytes"] / mine / 1e9
    share = f"{100 * rates[0] / peak:.0f} % of product"
    if last["case"] != "prefill":
        share = f"{100 * rates[1] / read:.0f} % of read"
    ratios = " / ".join(f"{figures(ratio(each))}x" for each in case) if "gqa" in last else "-"
    h, g, d = last["model"].split(":")
    name = f"{last['dtype']} {h} heads over {g}, d {d}, {last['case']}"
    return [name, *times, *map(figures, rates), share, ratios, verdict(case)]


def ratio(case: dict[str, Any]) -> float:
    """Speed relative to the faster peer."""
    return min(case[peer]["median"] for peer in PEERS) / case["tensor_ops"]["median"]


def verdict(case: tuple[dict[str, Any], ...]) -> str:
    if "gqa" not in case[-1]:
        return "no peer"
    return f"{'met' if all(ratio(each) >= TARGET for each in case) else 'missed'} ({TARGET:g}x)"


if __name__ == "__main__":
    main()
