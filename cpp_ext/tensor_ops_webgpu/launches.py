"""The launch table: the kernel, numbers and work-groups for each op and its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from airllm import formats
from airllm.backends.device import launch_plan
from airllm.backends.device.launch_plan import FORMATS, TYPES, KernelCall, ceil_div, is_quantized
from airllm.backends.device.strides import element_strides, leading_strides
from tensor_ops_webgpu.codebooks import OF_CODEBOOKS

_HALVES = ("float16", "bfloat16")
_MOST_GROUPS = 65535
_COUNTABLE = 2**32
_GROUP = 256
_REDUCTION = 8  # steps of a work-group's reduction
_FEW_ROWS = 4
_FEW_VECTORS = 8
_TILE = 64
# Invocations for a row of blocks: on a GPU neighbours should read what is adjacent, on a CPU all read one
# element of x.
LANES, LANES_ON_CPU = 8, 2
KEYS = 128  # keys per step of attention
_WIDEST_WINDOW = 2**30  # a kernel subtracts it from a position
_MOST_COLUMNS = 4 * KEYS  # columns of v, at most
_FORMULAS = {"silu": 1, "swiglu": 1, "gelu": 2, "geglu": 2}
_ERF = 3

# Inputs that may be in a block format; a kernel is made for each format.
STORED = {"matmul_tile": "b", "linear_row": "b", "linear_blocks": "b", "embedding": "table", "copy": "x"}
STORED |= dict.fromkeys(("linear_experts_blocks", "mixture_up", "mixture_down", "linear_beside"), "b")
STORED |= dict.fromkeys(("normed_linear", "latent_append", "linear_sum"), "b")
BLOCKS_32 = ("q8_0", "q4_0", "q4_1")  # products of whole blocks, without loops; of other formats by parts
_STEPS_OF_PART = 10


@dataclass(frozen=True)
class Launch:
    """A kernel, the memory of its bindings, its numbers in the order of their struct, and its grid.

    A binding's memory is the name of an array parameter, of a result ("out" or "out0", "out1") or of scratch
    memory, or None for an array that was not given. `steps` is the maximum of loop iterations in an
    invocation. An invocation writes pairs of neighbours; with `by_row`, pairs within a row, so two rows may
    share a word. `format`: that of its array of blocks, for which the kernel is made. `shared_format`: that
    of its array of a shared expert; `up_format` and `shared_up_format`: of what the gates of experts and of
    the shared one multiply, if that is apart.
    """

    kernel: str
    inputs: Mapping[str, str | None]
    outputs: Mapping[str, str]
    numbers: Mapping[str, Any]
    groups: int
    group: int
    steps: int
    by_row: bool = True
    format: str = ""
    lanes: int = 0
    shared_format: str = ""
    up_format: str = ""
    shared_up_format: str = ""

    @property
    def kind(self) -> Launch:
        """What of it is not its numbers."""
        return replace(self, numbers={})

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Its numbers in order."""
        return tuple(self.numbers.values())

    @property
    def missing(self) -> tuple[str, ...]:
        """Arrays that the kernel's text names, and that have no binding."""
        bound = {*self.inputs, *self.outputs}
        names = (name.removesuffix("_type") for name in self.numbers if name.endswith("_type"))
        return tuple(name for name in names if name not in bound)

    def without_missing(self) -> Launch:
        """The launch with bindings for given arrays alone: a device has few of them."""
        return replace(self, inputs={binding: name for binding, name in self.inputs.items() if name})

    @property
    def formats(self) -> tuple[str, ...]:
        """Those that the kernel is made for."""
        return self.format, self.shared_format, self.up_format, self.shared_up_format

    @property
    def reads_codebooks(self) -> bool:
        """Whether its last binding is that of the codebooks."""
        return not OF_CODEBOOKS.isdisjoint(self.formats)


Plan: TypeAlias = launch_plan.Plan[Launch]


@dataclass(frozen=True)
class Call(KernelCall):
    """The input of a plan: the call, the results by name, and the `lanes` of rows of blocks."""

    results: Mapping[str, Any]
    lanes: int = LANES

    @property
    def shape(self) -> tuple[int, ...]:
        return next(iter(self.results.values())).shape

    def launch(
        self,
        kernel: str,
        inputs: Mapping[str, str],
        tasks: int,
        steps: int,
        group: int = _GROUP,
        **numbers: Any,
    ) -> Launch:
        """A launch that writes all results, in `tasks` work-groups with `steps` steps each.

        Numbers that are ints have 32 bits.
        """
        given = {binding: name if self.has(name) else None for binding, name in inputs.items()}
        stored: Any = self.arrays.get(inputs.get(STORED.get(kernel, ""), ""))
        types = {f"{binding}_type": _type(self.arrays.get(name or "")) for binding, name in given.items()}
        types |= {f"{name}_type": _type(out) for name, out in self.results.items()}
        rest = {n: np.uint32(value) if isinstance(value, int) else value for n, value in numbers.items()}
        outputs = {name: name for name in self.results}
        groups = min(tasks, _MOST_GROUPS)
        all_steps = ceil_div(tasks, groups) * (steps + 1)
        format = stored.format if is_quantized(stored) else ""
        return Launch(kernel, given, outputs, types | rest, groups, group, all_steps, format=format)


def number(value: float) -> np.float32:
    """A number for a kernel."""
    return np.float32(value)


def _type(array: Any) -> np.uint32:
    if array is None:
        return np.uint32(0)
    return np.uint32(FORMATS[array.format] if is_quantized(array) else TYPES[array.dtype.name])


def _same_names(*names: str) -> dict[str, str]:
    """Bindings with the same names as the arrays."""
    return {name: name for name in names}


def _elements(call: Call) -> Launch:
    first, *second = call.arrays
    erf = call.parameters.get("approximate") == "none"
    inputs = {"x": first, "up": second[0] if second else ""}
    return _flat(call, "elements", inputs, formula=_ERF if erf else _FORMULAS[call.op])


def _flat(call: Call, kernel: str, inputs: Mapping[str, str], **numbers: Any) -> Launch:
    """A grid-stride loop: each invocation takes a pair of elements, then the next ones beyond the grid."""
    count = prod(call.shape)
    launch = call.launch(kernel, inputs, ceil_div(count, 2 * _GROUP), 1, count=count, **numbers)
    return replace(launch, by_row=False)


def _rows(call: Call, *inputs: str, **numbers: Any) -> Launch:
    """A work-group per row."""
    rows, d = prod(call.shape[:-1]), call.shape[-1]
    group = 64 if d <= 1024 else _GROUP
    steps = 3 * ceil_div(d, group) + 2 * _REDUCTION  # the maximum, in layer_norm and softmax
    return call.launch(call.op, _same_names(*inputs), rows, steps, group, rows=rows, d=d, **numbers)


def _rms_norm(call: Call) -> Launch:
    return _rows(call, "x", "weight", eps=call.number("eps"))


def _layer_norm(call: Call) -> Launch:
    return _rows(call, "x", "weight", "bias", eps=call.number("eps"))


def _add_rms_norm(call: Call) -> Launch:
    return _rows(call, "x", "residual", "weight", eps=call.number("eps"))


def _softmax(call: Call) -> Launch:
    return _rows(call, "x", "mask", scale=call.number("scale"), **_start(call, "mask", call.shape[:-1], 1))


def _start(call: Call, name: str, lead: Sequence[int], inner: int) -> dict[str, Any]:
    """The numbers for NAME_start: sizes of a result's leading axes, and an array's strides along them."""
    strides = leading_strides(lead, call.arrays.get(name), inner)
    return dict(zip(_start_names(name), map(int, strides), strict=True))


def _start_names(name: str) -> list[str]:
    return [f"{name}_{field}" for field in ("n1", "n2", "n3", "s0", "s1", "s2", "s3")]


def _apply_rope(call: Call) -> Launch:
    numbers = {"d": call.shape[-1], "r": call.arrays["cos"].shape[-1]}
    numbers |= {"interleaved": int(call.parameters["interleaved"])}
    numbers |= _start(call, "cos", call.shape[:-1], 1)
    return _flat(call, "apply_rope", _same_names("x", "cos", "sin"), **numbers)


def _matmul(call: Call) -> Launch:
    """A product per leading index; one tall product if all share a 2-D b."""
    b = call.arrays["b"]
    *lead, m, n = call.shape
    batch, m = (1, prod(lead) * m) if len(b.shape) == 2 else (prod(lead), m)
    return _product(call, _same_names("a", "b"), batch, m, n, b.shape[-2])


def _weighted_sum_rows(call: Call) -> Launch:
    s, d = call.arrays["matrix"].shape
    return _product(call, {"a": "weights", "b": "matrix"}, 1, 1, d, s)


def _product(call: Call, inputs: Mapping[str, str], batch: int, m: int, n: int, k: int) -> Launch:
    """a @ b, by columns for few rows, else by tiles."""
    sizes = {"batch": batch, "m": m, "n": n, "k": k, "b_step": k * n if batch > 1 else 0}
    if m <= _FEW_ROWS:
        return call.launch("matmul_row", inputs, batch * m * ceil_div(n, 64), ceil_div(k, 8) + 8, **sizes)
    return _tiles(call, {**inputs, "bias": ""}, sizes, 0, np.float32(1))


def _tiles(
    call: Call, inputs: Mapping[str, str], sizes: dict[str, int], transposed: int, scale: np.float32
) -> Launch:
    tasks = sizes["batch"] * ceil_div(sizes["m"], _TILE) * ceil_div(sizes["n"], _TILE)
    steps = 13 * ceil_div(sizes["k"], 16) + 4
    return call.launch("matmul_tile", inputs, tasks, steps, **sizes, transposed=transposed, scale=scale)


def _linear(call: Call) -> Launch:
    return _transposed_product(call, "x", "weight", "bias", prod(call.shape[:-1]), np.float32(1))


def _matmul_vec(call: Call) -> Launch:
    return _transposed_product(call, "x", "w", "", 1, np.float32(1))


def _attention_scores(call: Call) -> Launch:
    return _transposed_product(call, "query", "keys", "", 1, call.number("scale"))


def _transposed_product(call: Call, x: str, weight: str, bias: str, m: int, scale: np.float32) -> Launch:
    """x @ weight^T, by pairs of weight rows for few rows of x, else by tiles."""
    n, k = call.arrays[weight].shape
    inputs = {"a": x, "b": weight, "bias": bias}
    if m <= _FEW_VECTORS and is_quantized(call.arrays[weight]) and call.arrays[x].dtype == np.float32:
        return of_blocks(call, inputs, m, n, k, scale)
    if m <= _FEW_VECTORS:
        group = 64 if k <= 4096 else _GROUP
        steps = ceil_div(k, group) * (m + 4) + m * (1 + 2 * _REDUCTION)
        return call.launch("linear_row", inputs, ceil_div(n, 2), steps, group, m=m, n=n, k=k, scale=scale)
    sizes = {"batch": 1, "m": m, "n": n, "k": k, "b_step": 0}
    return _tiles(call, inputs, sizes, 1, scale)


def of_blocks(
    call: Call, inputs: Mapping[str, str], m: int, n: int, k: int, scale: np.float32, activation: int = 0
) -> Launch:
    """The product with blocks that are read as words, by `call.lanes` invocations for a row."""
    weight, gated = call.arrays[inputs["b"]], 1 + (activation > 0)
    tasks = ceil_div(n, 64 // call.lanes)
    steps = m * (gated * steps_of_row(weight, k, call.lanes) + 2 * call.lanes + 1)
    numbers = {"m": m, "n": n, "k": k, "scale": scale, "activation": activation}
    launch = call.launch("linear_blocks", inputs, tasks, steps, 64, **numbers)
    return replace(launch, lanes=call.lanes)


def steps_of_row(weight: Any, k: int, lanes: int) -> int:
    """The steps of an invocation for a row of such a weight."""
    return ceil_div(k, 32 * lanes) * (1 if weight.format in BLOCKS_32 else _STEPS_OF_PART)


def _attention(call: Call) -> Launch:
    call, parts, apart = call.with_one_part()
    *lead, heads, t, e = call.shape
    q, k = call.arrays["q"], call.arrays["k"]
    if e > _MOST_COLUMNS:
        raise NotImplementedError(f"attention: v has rows of {e}, expected at most {_MOST_COLUMNS} on WebGPU")
    d, (key_heads, s), rows = q.shape[-1], k.shape[-3:-1], prod(call.shape[:-1])
    scale, softcap = call.scale_and_softcap()
    numbers = {"rows": rows, "heads": heads, "key_heads": key_heads, "t": t, "s": s, "d": d, "e": e}
    numbers |= {"scale": scale, "softcap": softcap}
    numbers |= {"window": min(call.parameters["window"] or 0, _WIDEST_WINDOW)}
    numbers |= {"causal": int(call.parameters["causal"]), "q_parts": parts, "q_apart": apart}
    numbers |= _start(call, "q", call.shape[:-1], 1)
    for name in ("k", "v"):
        values = _by_values(call.arrays[name])
        starts = leading_strides(lead, values, 3)
        numbers |= dict(zip(_start_names(name), map(int, starts), strict=True))
        steps = element_strides(values, 2, 1)
        numbers |= dict(zip((f"{name}_head", f"{name}_row"), steps, strict=True))
    numbers |= _start(call, "mask", call.shape[:-1], 1)
    of_queries = ceil_div(d, KEYS) * parts if parts > 1 else 0
    of_keys = d + _REDUCTION + ceil_div(e, 2 * KEYS) * (KEYS + 1) + 3
    steps = of_queries + ceil_div(s, KEYS) * of_keys + _REDUCTION + 4
    return call.launch("attention", _same_names("q", "k", "v", "mask", "sinks"), rows, steps, KEYS, **numbers)


class _Values(NamedTuple):
    """An array of blocks by its values: strides count them as if each took `dtype`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype


def _by_values(array: Any) -> Any:
    """An array whose strides are in values. All strides of blocks are whole blocks."""
    if not is_quantized(array):
        return array
    of, item = formats.FORMATS[array.format], np.dtype(np.float32)
    strides = tuple(step // of.bytes * of.values * item.itemsize for step in array.data.strides)
    return _Values(array.shape, strides, item)


def _embedding(call: Call) -> Launch:
    rows, d = call.arrays["table"].shape
    return _flat(call, "embedding", _same_names("ids", "table"), rows=rows, d=d)


def _dequantize(call: Call) -> Launch:
    return _flat(call, "copy", {"x": "q"})


KERNELS: dict[str, Callable[[Call], Launch]] = {
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add_rms_norm": _add_rms_norm,
    "silu": _elements,
    "gelu": _elements,
    "swiglu": _elements,
    "geglu": _elements,
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
    """The launches of an op with non-empty results.

    NotImplementedError for an array with more values than a kernel can count.
    """
    for name, array in (*call.arrays.items(), *call.results.items()):
        if (count := prod(array.shape)) >= _COUNTABLE:
            found = f"{call.op}: {name} has {count} values"
            raise NotImplementedError(f"{found}, expected less than 2^32, as WebGPU counts in 32 bits")
    launch = KERNELS[call.op](call)
    halves = [name for name, out in call.results.items() if out.dtype.name in _HALVES]
    if not halves or not launch.by_row or call.shape[-1] % 2 == 0:
        return Plan((launch,))
    return _by_way_of_float32(call, launch)


def _by_way_of_float32(call: Call, launch: Launch) -> Plan:
    """Compute in float32, then convert all rows at once: rows with an odd number of halves share words."""
    wide = {name: f"wide_{name}" for name in launch.outputs}
    types = {f"{name}_type": np.uint32(TYPES["float32"]) for name in wide}
    launches = [replace(launch, outputs=wide, numbers={**launch.numbers, **types})]
    for name, out in call.results.items():
        narrowing = Call("", {wide[name]: _Float32(out.shape)}, {}, {"out": out})
        copied = _flat(narrowing, "copy", {"x": wide[name]})
        launches.append(replace(copied, outputs={"out": name}))
    return Plan(tuple(launches), {wide[n]: 4 * prod(out.shape) for n, out in call.results.items()})


@dataclass(frozen=True)
class _Float32:
    """Scratch memory as a float32 array."""

    shape: tuple[int, ...]
    dtype: np.dtype = np.dtype(np.float32)
