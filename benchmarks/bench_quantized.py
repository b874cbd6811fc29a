"""Products with quantized weights, compared with llama.cpp's ggml and the memory bandwidth.

    python benchmarks/bench_quantized.py [--cases decode,prefill,dequantize] [--formats q8_0,q4_0]

Decode is one row of x times weights that are in no cache: every call takes the next of several copies. The
probe `tensor_ops_cpp.read` runs in turn with them, since the bandwidth of a shared machine changes within
seconds. It reads one stream per thread while the products read four, so their share of it can exceed 100 %.
ggml is built from source on first use (`python -m benchmarks.ggml_peer`) and has two columns: with the
weights as stored, and with its repacked weights if it has a repacked format.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm.backends import open_backend
from airllm.bench import measure, op_benchmark
from airllm.bench.report import duration, figures
from airllm.formats import FORMATS, Quantized
from benchmarks import ggml_peer, record

PASSES = 2
DECODE = ((4096, 4096), (4096, 14336), (576, 49152), (576, 1536), (1536, 576))  # k, n
SMALL = ((576, 1536), (1536, 576))
PREFILL = ("q4_0", "q8_0", "q4_k", "f16")
PREFILL_TARGET = {"q4_0": 1.2, "q8_0": 1.4, "q4_k": 1.05, "f16": 1.0}

Case = dict[str, Any]


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--cases", default="decode,prefill,dequantize", help="default: %(default)s")
    parser.add_argument("--formats", help="of decode and dequantize (default: q8_0,q4_0 and all)")
    options = parser.parse_args()
    try:
        cases = op_benchmark.choose_names("case", options.cases, ("decode", "prefill", "dequantize"))
        formats = (
            op_benchmark.choose_names("format", options.formats, ggml_peer.TYPES) if options.formats else None
        )
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_quantized.py: {error}\n")
    cpp = open_backend("cpp").module
    if not cpp:
        parser.exit(1, f"bench_quantized.py: {open_backend('cpp').why_not}\n")
    peer, why_not = peer_or_reason()
    with measure.threads(options.threads) as threads:
        passes = [
            [case for name in cases for case in measure_case(name, formats, cpp, peer, options)]
            for _ in range(PASSES)
        ]
    about = f"{options.threads} threads. Medians of the second pass, ratios of both."
    about += f" No ggml: {why_not}" if why_not else f" ggml of llama-cpp-python {ggml_peer.VERSION}."
    titles = ["case", "ours", "ggml", "ggml repacked", "GB/s", "GFLOP/s", "of read", "vs ggml", "verdict"]
    table = record.markdown(titles, [row_of(case) for case in zip(*passes, strict=True)])
    name = "_".join(["quantized", *cases])
    record.write(name, about, table, {"threads": threads, "passes": passes}, options.output)


def peer_or_reason() -> tuple[ggml_peer.Peer | None, str]:
    try:
        return ggml_peer.Peer(), ""
    except (ggml_peer.NoPeer, OSError) as error:
        print(f"NOT COMPARED WITH ggml: {error}", file=sys.stderr)
        return None, str(error)


def measure_case(name: str, formats: list[str] | None, cpp: Any, peer: Any, options: Any) -> list[Case]:
    print(name, file=sys.stderr)
    if name == "dequantize":
        return [dequantize(f, cpp, options) for f in formats or FORMATS if f in FORMATS]
    if name == "prefill":
        return [product(f, 512, 4096, 4096, cpp, peer, options) for f in formats or PREFILL]
    return [product(f, 1, k, n, cpp, peer, options) for k, n in DECODE for f in formats or ("q8_0", "q4_0")]


def weight_of(name: str, n: int, k: int) -> Quantized | np.ndarray:
    """Random weights; for formats that NumPy cannot quantize to, random bits with scales near 0.01."""
    rng = np.random.default_rng(n * k)
    if name not in FORMATS:
        return rng.standard_normal((n, k), np.float32).astype(op_benchmark.DTYPES[NAMES[name]])
    of = FORMATS[name]
    if of.pack:
        row = rng.standard_normal((min(n, 256), k), np.float32)
        data = np.tile(of.encode(row), (-(-n // len(row)), 1))[:n]
        return Quantized(np.ascontiguousarray(data), name)
    blocks = rng.integers(0, 256, (n, k // of.values, of.bytes), np.uint8)
    for at in of.halves:
        blocks[..., at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return Quantized(blocks.reshape(n, -1), name)


NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def memory_of(weight: Quantized | np.ndarray) -> np.ndarray:
    return weight.data if isinstance(weight, Quantized) else weight


def copies(weight: Quantized | np.ndarray, rows: int) -> list[Quantized | np.ndarray]:
    """Enough copies that none is in a cache when its turn comes; one if arithmetic is the limit."""
    count = -(-4 * measure.last_cache_bytes() // weight.nbytes) if rows == 1 else 1
    data = [memory_of(weight).copy() for _ in range(max(count, 3 if rows == 1 else 1))]
    return [Quantized(d, weight.format) if isinstance(weight, Quantized) else d for d in data]


def in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    turn = itertools.cycle(calls).__next__
    return lambda: turn()()


def product(name: str, rows: int, k: int, n: int, cpp: Any, peer: Any, options: Any) -> Case:
    weights = copies(weight_of(name, n, k), rows)
    x = np.random.default_rng(0).standard_normal((rows, k), np.float32)
    out = np.empty((rows, n), np.float32)
    ours = [partial(cpp.linear, x, w, out=out) for w in weights]
    calls: dict[str, Callable[[], Any]] = {"ours": in_turn(ours)}
    for side, repacked in (("ggml", False), ("repacked", True)) if peer else ():
        theirs = [peer.product(name, memory_of(w), x, options.threads, repacked) for w in weights]
        if all(theirs):
            calls[side] = in_turn(theirs)
            check_alike(ours[0](), theirs[0](), f"{side} {name} {rows}x{k}x{n}")
    if rows == 1:
        probe = np.ones(measure.large_array_bytes() // 4, np.float32)
        calls["read"] = partial(cpp.read, probe)
    times = measure.compare(calls, options.seconds)
    case: Case = {"case": "decode" if rows == 1 else "prefill", "format": name, "rows": rows, "k": k, "n": n}
    case |= {side: vars(timing) for side, timing in times.items()} | {"bytes": weights[0].nbytes}
    return case | ({"read_bytes": probe.nbytes} if rows == 1 else {})


def check_alike(ours: np.ndarray, theirs: np.ndarray, what: str) -> None:
    error = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
    if not error < 0.02:
        raise AssertionError(f"{what}: the results differ by {error:.1%}")


def dequantize(name: str, cpp: Any, options: Any) -> Case:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as theirs

    weight = weight_of(name, 2048, 2048)
    assert isinstance(weight, Quantized)
    out = np.empty(weight.shape, np.float32)
    calls = {
        "ours": partial(cpp.dequantize, weight, out=out),
        "gguf": partial(theirs, weight.data, GGMLQuantizationType(FORMATS[name].ggml_type)),
    }
    times = measure.compare(calls, options.seconds)
    case = {"case": "dequantize", "format": name, "rows": 2048, "k": 2048, "n": 2048}
    return case | {side: vars(timing) for side, timing in times.items()} | {"bytes": out.nbytes}


# ------------------------------------------------------------------------------------------------ the table


def of_read(case: Case) -> float:
    """Share of the read bandwidth measured in the same seconds."""
    return case["bytes"] / case["ours"]["median"] / (case["read_bytes"] / case["read"]["median"])


def vs(case: Case, sides: tuple[str, ...] = ("ggml", "repacked")) -> float | None:
    """Speed relative to the faster of ggml's two, or to gguf."""
    times = [case[side]["median"] for side in sides if side in case]
    return min(times) / case["ours"]["median"] if times else None


def row_of(case: tuple[Case, ...]) -> list[str]:
    last = case[-1]
    mine = last["ours"]["median"]
    sides = ("gguf",) if last["case"] == "dequantize" else ("ggml", "repacked")
    times = [duration(last[side]["median"]) if side in last else "-" for side in ("ours", "ggml", "repacked")]
    if "gguf" in last:
        times[1] = f"gguf: {duration(last['gguf']['median'])}"
    is_product = last["case"] != "dequantize"
    flops = figures(2 * last["rows"] * last["k"] * last["n"] / mine / 1e9) if is_product else "-"
    shares = " / ".join(f"{of_read(each):.0%}" for each in case) if "read" in last else "-"
    ratios = [vs(each, sides) for each in case]
    text = " / ".join("-" if r is None else f"{figures(r)}x" for r in ratios)
    name = f"{last['case']} {last['format']}" + (f" {last['k']}x{last['n']}" if is_product else "")
    return [name, *times, figures(last["bytes"] / mine / 1e9), flops, shares, text, verdict(case, ratios)]


def verdict(case: tuple[Case, ...], ratios: list[float | None]) -> str:
    wanted, share = target(case[-1])
    if wanted is None or None in ratios:
        return ""
    met = all(r >= wanted for r in ratios if r) and all(of_read(each) >= share for each in case if share)
    return f"{'met' if met else 'missed'} ({wanted:g}x{f', {share:.0%} of read' if share else ''})"


def target(case: Case) -> tuple[float | None, float]:
    """The target speed relative to the peer, and the target share of the read bandwidth."""
    if case["case"] == "dequantize":
        return 10, 0
    if case["case"] == "prefill":
        return PREFILL_TARGET.get(case["format"]), 0
    if case["format"] not in ("q8_0", "q4_0"):
        return None, 0
    return (1.2, 0) if (case["k"], case["n"]) in SMALL else (1.0, 0.88)


if __name__ == "__main__":
    main()
