"""Generate functions with an op's own parameters from source text, as `dataclasses` does.

Python then binds the arguments itself. That takes a tenth of the time of inspect.Signature.bind, and avoids
the tuple and the dictionary that `*args, **kwargs` allocates in each call. With the body of `airllm.ops.op`,
the function generated for `gelu` is:

    def gelu(x=_default_x, approximate=_default_approximate, *, out=_default_out, backend=_default_backend):
        try:
            _chosen = _registry.require_backend(backend) if backend else _scoped() or _registry.process_wide
            if approximate is _default_approximate and out is _default_out:
                return _chosen.kernels['gelu'](x)
            return _chosen.kernels['gelu'](x, approximate=approximate, out=out)
        except (TypeError, ValueError, NotImplementedError):
            pass  # not one for the kernel as it stands: prepare it, or say what is wrong with it
        return _prepared({'x': x, 'approximate': approximate, 'out': out, 'backend': backend})

`x` is required: `_default_x` is MISSING.
"""

import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airllm.ops.declaration import Declaration

# The default of a required parameter: `check_given` raises the op's own message for it.
MISSING: Any = object()


def default(parameter: str) -> str:
    """The name of a parameter's default in a generated body."""
    return f"_default_{parameter}"


def check_given(op_name: str, arguments: Mapping[str, Any]) -> None:
    """TypeError if a required argument is missing."""
    for name, value in arguments.items():
        if value is MISSING:
            raise TypeError(f"{op_name}() missing required argument '{name}'")


def make_function(
    op: Declaration, keywords: Sequence[str], body: str, scope: Mapping[str, Any], module: str
) -> Callable:
    """`name(arrays..., parameters..., *, keywords...)` with this body and the op's documentation.

    The body sees the defaults and the names of `scope`. These begin with an underscore; parameters never do.
    """
    parameters = [p for n, p in op.signature.parameters.items() if n in keywords or p.kind != p.KEYWORD_ONLY]
    defaults = {default(p.name): MISSING if p.default is p.empty else p.default for p in parameters}
    names = [f"{p.name}={default(p.name)}" for p in parameters]
    if keywords:
        names.insert(len(parameters) - len(keywords), "*")
    text = f"def {op.name}({', '.join(names)}):\n{body}"
    file = f"<{module}.{op.name}>"
    known = {"__name__": module, **scope, **defaults}
    exec(compile(text, file, "exec"), known)
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # for tracebacks and debuggers
    result = known[op.name]
    result.__doc__, result.__annotations__ = op.definition.__doc__, dict(op.definition.__annotations__)
    result.__signature__ = inspect.Signature(parameters)
    return result
