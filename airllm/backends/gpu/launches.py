"""The launch table of the kernels in `cpp_ext/gpu_kernels/`: kernels, arguments and grid for each op."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from airllm import formats
from airllm.backends.device import launch_plan
from airllm.backends.device.launch_plan import FORMATS, TYPES, KernelCall, ceil_div, is_quantized
from airllm.backends.device.strides import batch_strides, element_strides, leading_strides

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_STORED = {"f32": 1, "f16": 2, "bf16": 3} | FORMATS
_PACK_BYTES = 16  # bytes that a work-item of a row kernel reads at once
_GROUP = 256
LEAST_GROUP = 64  # work-items, as many as run in step on some GPUs
_MOST_GROUPS = 2**16  # work-groups of element kernels, whose work-items loop over further packs
_FEW_ROWS = 4
_FEW_VECTORS = 8
_MANY_QUERIES = 16  # from this many, attention uses tiles
_LONGEST_DOT = 512  # of attention by tiles: a tile computes a score as one sum
FEWEST_KEYS = 256  # of attention: per work-group, at least
VECTORS_ON_CPU = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")  # cpu_devices/linear/ reads them by eight
SHARES = 8  # of such a product, per compute unit
_SCRATCH_FLOATS = 22  # per work-group and step of k: cpu_devices/matmul/matmul.inc


@dataclass(frozen=True)
class Launch:
    """A kernel, its family (a header that is compiled separately), its arguments, and its grid.

    Arguments are in the kernel's order: the name of a buffer (an array parameter, a result "out" or "out0",
    "out1", or scratch memory), None for an array that was not given, or a NumPy scalar.
    """

    family: str
    kernel: str
    arguments: tuple[Any, ...]
    groups: int
    group: int = 1

    @property
    def kind(self) -> tuple[Any, ...]:
        """What of it is not its arguments."""
        return self.family, self.kernel, self.groups, self.group


Plan: TypeAlias = launch_plan.Plan[Launch]


@dataclass(frozen=True)
class Call(KernelCall):
    """The input of a plan: the call, the first result's shape, and the device."""

    shape: tuple[int, ...]
    form: str
    compute_units: int

    @property
    def first(self) -> Any:
        return next(iter(self.arrays.values()))

    @property
    def pack(self) -> int:
        return _PACK_BYTES // self.first.dtype.itemsize

    def kernel(self, op: str = "", suffix: str = "") -> str:
        """The name of the kernel for the first array's dtype, of this op or another."""
        form = "cpu_" if self.form == "cpu" else ""
        return f"{form}{op or self.op}_{SHORT[self.first.dtype.name]}{suffix}"

    def types(self, *names: str) -> tuple:
        """The type numbers of arrays whose dtype the kernel checks at run time; 0 for one not given."""
        return tuple(np.uint32(type_of(self.arrays.get(name))) for name in names)

    def given_names(self, *names: str) -> tuple:
        """The names of arrays, None for those not given or empty."""
        return tuple(name if self.has(name) else None for name in names)


def type_of(array: Any) -> int:
    return 0 if array is None else TYPES[array.dtype.name]


def _elements(call: Call, op: str = "") -> Plan:
    """Each work-item strides over packs (gpu) or loops over one chunk (cpu)."""
    count = prod(call.shape)
    arguments = (*call.arrays, "out", np.uint64(count))
    if call.form == "cpu":
        groups, group = min(ceil_div(count, 4096), 4 * call.compute_units), 1
    else:
        groups, group = min(ceil_div(count, call.pack * _GROUP), _MOST_GROUPS), _GROUP
    return Plan((Launch("elements", call.kernel(op), arguments, groups, group),))


def _gelu(call: Call) -> Plan:
    """The tanh or the erf kernel."""
    tanh = call.parameters["approximate"] == "tanh"
    return _elements(call, call.op if tanh else f"{call.op}_erf")


def _by_row(call: Call, kernel: str, memory: Sequence[Any], *numbers: Any) -> Plan:
    """A work-group (gpu) or a work-item (cpu) per row; the row count and length follow the buffers."""
    rows, dim = prod(call.shape[:-1]), call.shape[-1]
    arguments = (*memory, *_numbers(rows, dim), *numbers)
    if call.form == "cpu":
        return Plan((Launch("rows", kernel, arguments, rows),))
    group = min(_GROUP, max(LEAST_GROUP, _power_of_two(ceil_div(dim, call.pack))))
    return Plan((Launch("rows", kernel, arguments, min(rows, 2**20), group),))


def _rms_norm(call: Call) -> Plan:
    x, weight = (SHORT[call.arrays[name].dtype.name] for name in ("x", "weight"))
    kernel = call.kernel(suffix="" if x == weight else f"_weight_{weight}")
    return _by_row(call, kernel, ("x", "weight", "out"), call.number("eps"))


def _layer_norm(call: Call) -> Plan:
    memory = (*call.given_names("x", "weight", "bias"), "out")
    return _by_row(call, call.kernel(), memory, call.number("eps"), *call.types("weight", "bias"))


def _add_rms_norm(call: Call) -> Plan:
    memory = ("x", "residual", "weight", "out0", "out1")
    return _by_row(call, call.kernel(), memory, call.number("eps"), *call.types("weight"))


def _softmax(call: Call) -> Plan:
    mask, scale = call.arrays.get("mask"), call.parameters["scale"]
    if mask is None and scale == 1.0:
        return _by_row(call, call.kernel(), ("x", "out"))
    memory = (*call.given_names("x", "mask"), "out")
    numbers = (call.number("scale"), *call.types("mask"), *leading_strides(call.shape[:-1], mask, 1))
    return _by_row(call, call.kernel("masked_softmax"), memory, *numbers)


def _apply_rope(call: Call) -> Plan:
    """Several work-items per row and several rows per work-group (gpu), or a work-item per row (cpu)."""
    rows, dim, r = prod(call.shape[:-1]), call.shape[-1], call.arrays["cos"].shape[-1]
    group, items_per_row = (
        (1, 1) if call.form == "cpu" else (_GROUP, min(_GROUP, _power_of_two(max(r, dim - 2 * r))))
    )
    arguments = (
        *(*call.given_names("x", "cos", "sin"), "out", *_numbers(rows, dim, r)),
        np.uint32(bool(call.parameters["interleaved"])),
        *call.types("cos", "sin"),
        np.uint32(items_per_row),
        *leading_strides(call.shape[:-1], call.arrays["cos"], 1),
    )
    groups = min(ceil_div(rows, group // items_per_row), 2**20)
    return Plan((Launch("rope", call.kernel(), arguments, groups, group),))


def _matmul(call: Call) -> Plan:
    """A product per leading index; one tall product if all share a 2-D b."""
    a, b = call.arrays["a"], call.arrays["b"]
    *lead, m, k = a.shape
    n = b.shape[-1]
    batch, m = (1, prod(lead) * m) if len(b.shape) == 2 else (prod(lead), m)
    arguments = ("a", "b", "out", *_numbers(batch, m, n, k))
    if call.form == "cpu":
        return _cpu_matmul(call, arguments, batch, m, n, k)
    large = batch * ceil_div(m, 128) * ceil_div(n, 128)
    if m <= _FEW_ROWS:
        kernel, groups = call.kernel("matmul_row"), batch * m * ceil_div(n, 32)
    elif large >= 2 * call.compute_units:
        kernel, groups = call.kernel(suffix="_tile128"), large
    else:
        kernel, groups = call.kernel(suffix="_tile64"), batch * ceil_div(m, 64) * ceil_div(n, 64)
    return Plan((Launch("matmul", kernel, arguments, groups, _GROUP),))


def _cpu_matmul(call: Call, arguments: tuple, batch: int, m: int, n: int, k: int) -> Plan:
    most = 4 * call.compute_units
    if m <= _FEW_ROWS:
        groups = min(batch * m * ceil_div(n, 128), 4 * most)
        return Plan((Launch("matmul", call.kernel("matmul_row"), arguments, groups),))
    groups = min(batch * ceil_div(m, 240) * ceil_div(n, 16), most)
    launch = Launch("matmul", call.kernel(), (*arguments, "scratch"), groups)
    return Plan((launch,), {"scratch": 4 * groups * k * _SCRATCH_FLOATS})


def _attention(call: Call) -> Plan:
    """Tiles of 64 queries; for few queries, one query and a part of the keys per work-group."""
    call, q_parts, q_apart = call.with_one_part()
    *lead, heads, t, e = call.shape
    d, k = call.arrays["q"].shape[-1], call.arrays["k"]
    batch, numbers = prod(lead), (*_numbers(q_parts, q_apart), *_attention_numbers(call))
    memory = (*call.given_names("q", "k", "v", "mask", "sinks"), "out")
    kind = k.format if is_quantized(k) else SHORT[k.dtype.name]
    if call.form == "cpu":
        groups = min(batch * heads * t, 4 * call.compute_units)
        launch = Launch("attention", f"cpu_attention_{kind}", (*memory, "scratch", *numbers), groups)
        return Plan((launch,), {"scratch": 4 * groups * (8 * ceil_div(d, 8) + 8 * ceil_div(e, 8))})
    across = ceil_div(e, 128)
    if t >= _MANY_QUERIES and d <= _LONGEST_DOT:
        groups = batch * heads * ceil_div(t, 64) * across
        arguments = (*memory, *_attention_numbers(call))
        return Plan((Launch("attention", f"attention_tile_{kind}", arguments, groups, _GROUP),))
    rows, splits = batch * heads * t, splits_of(call)
    arguments = (*memory, "partial" if splits > 1 else None, None, *_numbers(splits), *numbers)
    parts = Launch("attention", f"attention_row_{kind}", arguments, rows * across * splits, 128)
    if splits == 1:
        return Plan((parts,))
    combine = _combine(rows, e, splits, *call.types("q"))
    return Plan((parts, combine), {"partial": 4 * rows * splits * (e + 2)})


def splits_of(call: Call) -> int:
    """Into how many parts a GPU divides the keys of attention, whose results are merged."""
    *lead, heads, t, e = call.shape
    s, rows = call.arrays["k"].shape[-2], prod(lead) * heads * t
    if call.form == "cpu" or (t >= _MANY_QUERIES and call.arrays["q"].shape[-1] <= _LONGEST_DOT):
        return 1
    seen = min(s, call.parameters.get("window") or s)
    wanted = ceil_div(4 * call.compute_units, rows * ceil_div(e, 128))
    return max(1, min(wanted, ceil_div(seen, FEWEST_KEYS)))


def attention_parts(call: Call) -> Plan:
    """The parts of attention alone, which `merge_parts` merges."""
    parts = _attention(call).launches[0]
    arguments = tuple(None if isinstance(each, str) and each == "out" else each for each in parts.arguments)
    return Plan((replace(parts, arguments=arguments),))


def merge_parts(partial: Any) -> Plan:
    """out of the parts (rows, splits, 2 + columns) of attention."""
    rows, splits, e = partial.shape
    return Plan((_combine(rows, e - 2, splits, np.uint32(TYPES["float32"])),))


def _combine(rows: int, e: int, splits: int, out_type: np.uint32) -> Launch:
    arguments = ("partial", "out", *_numbers(rows, e, splits), out_type)
    groups = min(ceil_div(rows * e, _GROUP), _MOST_GROUPS)
    return Launch("attention", "attention_combine", arguments, groups, _GROUP)


def _attention_numbers(call: Call) -> tuple:
    """The arguments in the macro ATTENTION of common/attention/attention.h."""
    *lead, heads, t, e = call.shape
    q, k, v, mask = arrays = [call.arrays.get(name) for name in ("q", "k", "v", "mask")]
    assert q is not None and k is not None
    d, groups, s = q.shape[-1], k.shape[-3], k.shape[-2]
    stored: list[Any] = [getattr(array, "data", array) if is_quantized(array) else array for array in arrays]
    inner, outer = batch_strides(lead, stored, 3)
    strides = [n for array, steps in zip(stored, outer, strict=True) for n in (*steps, *_own(array))]
    return (
        *_numbers(prod(lead), inner, heads, groups, t, s, d, e, *strides),
        *(
            *call.scale_and_softcap(),
            np.uint64(min(call.parameters["window"] or 0, 2**62)),
            np.uint32(bool(call.parameters["causal"])),
        ),
        *call.types("q", "mask", "sinks"),
    )


def _own(array: Any) -> list[int]:
    """Strides along the heads and rows of an array."""
    return element_strides(array, 2, 1)


def _linear(call: Call) -> Plan:
    return _product(call, "x", "weight", "bias", prod(call.shape[:-1]), np.float32(1))


def _matmul_vec(call: Call) -> Plan:
    return _product(call, "x", "w", None, 1, np.float32(1))


def _attention_scores(call: Call) -> Plan:
    return _product(call, "query", "keys", None, 1, call.number("scale"))


def _product(call: Call, x: str, weight: str, bias: str | None, m: int, scale: np.float32) -> Plan:
    """x @ weight^T, by pairs of weight rows for few rows of x, else by tiles."""
    stored, has_bias = call.arrays[weight], bias is not None and call.has(bias)
    name = stored.format if is_quantized(stored) else SHORT[stored.dtype.name]
    n, k = stored.shape
    memory = (*call.given_names(x, weight), bias if has_bias else None, "out")
    types = (*call.types(x), np.uint32(type_of(call.arrays[bias]) if bias and has_bias else 0))
    if call.form == "cpu" and name in VECTORS_ON_CPU and k % 32 == 0 and types[0] == TYPES["float32"]:
        groups = min(n, SHARES * call.compute_units)
        arguments = (*memory, *_numbers(m, n, k), scale, types[1])
        return Plan((Launch("linear", f"cpu_linear_{name}", arguments, groups),))
    if m > _FEW_VECTORS and call.form == "gpu":
        rows = stored.data if is_quantized(stored) else stored
        row_bytes = rows.shape[-1] * rows.dtype.itemsize
        arguments = (
            *memory,
            *_numbers(m, n, k, row_bytes),
            scale,
            types[0],
            np.uint32(_STORED[name]),
            types[1],
        )
        return Plan((Launch("linear", "linear_tile", arguments, ceil_div(m, 64) * ceil_div(n, 64), _GROUP),))
    group = 1 if call.form == "cpu" else min(128, max(LEAST_GROUP, _power_of_two(ceil_div(k, 32))))
    groups = min(ceil_div(n, 2) * ceil_div(m, 8), 2**20)
    arguments = (*memory, *_numbers(m, n, k), scale, *types)
    return Plan((Launch("linear", f"linear_{name}", arguments, groups, group),))


def _weighted_sum_rows(call: Call) -> Plan:
    matrix = call.arrays["matrix"]
    s, d = matrix.shape
    arguments = ("weights", "matrix", "out", *_numbers(s, d), *call.types("weights"))
    kernel = f"weighted_sum_rows_{SHORT[matrix.dtype.name]}"
    if call.form == "cpu":
        return Plan((Launch("matmul", f"cpu_{kernel}", arguments, ceil_div(d, 32)),))
    return Plan((Launch("matmul", kernel, arguments, ceil_div(d, 32), _GROUP),))


def _embedding(call: Call) -> Plan:
    table = call.arrays["table"]
    (rows, d), count = table.shape, prod(call.arrays["ids"].shape)
    name = table.format if is_quantized(table) else SHORT[table.dtype.name]
    arguments = ("ids", "table", "out", *_numbers(count, rows, d), *call.types("ids"))
    items = count * d // 16 if is_quantized(table) else count * d
    return _spread(call, "linear", f"embedding_{name}", arguments, items)


def _dequantize(call: Call) -> Plan:
    stored = call.arrays["q"]
    blocks = prod(call.shape) // formats.FORMATS[stored.format].values
    arguments = ("q", "out", *_numbers(blocks), np.uint32(TYPES["float32"]))
    return _spread(call, "linear", f"dequantize_{stored.format}", arguments, prod(call.shape) // 16)


def _spread(call: Call, family: str, kernel: str, arguments: tuple, items: int) -> Plan:
    """A grid-stride loop: each work-item takes an item, then the next ones beyond the grid."""
    if call.form == "cpu":
        return Plan((Launch(family, kernel, arguments, min(ceil_div(items, 256), 4 * call.compute_units)),))
    return Plan((Launch(family, kernel, arguments, min(ceil_div(items, _GROUP), _MOST_GROUPS), _GROUP),))


def _numbers(*counts: int) -> tuple:
    return tuple(np.uint64(count) for count in counts)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()


def dense_plan(array: Any, form: str, compute_units: int) -> Plan:
    """A dense copy "out" of "x" with non-negative strides. TooManyAxes if the kernel cannot copy it."""
    size = array.dtype.itemsize
    inner = 1 if array.shape and array.strides[-1] == size else 0
    dim = array.shape[-1] if inner else 1
    lead = array.shape[: len(array.shape) - inner]
    arguments = (
        "x",
        "out",
        *_numbers(prod(lead), dim),
        np.uint32(size),
        *leading_strides(lead, array, inner),
    )
    call = Call("dense_copy", {"x": array}, {}, array.shape, form, compute_units)
    return _spread(call, "elements", "dense_copy", arguments, prod(array.shape))


KERNELS: dict[str, Callable[[Call], Plan]] = {
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add_rms_norm": _add_rms_norm,
    "silu": _elements,
    "gelu": _gelu,
    "swiglu": _elements,
    "geglu": _gelu,
    "softmax": _softmax,
    "apply_rope": _apply_rope,
    "matmul": _matmul,
    "matmul_vec": _matmul_vec,
    "linear": _linear,
    "attention": _attention,
    "attention_scores": _attention_scores,
    "weighted_sum_rows": _weighted_sum_rows,
    "embedding": _embedding,
    "dequantize": _dequantize,
}


def plan_of(call: Call) -> Plan:
    """The launches of an op with non-empty results."""
    return KERNELS[call.op](call)
