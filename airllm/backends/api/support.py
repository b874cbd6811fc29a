"""Which ops each backend has kernels for; the other ops run their NumPy definition."""

from airllm.backends import registry
from airllm.formats import FORMATS
from airllm.ops.op import OPS

KERNEL, DEFINITION = "kernel", "NumPy"


def support_matrix() -> dict[str, dict[str, str]]:
    """For each op and each backend that runs here: "kernel", or "NumPy" for the definition.

    A backend that supports only some block formats says which: "kernel (q4_0, q8_0)", "kernel (all but
    iq1_s)" if it lacks fewer than it supports, or "kernel (floats)" if it supports none.
    """
    names = registry.available()
    return {
        op: {name: _how(op, registry.open_backend(name)) for name in names} for op in registry.definitions
    }


def _how(op: str, backend: registry.Backend) -> str:
    if backend.kernels[op] == registry.definitions[op]:
        return DEFINITION
    known = _formats_of(op, backend)
    missing = [name for name in FORMATS if name not in known]
    if not missing:
        return KERNEL
    which = "all but " + ", ".join(missing) if len(missing) < len(known) else ", ".join(known) or "floats"
    return f"{KERNEL} ({which})"


def _formats_of(op: str, backend: registry.Backend) -> list[str]:
    """The block formats that a kernel supports: all, if the op takes no stored array."""
    stored_formats = getattr(backend.module, "stored_formats", None)
    takes_stored = any(operand.kind in ("stored", "quantized") for operand in OPS[op].operands)
    known = stored_formats() if stored_formats and takes_stored else FORMATS
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
