"""Which backend has a kernel of its own for which op; the rest run the op's NumPy definition there."""

from airllm.backends import registry
from airllm.formats import FORMATS
from airllm.ops.op import OPS

KERNEL, DEFINITION = "kernel", "NumPy"


def support_matrix() -> dict[str, dict[str, str]]:
    """For each op and each backend that runs here: "kernel", or "NumPy" where the definition stands in.

    A backend that multiplies only some of the stored formats says which: "kernel (q4_0, q8_0)", or
    "kernel (floats)" if none of them.
    """
    names = registry.available()
    return {
        op: {name: _how(op, registry.open_backend(name)) for name in names} for op in registry.definitions
    }


def _how(op: str, backend: registry.Backend) -> str:
    if backend.kernels[op] == registry.definitions[op]:
        return DEFINITION
    formats = _some_formats(op, backend)
    return KERNEL if formats is None else f"{KERNEL} ({', '.join(formats) or 'floats'})"


def _some_formats(op: str, backend: registry.Backend) -> list[str] | None:
    """The stored formats that a kernel takes; None where it takes all, or none are meant for it."""
    stored_formats = getattr(backend.module, "stored_formats", None)
    takes_stored = any(operand.kind in ("stored", "quantized") for operand in OPS[op].operands)
    if stored_formats is None or not takes_stored or FORMATS.keys() <= (known := stored_formats()).keys():
        return None
    return [name for name in FORMATS if name in known]


def print_support_matrix() -> None:
    """Print the table of `support_matrix`: ops down, backends across."""
    matrix = support_matrix()
    names = registry.available()
    width = max(map(len, matrix))
    columns = {name: max(len(name), *(len(row[name]) for row in matrix.values())) for name in names}
    print(" " * width, *(f"{name:<{columns[name]}}" for name in names), sep="  ")
    for op, row in matrix.items():
        print(f"{op:<{width}}", *(f"{row[name]:<{columns[name]}}" for name in names), sep="  ")
