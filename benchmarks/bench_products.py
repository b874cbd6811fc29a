"""Products with stored weights, 1 to 16 and 512 rows of x, beside llama.cpp's ggml and the memory bandwidth.

    python benchmarks/bench_products.py [--formats q4_k,...] [--shapes 4096x14336,...] [--rows 1,8]
        [--add]
    AIRLLM_CPU_ISA=avx2 python benchmarks/bench_products.py

One process, all row counts of both sides in turns, everything twice. Up to 16 rows, the weights are in no
cache: every call takes the next of several copies. The probe `tensor_ops_cpp.read` runs in turn with them,
since the bandwidth of a shared machine changes within seconds. It reads one stream per thread while the
products of weights as stored read four, so their share of it can exceed 100 %. Weights are interleaved where
the engine would do it; `--as-stored` leaves them as a file has them. ggml is built from source on first use
(`python -m benchmarks.ggml_peer`), for the same instruction set. It counts with the weights as stored or
with its repacked weights, whichever is faster.

The last column is the maximum of t(m) / (t(i) + t(m - i)): above 1, one call takes longer than two.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import tensor_ops
from airllm.backends import open_backend
from airllm.bench import measure, op_benchmark
from airllm.bench.report import duration, figures
from airllm.formats import FORMATS, Interleaved, Quantized, can_interleave
from benchmarks import ggml_peer, record
from tests.support.models import stored

PASSES = 2
SHAPES = "4096x4096,4096x14336,14336x4096,8192x28672"  # k x n
ROWS = "1,2,3,4,8,9,16,512"
FEW = 16  # rows: with more, arithmetic is the limit and one copy of the weights will do
NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

Case = dict[str, Any]
Weight = Quantized | Interleaved | np.ndarray


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--formats", default=",".join(FORMATS), help="default: all block formats")
    parser.add_argument("--shapes", default=SHAPES, help="k x n (default: %(default)s)")
    parser.add_argument("--rows", default=ROWS, help="of x (default: %(default)s)")
    parser.add_argument("--as-stored", action="store_true", help="weights are never interleaved")
    parser.add_argument("--add", action="store_true", help="to the weights that the table has")
    parser.add_argument("--name", default="products", help="of the table (default: %(default)s)")
    options = parser.parse_args()
    try:
        formats = op_benchmark.choose_names("format", options.formats, tuple(ggml_peer.TYPES))
        shapes = op_benchmark.choose_sizes(options.shapes)
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_products.py: {error}\n")
    rows = [int(m) for m in options.rows.split(",")]
    cpp = open_backend("cpp").module
    if not cpp:
        parser.exit(1, f"bench_products.py: {open_backend('cpp').why_not}\n")
    peer, why_not = peer_or_reason()
    cases = [(name, *shape) for shape in shapes for name in formats]
    with measure.threads(options.threads) as threads:
        passes = [[measure_case(cpp, peer, *case, rows, options) for case in cases] for _ in range(PASSES)]
    passes = with_stored(passes, options)
    about = f"{options.threads} threads, {cpp.device()}. Times of the second pass, ratios of both."
    about += f" No ggml: {why_not}" if why_not else f" ggml of llama-cpp-python {ggml_peer.VERSION}."
    counts = sorted({int(side) for case in passes[0] for side in case if side.isdigit()})
    titles = ["weights", *map(str, counts), "of read, 1 row", "in two calls"]
    table = record.markdown(titles, [row_of(both, counts) for both in zip(*passes, strict=True)])
    record.write(options.name, about, table, {"threads": threads, "passes": passes}, options.output)


def with_stored(passes: list[list[Case]], options: Any) -> list[list[Case]]:
    """The passes, after the other weights of the table that they are added to."""
    stored = record.stored(options.name, options.output) if options.add else None
    new = {weight_name(case) for case in passes[0]}
    return [
        [case for case in before if weight_name(case) not in new] + cases
        for before, cases in zip((stored or {"passes": [[]] * PASSES})["passes"], passes, strict=True)
    ]


def weight_name(case: Case) -> str:
    return f"{case['format']} {case['k']}x{case['n']}"


def peer_or_reason() -> tuple[ggml_peer.Peer | None, str]:
    try:
        return ggml_peer.Peer(), ""
    except (ggml_peer.NoPeer, OSError) as error:
        print(f"NOT COMPARED WITH ggml: {error}", file=sys.stderr)
        return None, str(error)


def weight_of(name: str, n: int, k: int) -> Weight:
    """Random weights; in formats that this tree cannot quantize to, random bits with scales up to 0.02."""
    rng = np.random.default_rng(n * k)
    if name not in FORMATS:
        return rng.standard_normal((n, k), np.float32).astype(op_benchmark.DTYPES[NAMES[name]])
    if FORMATS[name].pack:
        some = tensor_ops.quantize(rng.standard_normal((256, k), np.float32) * np.float32(0.02), name)
    else:
        some = stored.blocks(name, (256, k), seed=n * k)
    return Quantized(np.tile(some.data, (-(-n // 256), 1))[:n].copy(), name)


def memory_of(weight: Weight) -> np.ndarray:
    return weight if isinstance(weight, np.ndarray) else weight.data


def copies(weight: Weight, rows: int) -> list[Weight]:
    """Enough copies that none is in a cache when its turn comes; one if arithmetic is the limit."""
    count = max(-(-measure.large_array_bytes(caches=2) // weight.nbytes), 3) if rows <= FEW else 1
    data = in_one_array(memory_of(weight), count)
    data[:] = memory_of(weight)
    return [Quantized(d, weight.format) if isinstance(weight, Quantized) else d for d in data]


def in_one_array(memory: np.ndarray, count: int) -> np.ndarray:
    """Memory for `count` copies, as a model has its weights: one array, which NumPy puts in huge pages. In
    small pages, which many arrays of some megabytes get, products were up to 25 % slower.
    """
    return np.empty((count, *memory.shape), memory.dtype)


def lay_out(cpp: Any, weights: list[Weight]) -> list[Weight]:
    """The weights as the engine keeps them: copies in the order of the kernels, if they are faster so."""
    first = weights[0]
    if not (
        isinstance(first, Quantized) and first.format in cpp.interleaved_formats and can_interleave(first)
    ):
        return weights
    data = in_one_array(first.data, len(weights))
    for weight, copy in zip(weights, data, strict=True):
        cpp.interleave(weight, copy)
    return [Interleaved(copy, first.format) for copy in data]


def in_turn(calls: Sequence[Callable[[], Any]], start: float) -> Callable[[], Any]:
    """The calls in turn, from this share of them on. Calls with other numbers of rows start elsewhere, else
    they would find the copy that was just read in a cache. Each is made once before: the first to read new
    memory took up to twice as long.
    """
    for call in calls:
        call()
    first = int(start * len(calls))
    turn = itertools.cycle([*calls[first:], *calls[:first]]).__next__
    return lambda: turn()()


def measure_case(cpp: Any, peer: Any, name: str, k: int, n: int, rows: Sequence[int], options: Any) -> Case:
    print(f"{name} {k}x{n}", file=sys.stderr)
    weight = weight_of(name, n, k)
    case: Case = {"format": name, "k": k, "n": n, "bytes": weight.nbytes}
    for some in ([m for m in rows if m <= FEW], [m for m in rows if m > FEW]):
        if some:
            weights = copies(weight, min(some))
            kept = weights if options.as_stored else lay_out(cpp, weights)
            xs = [np.random.default_rng(0).standard_normal((m, k), np.float32) for m in some]
            calls = dict(sides(cpp, peer, name, weights, kept, xs, options.threads))
            probe = np.ones(measure.large_array_bytes() // 4, np.float32)
            calls["read"] = partial(cpp.read, probe)
            times = measure.compare(calls, options.seconds)
            case |= {key: vars(timing) for key, timing in times.items() if key not in case}
            case["read_bytes"] = probe.nbytes
    return case


def sides(
    cpp: Any,
    peer: Any,
    name: str,
    weights: list[Weight],
    kept: list[Weight],
    xs: list[np.ndarray],
    threads: int,
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Pairs of a key and a call: "8" is ours with 8 rows, "8 ggml" and "8 repacked" are the peer's."""
    like: dict[bool, list[Any]] = {repacked: [None] * len(weights) for repacked in (False, True)}
    for i, x in enumerate(xs):
        out = np.empty((len(x), len(weights[0])), np.float32)
        ours = [partial(cpp.linear, x, w, out=out) for w in kept]
        yield str(len(x)), in_turn(ours, i / len(xs))
        for side, repacked in (("ggml", False), ("repacked", True)) if peer else ():
            each = zip(weights, like[repacked], strict=True)
            theirs = [peer.product(name, memory_of(w), x, threads, repacked, first) for w, first in each]
            if all(theirs):
                like[repacked] = theirs
                check_alike(ours[0](), theirs[0](), f"{side} {name} {len(x)} rows")
                yield f"{len(x)} {side}", in_turn(theirs, i / len(xs))


def check_alike(ours: np.ndarray, theirs: np.ndarray, what: str) -> None:
    error = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
    if not error < 0.02:
        raise AssertionError(f"{what}: the results differ by {error:.1%}")


# ------------------------------------------------------------------------------------------------ the table


def time_of(case: Case, key: object) -> float:
    return float(case[str(key)]["median"])


def of_read(case: Case) -> float:
    """Share of the read bandwidth measured in the same seconds, for one row."""
    return case["bytes"] / time_of(case, 1) / (case["read_bytes"] / time_of(case, "read"))


def vs_ggml(both: Sequence[Case], rows: int) -> list[float]:
    """Speed in each pass relative to the side of ggml that is faster over all."""
    sides = [key for side in ("ggml", "repacked") if (key := f"{rows} {side}") in both[0]]
    if not sides:
        return []
    faster = min(sides, key=lambda key: statistics.median(time_of(case, key) for case in both))
    return [time_of(case, faster) / time_of(case, rows) for case in both]


def in_two_calls(case: Case, rows: Sequence[int]) -> str:
    """The maximum of t(m) relative to the time of the same rows in two calls, if those were measured."""
    few = [m for m in rows if m <= FEW and str(m) in case]
    pairs = [(m, i) for m in few for i in few if m - i in few]
    shares = [time_of(case, m) / (time_of(case, i) + time_of(case, m - i)) for m, i in pairs]
    return f"{max(shares):.2f}" if shares else "-"


def row_of(both: tuple[Case, ...], rows: Sequence[int]) -> list[str]:
    cells = []
    for m in rows:
        if str(m) not in both[-1]:
            cells.append("-")
            continue
        text = " / ".join(f"{figures(ratio)}x" for ratio in vs_ggml(both, m)) or "-"
        cells.append(f"{duration(time_of(both[-1], m))}: {text}")
    shares = " / ".join(f"{of_read(case):.0%}" for case in both) if "1" in both[-1] else "-"
    split = " / ".join(in_two_calls(case, rows) for case in both)
    return [weight_name(both[-1]), *cells, shares, split]


if __name__ == "__main__":
    main()
