"""Which ops each backend has kernels for; the other ops run their NumPy definition."""

from airllm.backends import registry
from airllm.formats import FORMATS
from airllm.ops.op import OPS

KERNEL, DEFINITION = "kernel", "NumPy"


def support_matrix() -> dict[str, dict[str, str]]:
    """For each op and each backend that runs here: "kernel", or "NumPy" for the definition.

    A backend that supports only some block formats lists them: "kernel (q4_0, q8_0)", or "kernel (floats)"
    if it supports none.
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
    """The block formats that a kernel supports; None if it supports all, or the op takes no stored array."""
    stored_formats = getattr(backend.module, "stored_formats", None)
    takes_stored = any(operand.kind in ("stored", "quantized") for operand in OPS[op].operands)
    if stored_formats is None or not takes_stored or FORMATS.keys() <= (known := stored_formats()).keys():
        return None
    return [name for name in FORMATS if name in known]


def print_support_matrix() -> None:
    """Print `support_matrix` as a table with ops as rows and backends as columns."""
    matrix = support_matrix()
    names = registry.available()
    width = max(map(len, matrix))
    columns = {name: max(len(name), *(len(row[name]) for row in matrix.values())) for name in names}
    print(" " * width, *(f"{name:<{columns[name]}}" for name in names), sep="  ")
    for op, row in matrix.items():
        print(f"{op:<{width}}", *(f"{row[name]:<{columns[name]}}" for name in names), sep="  ")
