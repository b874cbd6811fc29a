"""Adds to the documentation of each op the shapes and dtypes of its arrays, as the op declares them."""

from __future__ import annotations

from typing import Any

from airllm.ops.operands import Operand
from airllm.tensor_ops import OPS

# The kind of an operand -> what its array may hold.
_KINDS = {
    "any float": "floats of any dtype",
    "mask": "bool (True: keep) or floats to add",
    "stored": "floats of any dtype, or a Quantized",
    "quantized": "a Quantized",
    "index": "integers from 0 to {of} - 1",
    "number": "integers or floats",
}
_FLOATS = "float32, float16, bfloat16 or float64"


def shape(operand: Operand) -> str:
    """(..., d) for the axes "... d"; an axis that may be absent has a question mark."""
    axes = [f"{axis}?" if axis in operand.droppable else axis for axis in operand.axes]
    return f"({', '.join(axes)})"


def holds(operand: Operand, first: Operand | None) -> str:
    """What an array may hold; `first` is the first whose dtype the others have."""
    if operand.kind != "own":
        return _KINDS[operand.kind].format(of=operand.of)
    if first is None or operand is first:
        return _FLOATS
    return f"the dtype of ``{first.name}``" + ("" if operand.leads else ", or float32")


def lines(name: str) -> list[str]:
    """The lines that document the arrays of an op."""
    op = OPS[name]
    first = next((each for each in op.operands if each.kind == "own"), None)
    arrays = [
        f"* ``{each.name}`` ``{shape(each)}``{', optional' if each.optional else ''}: {holds(each, first)}"
        for each in op.operands
    ]
    results = ", ".join(f"``{shape(each)}``" for each in op.outs)
    rules = [f"* where {each.text}" for each in op.requirements]
    return ["", "Arrays:", "", *arrays, f"* result {results}", *rules, ""]


def _document(app: Any, what: str, name: str, thing: Any, options: Any, text: list[str]) -> None:
    module, _, op = name.rpartition(".")
    if module == "airllm.tensor_ops" and op in OPS:
        text += lines(op)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _document)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
