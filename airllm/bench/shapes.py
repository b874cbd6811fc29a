"""What a size of "rows x columns" is for each op: how long its axes are, and its parameters.

`rows` is the tokens of a prompt (1 at decode), `cols` the width of a model. The first array is (rows, cols)
and every other axis has `cols` numbers, a product being (rows, cols) by (cols, cols), unless a line here
says otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from airllm.ops.op import Op
from airllm.ops.operands import Operand

DECODE_KEYS = 2048  # that one query attends to
VOCABULARY = 8192
BLOCK = 256  # the columns of stored formats are a multiple of this


@dataclass(frozen=True)
class Case:
    """Sizes of axes, leading axes (`batch`, or for some arrays their own), and parameters of a call."""

    sizes: dict[str, int]
    batch: tuple[int, ...] = ()
    batches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    def shape(self, operand: Operand) -> tuple[int, ...]:
        batch = self.batches.get(operand.name, self.batch) if operand.leads else ()
        return (*batch, *(self.sizes[axis] for axis in operand.inner))

    def steps(self, op: Op) -> int:
        """Innermost steps: the numbers in the largest array, or the products of a contraction."""
        if op.name == "attention":
            return prod(self.sizes[axis] for axis in ("h", "t", "s", "d")) * 2
        if is_contraction(op):
            return prod(self.batch) * prod(
                self.sizes[axis] for axis in {a for o in op.operands for a in o.inner}
            )
        return max(prod(self.shape(o)) for o in op.operands if o.kind != "stored")


def is_contraction(op: Op) -> bool:
    """Whether an axis of the arrays is summed away: a product, which FLOP/s describe."""
    inner = {axis for operand in op.operands for axis in operand.inner if operand.kind != "mask"}
    results = {axis for out in op.outs for axis in out.inner}
    return bool(inner - results) and op.operands[0].kind != "index" and op.name != "apply_rope"


def case_of(op: Op, rows: int, cols: int) -> Case:
    """The case of an op at a size."""
    return _SPECIAL[op.name](rows, cols) if op.name in _SPECIAL else _default_case(op, rows, cols)


def _default_case(op: Op, rows: int, cols: int) -> Case:
    first = op.operands[0].inner
    sizes = {axis: cols for operand in op.operands for axis in operand.inner}
    if len(first) > 1:
        return Case(sizes | {first[0]: rows})
    return Case(sizes, (rows,) if first else (rows, cols))


def _heads(cols: int) -> tuple[int, int]:
    """Heads and the width of one: 64, as small models have it, where that divides."""
    return (cols // 64, 64) if cols % 64 == 0 else (1, cols)


def _attention(rows: int, cols: int) -> Case:
    heads, width = _heads(cols)
    groups = next(heads // share for share in (4, 3, 1) if heads % share == 0)
    keys = rows if rows > 1 else DECODE_KEYS
    sizes = {"h": heads, "g": groups, "t": rows, "s": keys, "d": width, "e": width}
    return Case(sizes, parameters={"causal": True})


def _apply_rope(rows: int, cols: int) -> Case:
    heads, width = _heads(cols)
    return Case({"d": width, "r": width // 2}, (heads, rows), {"cos": (rows,), "sin": (rows,)})


def _blocks(rows: int, cols: int) -> Case:
    return Case({"k": -(-cols // BLOCK) * BLOCK}, (rows,))


_SPECIAL: dict[str, Callable[[int, int], Case]] = {
    "attention": _attention,
    "apply_rope": _apply_rope,
    "matmul_vec": lambda rows, cols: Case({"n": rows, "k": cols}),
    "attention_scores": lambda rows, cols: Case({"s": rows, "d": cols}),
    "weighted_sum_rows": lambda rows, cols: Case({"s": rows, "d": cols}),
    "embedding": lambda rows, cols: Case({"v": VOCABULARY, "d": cols}, (rows,)),
    "quantize": lambda rows, cols: Case(_blocks(rows, cols).sizes, (rows,), parameters={"format": "q8_0"}),
    "dequantize": _blocks,
}
