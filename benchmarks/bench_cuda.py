"""The CUDA backend on this machine's GPU, compared with PyTorch, CuPy, and a copy in device memory.

    python benchmarks/bench_cuda.py [--ops silu,softmax] [--dtypes float32,...] [--rounds 9] [--output FOLDER]

Arrays are on the device. Times are between CUDA events around many calls, the sides in turns. Ours writes to
an existing array; the others allocate from their pools. A call with few rows is limited by the launch on the
host. Large arrays are larger than any cache; small ones stay in a cache and may exceed the memory bandwidth.
The table goes to results/cuda_<device>.md. Needs the built backend, a GPU, and PyTorch with CUDA or CuPy.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import tensor_ops  # noqa: F401  declares the ops
from airllm.backends import registry
from airllm.bench.shapes import Case, case_of
from airllm.formats import FORMATS, Quantized
from airllm.ops.op import OPS, Op
from benchmarks import record
from benchmarks.gpu_libraries import Call, Library, NotHere, libraries

ROW_SHAPES = ((1, 4096), (128, 4096), (4096, 4096), (16384, 4096))
PRODUCT_ROWS = (1, 16, 128, 4096)
STORED_ROWS = (1, 8, 512)
STORED_SHAPES = ((4096, 4096), (14336, 4096), (49152, 576))  # outputs, inputs
HEADS = ((9, 3, 64), (32, 8, 128))  # of queries, of keys, and their width
QUERIES = ((512, 512), (4096, 4096), (1, 2048), (1, 8192))  # and keys
WIDTH = 4096
DTYPES = ("float32", "float16", "bfloat16")
COPY_BYTES = 1 << 30
BLOCK_SECONDS = 0.05


def backend() -> Any:
    opened = registry.open_backend("cuda")
    if opened.why_not:
        raise NotHere(f"the CUDA backend cannot run: {opened.why_not}")
    return opened.module


# ---- what is measured


@dataclass(frozen=True)
class Bench:
    """The backend, the other libraries, a copy's bandwidth, and the number of rounds."""

    cuda: Any
    found: list[Library]
    copy: float
    rounds: int

    @property
    def others(self) -> list[str]:
        return [library.name for library in self.found]

    def times(self, op: Op, case: Case, dtype: str, weight: Quantized | None = None) -> dict[str, float]:
        """Seconds per call of every side."""
        print(".", end="", flush=True)
        return in_turns(self.found[0], self.sides(op, case, dtype, weight), self.rounds)

    def sides(self, op: Op, case: Case, dtype: str, weight: Quantized | None) -> dict[str, Call]:
        """A call of every library on its own arrays."""
        arrays = arrays_of(self.found[0], op, case, dtype)
        own = [
            weight if weight and o.kind == "stored" else a
            for o, a in zip(required_operands(op), arrays, strict=True)
        ]
        kernel = getattr(self.cuda, op.name)
        results = kernel(*own, **case.parameters)
        calls: dict[str, Call] = {"airllm": lambda: kernel(*own, **case.parameters, out=results)}
        for library in self.found:
            function = library.function(op.name)
            if function is None or (dtype == "bfloat16" and library.name == "CuPy"):
                continue
            given = arrays if library is self.found[0] else arrays_of(library, op, case, dtype)
            calls[library.name] = lambda function=function, given=given: function(*given)  # type: ignore[misc]
        if weight is None and self.found[0].name in calls:
            check_results(op.name, results, calls[self.found[0].name]())
        return calls


def required_operands(op: Op) -> list[Any]:
    return [operand for operand in op.operands if not operand.optional]


def arrays_of(library: Library, op: Op, case: Case, dtype: str) -> list[Any]:
    """Random arrays on the device for the required arguments."""
    made = []
    for operand in required_operands(op):
        shape = case.shape(operand)
        if operand.kind == "index":
            made.append(library.integers(case.sizes[operand.of], shape))
        else:
            made.append(library.normal(shape, dtype))
    return made


def host(array: Any) -> np.ndarray:
    return array.float().cpu().numpy() if hasattr(array, "cpu") else array.get().astype(np.float32)


def check_results(name: str, results: Any, others: Any) -> None:
    """Check that the sides agree: the time of a wrong result means nothing."""
    pairs = zip(results, others, strict=True) if isinstance(results, tuple) else [(results, others)]
    for result, other in pairs:
        expected = host(other)
        error = np.abs(host(result) - expected).max() / max(np.abs(expected).max(), 1e-30)
        if not error < 2e-2:
            raise SystemExit(f"bench_cuda.py: {name} is not the other library's: relative error {error:.2e}")


def in_turns(library: Library, calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median seconds per call of each side, measured in turns."""
    counts = {}
    for name, call in calls.items():
        library.seconds(call, 3)
        counts[name] = max(3, int(BLOCK_SECONDS / library.seconds(call, 3)))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(library.seconds(call, counts[name]))
    return {name: statistics.median(times) for name, times in taken.items()}


def bandwidth(library: Library, rounds: int) -> float:
    """Bytes per second, read and written, of the library's copy of a gigabyte."""
    source, to = (library.empty((COPY_BYTES // 4,), "float32") for _ in range(2))
    seconds = in_turns(library, {"copy": lambda: library.copy(to, source)}, rounds)["copy"]
    return 2 * COPY_BYTES / seconds


# ---- lines of the tables


def ratios(times: dict[str, float], others: Sequence[str]) -> list[str]:
    """Speed relative to each of the others."""
    return [f"{times[o] / times['airllm']:.2f}x" if o in times else "-" for o in others]


def line(title: str, times: dict[str, float], figures: Sequence[str], bench: Bench) -> list[str]:
    return [title, f"{times['airllm'] * 1e6:.1f}", *figures, *ratios(times, bench.others)]


def bytes_of(op: Op, case: Case, dtype: str) -> int:
    """Bytes read and written once; ids have 8 bytes, and of a table only the rows of the ids are read."""
    itemsize = 4 if dtype == "float32" else 2
    outs = sum(prod(case.shape(out)) for out in op.outs) * itemsize
    if op.name == "embedding":
        return 2 * outs + 8 * prod(case.batch)
    return outs + sum(prod(case.shape(operand)) for operand in required_operands(op)) * itemsize


def row_lines(bench: Bench, names: Sequence[str], dtypes: Sequence[str]) -> Iterator[list[str]]:
    for name in names:
        for dtype in dtypes:
            for rows, cols in ROW_SHAPES:
                case = case_of(OPS[name], rows, cols)
                times = bench.times(OPS[name], case, dtype)
                rate = bytes_of(OPS[name], case, dtype) / times["airllm"]
                figures = [f"{rate / 1e9:.0f}", f"{rate / bench.copy:.0%}"]
                yield line(f"{name} {dtype} {rows}x{cols}", times, figures, bench)


def product_lines(bench: Bench, names: Sequence[str], dtypes: Sequence[str]) -> Iterator[list[str]]:
    for matmul in ("cublas", "tiled"):
        os.environ["AIRLLM_CUDA_MATMUL"] = matmul
        if matmul == "cublas" and not bench.cuda.get_cuda_info()["matmul"].startswith("cublas"):
            print(f"\nwithout cuBLAS: {bench.cuda.get_cuda_info()['matmul']}")
            continue
        for name in names:
            for dtype in dtypes:
                for m in PRODUCT_ROWS:
                    times = bench.times(OPS[name], case_of(OPS[name], m, WIDTH), dtype)
                    rate = 2 * m * WIDTH * WIDTH / times["airllm"]
                    title = f"{name} {matmul} {dtype} {m}x{WIDTH} by {WIDTH}x{WIDTH}"
                    yield line(title, times, [f"{rate / 1e12:.2f}"], bench)
    os.environ.pop("AIRLLM_CUDA_MATMUL", None)


def attention_lines(bench: Bench, dtypes: Sequence[str]) -> Iterator[list[str]]:
    for dtype in dtypes:
        for h, g, d in HEADS:
            for t, s in QUERIES:
                sizes = {"h": h, "g": g, "t": t, "s": s, "d": d, "e": d}
                times = bench.times(OPS["attention"], Case(sizes, parameters={"causal": True}), dtype)
                pairs = t * s if t == 1 else t * (t + 1) // 2  # of queries and visible keys
                itemsize = 4 if dtype == "float32" else 2
                figures = [f"{4 * h * d * pairs / times['airllm'] / 1e12:.2f}"]
                figures += [f"{2 * g * s * d * itemsize / times['airllm'] / 1e9:.0f}"]
                yield line(f"{dtype} {h} heads over {g} of {d}, {t} by {s}", times, figures, bench)


def stored_lines(bench: Bench, dtypes: Sequence[str]) -> Iterator[list[str]]:
    """Lines for quantized weights; the other libraries multiply by a weight in x's dtype."""
    rng = np.random.default_rng(0)
    for of in (f for f in FORMATS.values() if f.pack):
        for n, k in STORED_SHAPES:
            if k % of.values:
                continue
            packed = of.encode(rng.standard_normal((n, k), np.float32))
            weight = Quantized(bench.found[0].blocks(packed), of.name)
            for dtype in dtypes:
                for m in STORED_ROWS:
                    times = bench.times(OPS["linear"], Case({"n": n, "k": k}, (m,)), dtype, weight)
                    figures = [f"{packed.nbytes / times['airllm'] / 1e9:.0f}"]
                    figures += [f"{2 * m * n * k / times['airllm'] / 1e12:.2f}"]
                    yield line(f"{of.name} {dtype} {m}x{k} by {n}x{k}", times, figures, bench)


# ---- the page


def report(bench: Bench, names: Sequence[str], dtypes: Sequence[str], keep: Callable[[str], object]) -> str:
    """The page for results/; `keep` gets the unfinished page after each section."""
    info = bench.cuda.get_cuda_info()
    versus = [f"vs {name}" for name in bench.others]
    page = f"# CUDA: {bench.cuda.device()}\n\ndriver {info['driver_version']}, "
    page += f"runtime {info['runtime_version']}, {time.strftime('%Y-%m-%d')}. "
    page += f"A copy of a gigabyte moves {bench.copy / 1e9:.0f} GB/s, read and written. "
    page += f"{info['matmul'].split(' from ')[0]}. float32 is not rounded to TF32 on any side.\n"
    products = [name for name in names if name in ("matmul", "linear")]
    rows = [name for name in names if name not in ("matmul", "linear", "attention", "dequantize")]
    sections: list[tuple[list[str], Callable[[], Iterator[list[str]]], bool]] = [
        (["op", "us", "GB/s", "of the copy"], lambda: row_lines(bench, rows, dtypes), bool(rows)),
        (["product", "us", "TFLOP/s"], lambda: product_lines(bench, products, dtypes), bool(products)),
        (
            ["attention", "us", "TFLOP/s", "GB/s of keys"],
            lambda: attention_lines(bench, dtypes),
            "attention" in names,
        ),
        (
            ["stored linear", "us", "GB/s of weights", "TFLOP/s"],
            lambda: stored_lines(bench, dtypes),
            "linear" in names,
        ),
    ]
    for titles, lines, wanted in sections:
        if wanted:
            page += "\n" + record.markdown([*titles, *versus], list(lines()))
            keep(page)
    return page


def choose_names(kind: str, text: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list, which must be known."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise NotHere(f"unknown {kind} {', '.join(unknown)}, known: {', '.join(known)}")
    return names


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--ops", help="default: all that the backend has")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="of every side (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, help="folder (default: results/)")
    options = parser.parse_args()
    try:
        cuda = backend()
        known = [name for name in OPS if hasattr(cuda, name)]
        names = choose_names("op", options.ops, known) if options.ops else known
        dtypes, found = choose_names("dtype", options.dtypes, DTYPES), libraries()
        if found[0].name == "CuPy":
            dtypes = [dtype for dtype in dtypes if dtype != "bfloat16"]  # CuPy does not support it
    except NotHere as error:
        parser.exit(1, f"bench_cuda.py: {error}\n")
    bench = Bench(cuda, found, bandwidth(found[0], options.rounds), options.rounds)
    device = re.sub(r"\W+", "_", cuda.device().split(" (")[0]).strip("_").lower()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"cuda_{device}.md"
    page = report(bench, names, dtypes, lambda page: path.write_text(page, encoding="utf-8"))
    print(f"\n{page}\nWritten to {path}")


if __name__ == "__main__":
    main()
