"""swiglu, add_rms_norm and apply_rope, compared with the PyTorch code that users write for them.

    python benchmarks/bench_fused.py [--ops A,B] [--dtypes float32,bfloat16]

PyTorch's sides: F.silu(gate) * up; x + residual, then F.rms_norm; rotate_half with cat, as in Hugging Face's
models. One process, equal threads, both in turns, every result a new array; everything is measured twice.
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
from airllm.bench.torch_peer import as_torch
from benchmarks import record

WANTED = 3.0  # target speed relative to PyTorch
PASSES = 2
ROWS = ((1, 4096), (1, 14336), (128, 4096), (128, 14336), (512, 4096), (512, 14336), (4096, 4096))
HEADS = ((32, 1, 128), (9, 512, 64), (32, 512, 128), (32, 4096, 128))  # heads, positions, width
SHAPES = {"swiglu": ROWS, "add_rms_norm": ROWS, "apply_rope": HEADS}


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--ops", help=f"default: {','.join(SHAPES)}")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="default: %(default)s")
    options = parser.parse_args()
    try:
        ops = op_benchmark.choose_names("op", options.ops, SHAPES)
        dtypes = op_benchmark.choose_names("dtype", options.dtypes, op_benchmark.DTYPES)
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_fused.py: {error}\n")
    if not measure.optional("torch"):
        parser.exit(2, "bench_fused.py: PyTorch, which this compares with, is not installed\n")
    cases = [(op, shape, dtype) for op in ops for dtype in dtypes for shape in SHAPES[op]]
    with measure.threads(options.threads) as threads:
        passes = [[measure_case(*case, options.seconds) for case in cases] for _ in range(PASSES)]
    titles = ["op, shape, dtype", "tensor_ops", "PyTorch", "GB/s", "vs PyTorch", f"{WANTED:g}x PyTorch"]
    table = record.markdown(titles, [row_of(case) for case in zip(*passes, strict=True)])
    about = f"{options.threads} threads, normal random numbers. Medians of the second pass, ratios of both."
    record.write("fused", about, table, {"threads": threads, "passes": passes}, options.output)


def measure_case(op_name: str, shape: tuple[int, ...], dtype: str, seconds: float) -> dict[str, Any]:
    print(f"{op_name} {shape} {dtype}", file=sys.stderr)
    arrays = arrays_of(op_name, shape, op_benchmark.DTYPES[dtype])
    peers = [as_torch(array) for array in wide_tables(op_name, arrays)]
    calls: dict[str, Callable[[], Any]] = {
        "tensor_ops": partial(getattr(tensor_ops, op_name), *arrays),
        "torch": partial(TORCH[op_name], *peers),
    }
    with op_benchmark.silence_warnings():
        times = measure.compare(calls, seconds)
    moved = sum(array.nbytes for array in arrays) + arrays[0].nbytes * (2 if op_name == "add_rms_norm" else 1)
    case = {"op": op_name, "shape": shape, "dtype": dtype, "bytes": moved}
    return case | {name: vars(timing) for name, timing in times.items()}


def arrays_of(op_name: str, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    if op_name == "apply_rope":
        tables = tensor_ops.rope_table(np.arange(shape[-2]), shape[-1])
        return [rng.standard_normal(shape, np.float32).astype(dtype), *(t.astype(dtype) for t in tables)]
    arrays = [rng.standard_normal(shape, np.float32).astype(dtype) for _ in range(2)]
    return [*arrays, np.ones(shape[-1], dtype)] if op_name == "add_rms_norm" else arrays


def wide_tables(op_name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The tables of PyTorch's formula: as wide as x, with two equal halves."""
    if op_name != "apply_rope":
        return arrays
    return [arrays[0], *(np.concatenate((table, table), axis=-1) for table in arrays[1:])]


def torch_swiglu(gate: Any, up: Any) -> Any:
    import torch

    return torch.nn.functional.silu(gate) * up


def torch_add_rms_norm(x: Any, residual: Any, weight: Any) -> Any:
    import torch

    total = x + residual
    return total, torch.nn.functional.rms_norm(total, total.shape[-1:], weight, 1e-6)


def torch_apply_rope(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


TORCH: dict[str, Callable[..., Any]] = {
    "swiglu": torch_swiglu,
    "add_rms_norm": torch_add_rms_norm,
    "apply_rope": torch_apply_rope,
}


def row_of(case: tuple[dict[str, Any], ...]) -> list[str]:
    last = case[-1]
    mine = last["tensor_ops"]["median"]
    times = [duration(mine), duration(last["torch"]["median"])]
    ratios = [each["torch"]["median"] / each["tensor_ops"]["median"] for each in case]
    shape = "x".join(map(str, last["shape"]))
    name, rate = f"{last['op']} {shape} {last['dtype']}", figures(last["bytes"] / mine / 1e9)
    met = "met" if min(ratios) >= WANTED else "missed"
    return [name, *times, rate, " / ".join(f"{figures(ratio)}x" for ratio in ratios), met]


if __name__ == "__main__":
    main()
