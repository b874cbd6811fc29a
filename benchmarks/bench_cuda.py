"""The CUDA backend on this machine's GPU beside PyTorch and CuPy, and beside a copy in device memory.

    python benchmarks/bench_cuda.py [--ops silu,softmax] [--dtypes float32,...] [--rounds 9] [--output FOLDER]

Arrays lie on the device; times are between CUDA events around many calls, the sides in turns. Ours writes
into an array that exists already, the others allocate from their pools. A call of few rows is bound by what
the host needs to start it. Large arrays are longer than any cache; small ones stay in it and may pass the
bandwidth of the memory. The table goes to results/cuda_<device>.md. Needs the built backend, a GPU, and
PyTorch with CUDA (or CuPy, then beside that alone).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import tensor_ops  # noqa: F401  declares the ops
from airllm.backends import registry
from airllm.op import OPS
from benchmarks import record

ROW_SHAPES = ((1, 4096), (128, 4096), (4096, 4096), (16384, 4096))
PRODUCT_ROWS = (1, 16, 128, 4096)
WIDTH = 4096
DTYPES = ("float32", "float16", "bfloat16")
COPY_BYTES = 1 << 30
BLOCK_SECONDS = 0.05
Call = Callable[[], Any]


class NotHere(Exception):
    """Why nothing can be measured on this machine."""


class Torch:
    """PyTorch's arrays, events and ops. float32 products stay float32: TF32 is off."""

    name = "PyTorch"

    def __init__(self) -> None:
        self.torch = import_module("torch")
        if not self.torch.cuda.is_available():
            raise ImportError("this PyTorch has no CUDA")
        self.torch.backends.cuda.matmul.allow_tf32 = False

    def normal(self, shape: Sequence[int], dtype: str) -> Any:
        return self.torch.randn(*shape, device="cuda").to(getattr(self.torch, dtype))

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self.torch.empty(*shape, device="cuda", dtype=getattr(self.torch, dtype))

    def copy(self, to: Any, source: Any) -> None:
        to.copy_(source)

    def ops(self) -> dict[str, Callable[..., Any]]:
        f = self.torch.nn.functional
        return {
            "rms_norm": lambda x, weight: f.rms_norm(x, weight.shape, weight, 1e-6),
            "silu": f.silu,
            "gelu": lambda x: f.gelu(x, approximate="tanh"),
            "softmax": lambda x: f.softmax(x, -1),
            "matmul": self.torch.matmul,
        }

    def seconds(self, calls: Call, count: int) -> float:
        """Of one call, by the device's clock."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            calls()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / count


class Cupy:
    """CuPy's arrays, events and ops; those it has no kernel for are its array expressions."""

    name = "CuPy"

    def __init__(self) -> None:
        self.cupy = import_module("cupy")
        if not self.cupy.cuda.is_available():
            raise ImportError("this CuPy finds no device")

    def normal(self, shape: Sequence[int], dtype: str) -> Any:
        return self.cupy.random.standard_normal(shape, dtype="float32").astype(dtype)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self.cupy.empty(shape, dtype)

    def copy(self, to: Any, source: Any) -> None:
        to[...] = source

    def ops(self) -> dict[str, Callable[..., Any]]:
        xp = self.cupy
        return {
            "rms_norm": lambda x, weight: x / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight,
            "silu": lambda x: x / (1 + xp.exp(-x)),
            "gelu": lambda x: 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x))),
            "softmax": import_module("cupyx.scipy.special").softmax,
            "matmul": xp.matmul,
        }

    def seconds(self, calls: Call, count: int) -> float:
        """Of one call, by the device's clock."""
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record()
        for _ in range(count):
            calls()
        end.record()
        end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, end)) / 1e3 / count


Library = Torch | Cupy


def libraries() -> list[Library]:
    """Those that have a GPU here; the first one's arrays are measured."""
    found: list[Library] = []
    reasons = []
    for library in (Torch, Cupy):
        try:
            found.append(library())
        except Exception as error:  # a library that cannot be imported may say so in any way
            reasons.append(f"{library.name}: {error}")
    if not found:
        raise NotHere(f"no library makes arrays on the device: {'; '.join(reasons)}")
    return found


def backend() -> Any:
    opened = registry.opened("cuda")
    if opened.why_not:
        raise NotHere(f"the CUDA backend cannot run: {opened.why_not}")
    return opened.module


def in_turns(library: Library, calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median seconds of a call of each side, the sides taking turns."""
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
    """Bytes a second of the library's copy of a gigabyte, read and written."""
    source, to = (library.empty((COPY_BYTES // 4,), "float32") for _ in range(2))
    seconds = in_turns(library, {"copy": lambda: library.copy(to, source)}, rounds)["copy"]
    return 2 * COPY_BYTES / seconds


def checked(name: str, arrays: list[Any], result: Any) -> None:
    """A figure for a wrong result is worth nothing: the first rows against the definition."""
    rows = [arrays[0][:2], *arrays[1:]]
    host = [a.float().cpu().numpy() if hasattr(a, "cpu") else a.get().astype(np.float32) for a in rows]
    actual = result[:2]
    actual = actual.float().cpu().numpy() if hasattr(actual, "cpu") else actual.get().astype(np.float32)
    exact = OPS[name].exact(*host)
    error = np.abs(actual - exact).max() / np.abs(exact).max()
    if not error < 2e-2:
        raise SystemExit(f"bench_cuda.py: {name} is wrong on this GPU: relative error {error:.2e}")


def sides(
    cuda: Any, found: list[Library], name: str, shapes: Sequence[Sequence[int]], dtype: str
) -> dict[str, Call]:
    """One call of every library on arrays of its own."""
    arrays = [found[0].normal(shape, dtype) for shape in shapes]
    out = found[0].empty((*shapes[0][:-1], shapes[-1][-1]) if name == "matmul" else shapes[0], dtype)
    kernel = getattr(cuda, name)
    kernel(*arrays, out=out)
    checked(name, arrays, out)
    calls: dict[str, Call] = {"airllm": lambda: kernel(*arrays, out=out)}
    for library in found:
        if dtype == "bfloat16" and library.name == "CuPy":
            continue
        own = arrays if library is found[0] else [library.normal(shape, dtype) for shape in shapes]
        function = library.ops()[name]
        calls[library.name] = lambda function=function, own=own: function(*own)  # type: ignore[misc]
    return calls


def ratios(times: dict[str, float], others: Sequence[str]) -> list[str]:
    """How many times faster than each of the others."""
    return [f"{times[o] / times['airllm']:.2f}x" if o in times else "-" for o in others]


def row_lines(
    cuda: Any, found: list[Library], names: Sequence[str], dtypes: Sequence[str], copy: float, rounds: int
) -> Iterator[list[str]]:
    others = [library.name for library in found]
    for name in names:
        for dtype in dtypes:
            for shape in ROW_SHAPES:
                shapes = [shape, shape[-1:]] if name == "rms_norm" else [shape]
                times = in_turns(found[0], sides(cuda, found, name, shapes, dtype), rounds)
                itemsize = 4 if dtype == "float32" else 2
                rate = itemsize * (2 * shape[0] * shape[1] + len(shapes[1:]) * shape[1]) / times["airllm"]
                figures = [f"{times['airllm'] * 1e6:.1f}", f"{rate / 1e9:.0f}", f"{rate / copy:.0%}"]
                yield [f"{name} {dtype} {shape[0]}x{shape[1]}", *figures, *ratios(times, others)]
                print(".", end="", flush=True)


def product_lines(cuda: Any, found: list[Library], dtypes: Sequence[str], rounds: int) -> Iterator[list[str]]:
    others = [library.name for library in found]
    for matmul in ("cublas", "tiled"):
        os.environ["AIRLLM_CUDA_MATMUL"] = matmul
        if matmul == "cublas" and not cuda.get_cuda_info()["matmul"].startswith("cublas"):
            print(f"\nwithout cuBLAS: {cuda.get_cuda_info()['matmul']}")
            continue
        for dtype in dtypes:
            for m in PRODUCT_ROWS:
                shapes = [(m, WIDTH), (WIDTH, WIDTH)]
                times = in_turns(found[0], sides(cuda, found, "matmul", shapes, dtype), rounds)
                flops = 2 * m * WIDTH * WIDTH / times["airllm"]
                figures = [f"{times['airllm'] * 1e6:.1f}", f"{flops / 1e12:.2f}"]
                yield [f"{matmul} {dtype} {m}x{WIDTH} @ {WIDTH}x{WIDTH}", *figures, *ratios(times, others)]
                print(".", end="", flush=True)


def report(cuda: Any, found: list[Library], names: Sequence[str], dtypes: Sequence[str], rounds: int) -> str:
    """The page for results/."""
    info = cuda.get_cuda_info()
    copy = bandwidth(found[0], rounds)
    versus = [f"vs {library.name}" for library in found]
    lines = list(row_lines(cuda, found, [n for n in names if n != "matmul"], dtypes, copy, rounds))
    page = f"# CUDA: {cuda.device()}\n\ndriver {info['driver_version']}, runtime {info['runtime_version']}, "
    page += (
        f"{time.strftime('%Y-%m-%d')}. A copy of a gigabyte moves {copy / 1e9:.0f} GB/s, read and written.\n"
    )
    page += "\n" + record.markdown(["op", "us", "GB/s", "of the copy", *versus], lines)
    if "matmul" in names:
        lines = list(product_lines(cuda, found, dtypes, rounds))
        page += f"\n{info['matmul'].split(' from ')[0]}. float32 is not rounded to TF32 on any side.\n\n"
        page += record.markdown(["matmul", "us", "TFLOP/s", *versus], lines)
    return page


def chosen(kind: str, text: str, known: Sequence[str]) -> list[str]:
    """The named ones of the known ones."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise NotHere(f"unknown {kind} {', '.join(unknown)}, known: {', '.join(known)}")
    return names


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--ops", default=",".join(OPS), help="default: %(default)s")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="of every side (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, help="folder (default: results/)")
    options = parser.parse_args()
    try:
        names = chosen("op", options.ops, list(OPS))
        dtypes = chosen("dtype", options.dtypes, DTYPES)
        cuda, found = backend(), libraries()
        if found[0].name == "CuPy":
            dtypes = [dtype for dtype in dtypes if dtype != "bfloat16"]  # which it does not have
    except NotHere as error:
        parser.exit(1, f"bench_cuda.py: {error}\n")
    page = report(cuda, found, names, dtypes, options.rounds)
    device = re.sub(r"\W+", "_", cuda.device().split(" (")[0]).strip("_").lower()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"cuda_{device}.md"
    path.write_text(page, encoding="utf-8")
    print(f"\n{page}\nWritten to {path}")


if __name__ == "__main__":
    main()
