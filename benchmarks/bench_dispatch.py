"""What a small call costs: nanoseconds of `tensor_ops.silu`, `tensor_ops_cpp.silu` and PyTorch's at 1 x 64.

    python benchmarks/bench_dispatch.py

The hop from the public function to the backend's may cost 300 ns, and the whole call less than PyTorch's.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import benchmark, measure, tensor_ops
from airllm.real_data import Data
from benchmarks import record

ROWS, COLS = 1, 64
HOP = 300e-9
OPS = ("rms_norm", "silu", "gelu", "softmax")


def main() -> None:
    options = record.parser_of(__doc__ or "").parse_args()
    cpp = measure.optional("tensor_ops_cpp")
    if cpp is None:
        sys.exit("bench_dispatch.py needs the C++ backend: python setup.py build_ext --inplace")
    data = record.real_input()
    with measure.threads(options.threads), tensor_ops.use_backend("cpp"), benchmark.quiet():
        times = {op: measured(op, cpp, data, options.seconds) for op in OPS}
    rows = [row_of(op, found) for op, found in times.items()]
    titles = [f"ns a call, {ROWS}x{COLS}", "tensor_ops", "tensor_ops_cpp", "hop", "PyTorch", "verdict"]
    about = f"float32, {data.source}. Targets: a hop of {HOP * 1e9:.0f} ns at most, a call below PyTorch's."
    result = {op: {side: vars(timing) for side, timing in found.items()} for op, found in times.items()}
    record.write("dispatch", about, record.markdown(titles, rows), {"times": result}, options.output)


def measured(op_name: str, cpp: Any, data: Data, seconds: float) -> dict[str, measure.Timing]:
    op = benchmark.OPS[op_name]
    arrays = data.inputs(op, ROWS, COLS, benchmark.DTYPES["float32"], np.random.default_rng(0))
    calls: dict[str, Callable[[], Any]] = {"tensor_ops": partial(getattr(tensor_ops, op_name), *arrays)}
    calls["tensor_ops_cpp"] = partial(getattr(cpp, op_name), *arrays)
    if measure.optional("torch") and (peer := benchmark.torch_call(op_name, arrays)):
        calls["torch"] = peer
    return measure.compare(calls, seconds)


def row_of(op_name: str, times: dict[str, measure.Timing]) -> list[str]:
    public, direct, torch = (times.get(side) for side in ("tensor_ops", "tensor_ops_cpp", "torch"))
    assert public and direct
    met = public.median - direct.median <= HOP and (torch is None or public.median < torch.median)
    shown = [
        f"{1e9 * seconds:.0f}" for seconds in (public.median, direct.median, public.median - direct.median)
    ]
    return [op_name, *shown, f"{1e9 * torch.median:.0f}" if torch else "-", "met" if met else "missed"]


if __name__ == "__main__":
    main()
