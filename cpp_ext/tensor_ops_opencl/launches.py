"""THE launch table: which kernel runs an op on these shapes, with which numbers, on how many work-groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_PACK_BYTES = 16  # that a work-item of a row kernel reads at once
_GROUP = 256
_MOST_GROUPS = 2**16  # of element kernels, whose work-items go on to further packs
_FEW_ROWS = 4
_SCRATCH_FLOATS = 22  # per group and step of k: cpu_matmul.inc


@dataclass(frozen=True)
class Launch:
    """A kernel's name, its numbers after the arrays, its grid, and the scratch memory it wants at the end."""

    kernel: str
    numbers: tuple
    groups: int
    group: int = 1
    scratch_bytes: int = 0


@dataclass(frozen=True)
class Call:
    """What a launch follows from: the op's name, its arrays, parameters and result shape, and the device."""

    op: str
    arrays: Sequence[Any]
    parameters: tuple
    shape: tuple[int, ...]
    form: str
    compute_units: int

    def kernel(self, suffix: str = "") -> str:
        """The kernel's name; a weight that is not of the first array's dtype is named in it."""
        first, *others = (SHORT[array.dtype.name] for array in self.arrays)
        weight = next((f"_weight_{other}" for other in others if other != first), "")
        return f"{'cpu_' if self.form == 'cpu' else ''}{self.op}_{first}{weight}{suffix}"

    @property
    def pack(self) -> int:
        return _PACK_BYTES // self.arrays[0].dtype.itemsize


def elements(call: Call) -> Launch:
    """Every work-item strides over packs (gpu) or walks one chunk (cpu)."""
    count = prod(call.shape)
    if call.form == "cpu":
        return Launch(call.kernel(), _numbers(count), min(_ceil(count, 4096), 4 * call.compute_units))
    return Launch(call.kernel(), _numbers(count), min(_ceil(count, call.pack * _GROUP), _MOST_GROUPS), _GROUP)


def rows(call: Call) -> Launch:
    """A work-group (gpu) or a work-item (cpu) per row; the op's parameters follow as floats."""
    dim = call.shape[-1]
    count = prod(call.shape[:-1])
    with np.errstate(over="ignore"):  # a number beyond float32 is infinite, as it is to the other backends
        numbers = (*_numbers(count, dim), *map(np.float32, call.parameters))
    if call.form == "cpu":
        return Launch(call.kernel(), numbers, count)
    packs = _ceil(dim, call.pack)
    group = min(_GROUP, max(32, 1 << (packs - 1).bit_length()))
    return Launch(call.kernel(), numbers, min(count, 2**20), group)


def matmul(call: Call) -> Launch:
    """A product per leading index; one tall product where all share a 2-D b."""
    a, b = call.arrays
    *lead, m, k = a.shape
    n = b.shape[-1]
    batch, m = (1, prod(lead) * m) if len(b.shape) == 2 else (prod(lead), m)
    numbers = _numbers(batch, m, n, k)
    if call.form == "cpu":
        return _cpu_matmul(call, numbers, batch, m, n, k)
    if m <= _FEW_ROWS:
        return Launch(_as_rows(call.kernel()), numbers, batch * m * _ceil(n, 32), _GROUP)
    large = batch * _ceil(m, 128) * _ceil(n, 128)
    if large >= 2 * call.compute_units:
        return Launch(call.kernel("_tile128"), numbers, large, _GROUP)
    return Launch(call.kernel("_tile64"), numbers, batch * _ceil(m, 64) * _ceil(n, 64), _GROUP)


def _cpu_matmul(call: Call, numbers: tuple, batch: int, m: int, n: int, k: int) -> Launch:
    most = 4 * call.compute_units
    if m <= _FEW_ROWS:
        return Launch(_as_rows(call.kernel()), numbers, min(batch * m * _ceil(n, 128), 4 * most))
    groups = min(batch * _ceil(m, 240) * _ceil(n, 16), most)
    return Launch(call.kernel(), numbers, groups, scratch_bytes=4 * groups * k * _SCRATCH_FLOATS)


def _as_rows(kernel: str) -> str:
    return kernel.replace("matmul_", "matmul_row_")


def _numbers(*counts: int) -> tuple:
    return tuple(np.uint64(count) for count in counts)


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


KERNELS: dict[str, Callable[[Call], Launch]] = {
    "rms_norm": rows,
    "silu": elements,
    "gelu": elements,
    "softmax": rows,
    "matmul": matmul,
}


def launch_of(
    op: str, arrays: Sequence[Any], parameters: tuple, shape: tuple, form: str, compute_units: int
) -> Launch:
    """The launch of an op whose result is not empty."""
    return KERNELS[op](Call(op, arrays, parameters, shape, form, compute_units))
