"""The array shapes and parameters of each op for a benchmark size "rows x columns".

`rows` is the number of tokens (1 for decode), `cols` the width of a model. By default the first array is
(rows, cols) and every other axis has size `cols`, so a product is (rows, cols) by (cols, cols). A table here
lists the exceptions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from airllm.ops.op import Op
from airllm.ops.operands import Operand

DECODE_KEYS = 2048  # keys of one query in decode
VOCABULARY = 8192
BLOCK = 256  # columns in block formats are a multiple of this


@dataclass(frozen=True)
class Case:
    """The axis sizes, leading axes (`batch`, or an array's own) and parameters of a call."""

    sizes: dict[str, int]
    batch: tuple[int, ...] = ()
    batches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    def shape(self, operand: Operand) -> tuple[int, ...]:
        batch = self.batches.get(operand.name, self.batch) if operand.leads else ()
        return (*batch, *(self.sizes[axis] for axis in operand.inner))

    def steps(self, op: Op) -> int:
        """Innermost steps: the elements of the largest array, or the multiplications of a contraction."""
        if op.name == "attention":
            return prod(self.sizes[axis] for axis in ("h", "t", "s", "d")) * 2
        if is_contraction(op):
            return prod(self.batch) * prod(
                self.sizes[axis] for axis in {a for o in op.operands for a in o.inner}
            )
        return max(prod(self.shape(o)) for o in op.operands if o.kind != "stored")


def is_contraction(op: Op) -> bool:
    """Whether the op sums over an axis: a product, whose speed is given in FLOP/s."""
    inner = {axis for operand in op.operands for axis in operand.inner if operand.kind != "mask"}
    results = {axis for out in op.outs for axis in out.inner}
    return bool(inner - results) and op.operands[0].kind != "index" and op.name != "apply_rope"


def case_of(op: Op, rows: int, cols: int) -> Case:
    """The case of an op for a size."""
    return _SPECIAL[op.name](rows, cols) if op.name in _SPECIAL else _default_case(op, rows, cols)


def _default_case(op: Op, rows: int, cols: int) -> Case:
    first = op.operands[0].inner
    sizes = {axis: cols for operand in op.operands for axis in operand.inner}
    if len(first) > 1:
        return Case(sizes | {first[0]: rows})
    return Case(sizes, (rows,) if first else (rows, cols))


def _heads(cols: int) -> tuple[int, int]:
    """Number and width of the heads: width 64, as in small models, if it divides `cols`; else one head."""
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
