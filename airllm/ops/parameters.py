"""Checks for an op's parameters other than arrays, by their annotations.

`eps: float`, `causal: bool`, `window: int | None`, `softcap: Positive | None`,
`approximate: Literal["tanh", "none"]`. An int is a count or a length and must be at least 1.
"""

import inspect
import numbers
import types
from typing import Any, Literal, NewType, Union, get_args, get_origin

Positive = NewType("Positive", float)  # more than 0

_NOUNS = {float: "a number", int: "a whole number", bool: "a bool", str: "a str", dict: "a dict"}


def check_value(op: str, parameter: inspect.Parameter, value: Any) -> Any:
    """Convert `value` to the annotated type of the parameter; TypeError or ValueError if it does not fit."""
    choices = _choices(parameter)
    if value is None and type(None) in choices:
        return None
    or_none = " or None" if type(None) in choices else ""
    (wanted,) = choices - {type(None)}
    if wanted is Any:
        return value
    found = f"{op}: {parameter.name} has"
    if wanted is Positive:
        return _positive(found, value, or_none)
    if get_origin(wanted) is Literal:
        return _one_of(found, value, get_args(wanted))
    if not _is(value, wanted):
        raise TypeError(f"{found} type {type(value).__name__}, expected {_NOUNS[wanted]}{or_none}")
    if wanted is int and value < 1:
        raise ValueError(f"{found} value {value}, expected 1 or more{or_none}")
    try:
        return wanted(value)
    except OverflowError:
        expected = "a number that a float holds"
        raise ValueError(f"{found} type {type(value).__name__}, expected {expected}") from None


def type_text(parameter: inspect.Parameter) -> str:
    """The annotated type of a parameter as text: "float", "int | None"."""
    choices = _choices(parameter)
    (wanted,) = choices - {type(None)}
    is_literal = get_origin(wanted) is Literal
    name = f"Literal[{', '.join(map(repr, get_args(wanted)))}]" if is_literal else wanted.__name__
    return name + " | None" * (type(None) in choices)


def _choices(parameter: inspect.Parameter) -> set[Any]:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        annotation = float if isinstance(parameter.default, float) else Any
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return set(get_args(annotation)) if is_union else {annotation}


def _one_of(found: str, value: Any, known: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{found} type {type(value).__name__}, expected a str")
    if value not in known:
        raise ValueError(f"{found} value {value!r}, expected {' or '.join(map(repr, known))}")
    return value


def _positive(found: str, value: Any, or_none: str) -> float:
    if not _is(value, float):
        raise TypeError(f"{found} type {type(value).__name__}, expected a number{or_none}")
    if value <= 0:
        raise ValueError(f"{found} value {value}, expected more than 0{or_none}")
    return float(value)


def _is(value: Any, expected: type) -> bool:
    is_bool = isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")  # NumPy's
    if expected is bool:
        return is_bool
    if expected is float:
        return isinstance(value, numbers.Real) and not is_bool
    if expected is int:
        return isinstance(value, numbers.Integral) and not is_bool
    return isinstance(value, expected)
