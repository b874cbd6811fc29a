"""The cost of a small call: nanoseconds of `tensor_ops.silu`, `tensor_ops_cpp.silu` and PyTorch at 1 x 64.

    python benchmarks/bench_dispatch.py

Targets: dispatch from the public function to the backend's takes at most 300 ns, the whole call takes less
time than PyTorch's, and the choice by measured size, if two backends win, takes 100 ns more.
"""

import contextvars
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import tensor_ops
from airllm.backends import open_backend, tuning_file
from airllm.bench import measure, op_benchmark
from airllm.bench.activations import Data
from benchmarks import record

ROWS, COLS = 1, 64
HOP = 300e-9
CHOICE = 100e-9
OPS = ("rms_norm", "silu", "gelu", "softmax")


def main() -> None:
    options = record.parser_of(__doc__ or "").parse_args()
    cpp = measure.optional("tensor_ops_cpp")
    if cpp is None:
        sys.exit("bench_dispatch.py needs the C++ backend: python setup.py build_ext --inplace")
    data = record.real_input()
    routed = routing_context()
    with measure.threads(options.threads), tensor_ops.use_backend("cpp"), op_benchmark.silence_warnings():
        times = {op: measure_case(op, cpp, routed, data, options.seconds) for op in OPS}
    rows = [row_of(op, found) for op, found in times.items()]
    titles = [
        f"ns a call, {ROWS}x{COLS}",
        "tensor_ops",
        "tensor_ops_cpp",
        "hop",
        "choice",
        "PyTorch",
        "verdict",
    ]
    about = (
        f"float32, {data.source}. Targets: a hop of {HOP * 1e9:.0f} ns at most, {CHOICE * 1e9:.0f} ns more "
        "for the choice by measured size where two backends win, a call below PyTorch's."
    )
    result = {op: {side: vars(timing) for side, timing in found.items()} for op, found in times.items()}
    record.write("dispatch", about, record.markdown(titles, rows), {"times": result}, options.output)


def routing_context() -> contextvars.Context:
    """A context in which calls are routed by size: to cpp at the size measured here, to NumPy above."""
    times = {"cpp": tuning_file.Time(1, 1, 1), "python": tuning_file.Time(9, 9, 9)}
    swapped = dict(zip(times, reversed(times.values()), strict=True))
    ops = {}
    for op in OPS:
        names = [operand.name for operand in op_benchmark.OPS[op].operands if not operand.optional]
        small, large = (dict.fromkeys(names, (rows, COLS)) for rows in (ROWS, 64 * ROWS))
        ops[op] = {"float32": (tuning_file.Point(small, times), tuning_file.Point(large, swapped))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuning.json"
        machine = tuning_file.this_machine({name: open_backend(name).device for name in times})
        tuning_file.write(path, machine, "made up", ops)
        os.environ.update(AIRLLM_TUNING=str(path), AIRLLM_BACKEND="cpp,python")
        with tensor_ops.use_backend("auto"):
            assert tensor_ops.get_backend_info()["tuning"]["used"]
            return contextvars.copy_context()


def measure_case(
    op_name: str, cpp: Any, routed: contextvars.Context, data: Data, seconds: float
) -> dict[str, measure.Timing]:
    op = op_benchmark.OPS[op_name]
    arrays = data.inputs(op, ROWS, COLS, op_benchmark.DTYPES["float32"], np.random.default_rng(0))
    calls: dict[str, Callable[[], Any]] = {"tensor_ops": partial(getattr(tensor_ops, op_name), *arrays)}
    for name, context in {"unrouted": contextvars.copy_context(), "routed": routed}.items():
        calls[name] = partial(context.run, getattr(tensor_ops, op_name), *arrays)
    calls["tensor_ops_cpp"] = partial(getattr(cpp, op_name), *arrays)
    if measure.optional("torch") and (peer := op_benchmark.torch_call(op_name, arrays)):
        calls["torch"] = peer
    return measure.compare(calls, seconds)


def row_of(op_name: str, times: dict[str, measure.Timing]) -> list[str]:
    public, direct, torch = (times.get(side) for side in ("tensor_ops", "tensor_ops_cpp", "torch"))
    assert public and direct
    hop, choice = public.median - direct.median, times["routed"].median - times["unrouted"].median
    met = hop <= HOP and choice <= CHOICE and (torch is None or public.median < torch.median)
    shown = [f"{1e9 * seconds:.0f}" for seconds in (public.median, direct.median, hop, choice)]
    return [op_name, *shown, f"{1e9 * torch.median:.0f}" if torch else "-", "met" if met else "missed"]


if __name__ == "__main__":
    main()
