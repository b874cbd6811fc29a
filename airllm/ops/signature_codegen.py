"""Functions made from text, as dataclasses make theirs: with an op's own parameters.

Python itself then binds the arguments: in a tenth of the time of inspect.Signature.bind, and without the
tuple and the dictionary that `*args, **kwargs` cost each call.
"""

import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airllm.ops.declaration import Declaration

# What a parameter without a default has if it was not given: the op says so in words of its own.
MISSING: Any = object()


def default(parameter: str) -> str:
    """What a body calls the default of a parameter."""
    return f"_default_{parameter}"


def check_given(op_name: str, arguments: Mapping[str, Any]) -> None:
    """TypeError if an argument that has no default was not given."""
    for name, value in arguments.items():
        if value is MISSING:
            raise TypeError(f"{op_name}() missing required argument '{name}'")


def make_function(
    op: Declaration, keywords: Sequence[str], body: str, scope: Mapping[str, Any], module: str
) -> Callable:
    """`name(arrays..., parameters..., *, keywords...)` with this body, documented as the op is.

    The body sees `scope`, whose names begin with an underscore, as no parameter's does, and the defaults.
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
