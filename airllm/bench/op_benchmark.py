"""Check every backend, then time all of them; `detect_and_benchmark.py` runs this after the builds.

Checks and timings come from the declarations in `airllm.tensor_ops`: a new op needs no code here. Results are
plain dicts and lists for JSON. `airllm.bench.report` prints them as tables, `airllm.bench.html_report` writes
a page.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from airllm import backends
from airllm.backends import config, config_schema
from airllm.bench import measure
from airllm.bench.activations import Data
from airllm.bench.shapes import case_of, is_contraction
from airllm.bench.torch_peer import TORCH, torch_call
from airllm.formats import Quantized
from airllm.ops.op import Op
from airllm.progress import Told
from airllm.tensor_ops import OPS

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DECODE, PREFILL, LARGE = ((1, 4096),), ((128, 4096), (512, 4096)), ((4096, 4096),)
CHECKED = ((1, 1), (1, 64), (3, 5), (2, 257), (128, 576))
PEERS = {
    "numpy": config_schema.DEFINITIONS,
    "torch": TORCH,
}  # the baselines of ratios; the definitions run in NumPy


class WrongName(ValueError):
    """An unknown name; the message lists the known ones."""


# ------------------------------------------------------------------------------------------------ names


def choose_names(what: str, text: str | None, known: Iterable[str]) -> list[str]:
    """The names in a comma-separated list, or all known ones for None. Raises WrongName."""
    names = list(known)
    if text is None:
        return names
    asked = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in asked if name not in names]
    if wrong or not asked:
        found = ", ".join(map(repr, wrong)) or "nothing"
        raise WrongName(f"unknown {what} {found}; known: {', '.join(names)}")
    return list(dict.fromkeys(asked))


def choose_sizes(text: str) -> list[tuple[int, int]]:
    """Sizes such as "1x4096,128x4096": rows x columns. Raises WrongName."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([1-9]\d*)x([1-9]\d*)\s*", part)
        if not match:
            raise WrongName(f"unknown size {part.strip()!r}; sizes are ROWSxCOLUMNS, such as 1x4096,128x4096")
        found.append((int(match[1]), int(match[2])))
    return found


def choose_backends(text: str | None) -> list[str]:
    """Names of backends (aliases work too), or all known ones for None. Raises WrongName."""
    if text is None:
        return list(config.known_names())
    known = [name.lower() for name in (*config.known_names(), *config.aliases())]
    return [config.canonical_name(name) for name in choose_names("backend", text.lower(), known)]


# ------------------------------------------------------------------------------------------------ backends


def describe_backends(names: Sequence[str]) -> list[dict[str, str]]:
    """Name, state, device and reason of each backend: why it runs, is skipped, or cannot run."""
    info = backends.get_backend_info()
    return [_describe(backends.open_backend(name), info) for name in names]


def _describe(backend: backends.Backend, info: dict[str, Any]) -> dict[str, str]:
    reason = backend.why_not or info["passed_over"].get(backend.name, "")
    if backend.name == info["backend"]:
        state = "active"
    elif isinstance(backend.cause, AssertionError):
        state = "wrong"
    elif backend.why_not:
        state = "unavailable"
    else:
        state = "passed over" if reason else "available"
    return {"name": backend.name, "state": state, "device": backend.device, "reason": reason}


def running_names(described_backends: list[dict[str, str]]) -> list[str]:
    """Names of the backends that run: the one in use first, then those that `auto` may choose."""
    states = ("active", "available", "passed over")
    found = [each for each in described_backends if each["state"] in states]
    return [each["name"] for each in sorted(found, key=lambda each: states.index(each["state"]))]


# ------------------------------------------------------------------------------------------------ correctness


@dataclass(frozen=True)
class Check:
    """One comparison with the float64 definition.

    `error` is a share of the tolerance, so 1 is the limit. It is None, with a message, if there is no result.
    """

    backend: str
    op: str
    dtype: str
    rows: int
    cols: int
    error: float | None
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.error is not None and self.error <= 1


def cases_to_check(
    names: Sequence[str], ops: Sequence[str], dtypes: Sequence[str]
) -> list[tuple[str, Op, str, int, int]]:
    """Backend, op, dtype, rows and columns of every check; one per op and backend comes first."""
    return [(b, OPS[op], d, *size) for size in CHECKED for d in dtypes for b in names for op in ops]


def check(
    names: Sequence[str],
    ops: Sequence[str],
    dtypes: Sequence[str],
    data: Data,
    on_progress: Told,
    seconds: float = math.inf,
) -> list[dict[str, Any]]:
    """Compare every op on every backend with its definition in float64.

    After `seconds` no further check begins, except that each op is checked once on each backend.
    """
    cases, budget, found = cases_to_check(names, ops, dtypes), measure.Budget(seconds), []
    for done, (name, op, dtype, rows, cols) in enumerate(cases):
        if done >= len(names) * len(ops) and not budget.left():
            break
        on_progress(done, len(cases), f"{op.name} on {name}")
        found.append(_check_case(name, op, dtype, rows, cols, data))
    on_progress(len(cases), len(cases), "")
    how = backends.support_matrix()
    return [{**asdict(each), "passed": each.passed, "how": how[each.op][each.backend]} for each in found]


def _check_case(name: str, op: Op, dtype: str, rows: int, cols: int, data: Data) -> Check:
    arrays = data.inputs(op, rows, cols, DTYPES[dtype], np.random.default_rng(rows * cols))
    parameters = case_of(op, rows, cols).parameters
    case = (name, op.name, dtype, rows, cols)
    try:
        answer = backends.kernel(op.name, name)(*arrays, **parameters)
    except Exception as failure:  # an exception of a backend is a failed check and must not end the run
        return Check(*case, None, f"{type(failure).__name__}: {failure}")
    answers, exacts = _values(answer), _values(op.exact(*arrays, **parameters))
    wanted = np.dtype(np.float32) if op.gives_quantized else op.result_dtype(arrays)
    for found, exact in zip(answers, exacts, strict=True):
        if (found.shape, found.dtype) != (exact.shape, wanted):
            expected = f"{exact.shape} {wanted}"
            return Check(*case, None, f"result is {found.shape} {found.dtype}, expected {expected}")
    sizes = _sum_magnitudes(op, arrays, parameters) or [np.max(np.abs(e), initial=0) for e in exacts]
    error = max(_error(*each, wanted) for each in zip(answers, exacts, sizes, strict=True))
    return Check(*case, error) if math.isfinite(error) else Check(*case, None, "result has NaN or infinities")


def _values(result: Any) -> list[np.ndarray]:
    """The results of an op as a list of arrays."""
    if isinstance(result, Quantized):
        return [result.dequantize()]
    return [np.asarray(each) for each in (result if isinstance(result, tuple) else (result,))]


def _sum_magnitudes(op: Op, arrays: Sequence[Any], parameters: dict[str, Any]) -> list[np.ndarray]:
    """The sums of a product without cancellation, from absolute values; empty for other ops.

    In any order of additions, partial sums are rounded at most at this magnitude, even for a small result.
    """
    if not is_contraction(op) or op.name == "attention":
        return []
    values = (a.dequantize() if isinstance(a, Quantized) else a for a in arrays)
    exact = op.exact(*(None if a is None else np.abs(a) for a in values), **parameters)
    return [np.abs(each) for each in _values(exact)]


def _error(answer: np.ndarray, exact: np.ndarray, size: Any, dtype: np.dtype) -> float:
    """The largest difference as a share of the tolerance.

    The tolerance is two steps of the result's dtype, plus eight steps of float32 at the magnitude of the sum:
    the error of a float32 sum of thousands of terms.
    """
    steps = ml_dtypes.finfo(dtype)
    allowed = 2 * float(steps.eps) * np.abs(exact) + 8 * 2**-23 * size + float(steps.smallest_subnormal)
    return float(np.max(np.abs(answer.astype(np.float64) - exact) / allowed, initial=0))


# ------------------------------------------------------------------------------------------------ speed


@dataclass(frozen=True)
class Limits:
    """How long to measure: seconds per call, the longest call to time, the sizes (products leave out the
    `large` ones), and the approximate seconds for everything."""

    seconds: float = 0.5
    longest: float = 4.0
    sizes: tuple[tuple[int, int], ...] = (*DECODE, *PREFILL)
    large: tuple[tuple[int, int], ...] = LARGE
    total: float = math.inf


QUICK = Limits(0.07, 0.5, (*DECODE, PREFILL[0]), ())


def speed(
    names: Sequence[str],
    ops: Sequence[str],
    dtypes: Sequence[str],
    sizes: Sequence[tuple[int, int]] | None,
    data: Data,
    limits: Limits,
    on_progress: Told,
) -> list[dict[str, Any]]:
    """Time every backend, and PyTorch if it is installed, in turns on the same arrays.

    `sizes` None means decode, prefill and large, from `limits`. Each case may use its share of the remaining
    time; if that is short, it gets fewer rounds. Cases with little work come first, so that the few long
    calls can use the time that the others left.
    """
    cases = [
        (OPS[op], dtype, *size)
        for op in ops
        for dtype in dtypes
        for size in sorted(sizes or (*limits.sizes, *(() if is_contraction(OPS[op]) else limits.large)))
    ]
    pace: dict[tuple[str, str, str], float] = {}
    found: dict[int, list[dict[str, Any]]] = {}
    budget = measure.Budget(limits.total)
    for done, i in enumerate(sorted(range(len(cases)), key=lambda i: work(cases[i][0], *cases[i][2:]))):
        op, dtype, rows, cols = cases[i]
        on_progress(done, len(cases), f"{op.name} {rows}x{cols} {dtype}")
        share = replace(limits, total=budget.left() / (len(cases) - done))
        found[i] = list(_time_case(names, op, dtype, rows, cols, data, share, pace))
    on_progress(len(cases), len(cases), "")
    return [row for i in range(len(cases)) for row in found[i]]


def work(op: Op, rows: int, cols: int) -> int:
    """Innermost steps of an op on (rows, cols), to which its time is proportional."""
    return case_of(op, rows, cols).steps(op)


def _time_case(
    names: Sequence[str],
    op: Op,
    dtype: str,
    rows: int,
    cols: int,
    data: Data,
    limits: Limits,
    pace: dict[tuple[str, str, str], float],
) -> Iterator[dict[str, Any]]:
    """A row of figures for each implementation; `pace` keeps seconds per step to predict the next size."""
    arrays = data.inputs(op, rows, cols, DTYPES[dtype], np.random.default_rng(0))
    parameters = case_of(op, rows, cols).parameters
    steps = work(op, rows, cols)
    calls, skipped = {}, {}
    for name in [*names, *([TORCH] if measure.optional(TORCH) else [])]:
        expected = pace.get((op.name, dtype, name), 0) * steps
        if expected > limits.longest:
            skipped[name] = f"would take about {expected:.0f} s a call"
        elif call := make_call(name, op, arrays, parameters):
            calls[name] = call
    with silence_warnings():
        times = measure.compare(calls, limits.seconds, within=limits.total)
    # A product with one row is limited by memory; with more rows a step takes about an eighth of the time.
    steps_paid = steps * (8 if is_contraction(op) and rows == 1 else 1)
    pace |= {(op.name, dtype, name): timing.median / steps_paid for name, timing in times.items()}
    case = {"op": op.name, "dtype": dtype, "rows": rows, "cols": cols}
    for name, timing in times.items():
        peers = {
            f"vs_{peer}": times[key].median / timing.median for peer, key in PEERS.items() if key in times
        }
        yield case | {"implementation": name} | _figures(timing, op, arrays, steps) | peers
    for name, why in skipped.items():
        yield case | {"implementation": name, "skipped": why}


def _figures(timing: measure.Timing, op: Op, arrays: list[Any], steps: int) -> dict[str, Any]:
    nbytes = bytes_moved(op, arrays)
    figures = asdict(timing) | {"bytes": nbytes, "gb_s": nbytes / timing.median / 1e9}
    return figures | ({"gflop_s": 2 * steps / timing.median / 1e9} if is_contraction(op) else {})


@contextlib.contextmanager
def silence_warnings() -> Iterator[None]:
    """Turn off NumPy's overflow warnings and PyTorch's gradients, which must not be timed."""
    torch = measure.optional(TORCH)
    with np.errstate(all="ignore"), torch.inference_mode() if torch else contextlib.nullcontext():
        yield


def bytes_moved(op: Op, arrays: list[Any]) -> int:
    """Bytes that a call must move: each input and result once; of a table, only the rows in use."""
    if op.gives_quantized:
        return op.nbytes(arrays)
    outs = [np.broadcast_to(np.zeros((), op.result_dtype(arrays)), shape) for shape in op.out_shapes(arrays)]
    if op.operands[0].kind == "index":
        return op.nbytes(arrays[:1], *outs, *outs)
    return op.nbytes(arrays, *outs)


def make_call(
    name: str, op: Op, arrays: list[Any], parameters: dict[str, Any] | None = None
) -> Callable[[], Any] | None:
    """A call of the op with these arrays on a backend or PyTorch; None if PyTorch has no such op."""
    if name == TORCH:
        return torch_call(op.name, arrays)
    kernel = backends.kernel(op.name, name)
    return lambda: kernel(*arrays, **(parameters or {}))
