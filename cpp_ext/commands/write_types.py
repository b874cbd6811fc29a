"""write_types: write airllm/tensor_ops.pyi, the ops as type checkers see them.

The ops' public functions are made when airllm.tensor_ops is imported, from the declarations there; a type
checker does not see them. The file is committed, since editors read it.
"""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_args

from . import probes

HELP = "write the types of the ops for type checkers"
STUB = probes.CHECKOUT / "airllm" / "tensor_ops.pyi"
HEAD = '''"""The ops' types. `python setup.py write_types` generates this file from airllm/tensor_ops.py.

NumPy's arrays give NumPy's arrays; arrays of other libraries, and lists, give the same kind.
"""

from typing import Any, Literal, overload

from numpy.typing import NDArray

'''
# The type of an array parameter of a kind that is not NumPy's array alone.
ALSO = {"stored": "NDArray[Any] | Quantized", "quantized": "Quantized"}
LINE = 110


def add_options(parser) -> None:
    """This command has no options."""


def run(options) -> None:
    STUB.write_text(written(), encoding="utf-8")
    print(f"wrote {STUB.relative_to(probes.CHECKOUT)}")


def written() -> str:
    """The text of the stub."""
    from airllm import tensor_ops  # needs NumPy, which other commands do without

    functions = [name for name in tensor_ops.__all__ if name not in tensor_ops.OPS]
    ours = [name for name in functions if getattr(tensor_ops, name).__module__ == tensor_ops.__name__]
    parts = [*imports(tensor_ops, sorted({*functions} - {*ours}))]
    parts += ["from airllm.ops.op import OPS as OPS\n\n", listed(tensor_ops.__all__), "\n"]
    for op in tensor_ops.OPS.values():
        parts += op_lines(op)
    parts += [line(name, inspect.signature(getattr(tensor_ops, name))) for name in ours]
    return HEAD + "".join(parts)


def imports(module: ModuleType, names: list[str]) -> Iterator[str]:
    """What the module exports of others, by the module that defines it."""
    homes: dict[str, list[str]] = {}
    for name in names:
        homes.setdefault(getattr(module, name).__module__, []).append(name)
    for home in sorted(homes):
        again = ", ".join(f"{name} as {name}" for name in homes[home])
        text = f"from {home} import {again}\n"
        inner = "".join(f"    {name} as {name},\n" for name in homes[home])
        yield text if len(text) <= LINE else f"from {home} import (\n{inner})\n"


def listed(names: list[str]) -> str:
    return "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"


def op_lines(op: Any) -> Iterator[str]:
    """An op of NumPy's arrays, and of others; one that reads no array of NumPy's has only one form."""
    result = tuple(ALSO.get(each.kind, "NDArray[Any]") for each in op.outs)
    numpy = {each.name: type_of(each) for each in op.operands}
    returned = result[0] if len(result) == 1 else f"tuple[{', '.join(result)}]"
    forms = [op_signature(op, numpy, returned)]
    if numpy and next(iter(numpy.values())) != "Quantized":
        other = ALSO.get(op.outs[0].kind, "Any") if len(result) == 1 else "tuple[Any, ...]"
        forms.append(op_signature(op, dict.fromkeys(numpy, "Any"), other))
    for form in forms:
        yield ("@overload\n" if len(forms) > 1 else "") + line(op.name, form)


def type_of(operand: Any) -> str:
    return ALSO.get(operand.kind, "NDArray[Any]") + (" | None" if operand.optional else "")


def op_signature(op: Any, arrays: dict[str, str], returned: str) -> inspect.Signature:
    out = "Any" if returned in ("Any", "tuple[Any, ...]") else f"{returned} | None"
    types = {**arrays, "out": out, "backend": "str | None"}
    parameters = [
        each.replace(annotation=Text(types.get(name) or shown(each.annotation)))
        for name, each in op.signature.parameters.items()
    ]
    return inspect.Signature(parameters, return_annotation=Text(returned))


class Text:
    """An annotation that is printed as it is."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def shown(annotation: Any) -> str:
    """The text of a parameter's annotation; a positive number is a float to its caller."""
    if annotation is inspect.Parameter.empty:
        return "Any"
    parts = get_args(annotation) if not str(annotation).startswith("typing.Literal") else ()
    if type(None) in parts:
        return " | ".join("None" if part is type(None) else shown(part) for part in parts)
    if getattr(annotation, "__supertype__", None):
        return annotation.__supertype__.__name__
    return annotation.__name__ if isinstance(annotation, type) else _text(annotation)


def _text(annotation: Any) -> str:
    return str(annotation).replace("typing.", "").replace("numpy.ndarray", "NDArray[Any]")


def line(name: str, found: inspect.Signature) -> str:
    """A function's line; defaults are left out, as typeshed does for values that do not matter to types."""
    parts: list[str] = []
    star = False
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not star:
            parts, star = [*parts, "*"], True
        annotation = each.annotation if isinstance(each.annotation, Text) else shown(each.annotation)
        parts.append(f"{each.name}: {annotation}" + ("" if each.default is each.empty else " = ..."))
    returned = found.return_annotation
    result = returned if isinstance(returned, Text) else shown(returned)
    text = f"def {name}({', '.join(parts)}) -> {result}: ...\n"
    if len(text) <= LINE:
        return text
    inner = "".join(f"    {part},\n" for part in parts)
    return text.partition("(")[0] + f"(\n{inner}) ->" + text.rpartition(") ->")[2]
