"""Jinja's sandbox for chat templates, with limits: a template ends, and what it makes stays small.

A template is a program from a download. Jinja's own sandbox gives it no access to Python's internals and lets
it change nothing. This one also counts steps: a loop's iteration and a call take one, and each value more by
its weight, roughly its bytes. What is made has at most MOST_WEIGHT, and where a function's result may be many
times as heavy as its arguments, its weight is predicted before the call.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

import jinja2
import jinja2.nodes
import jinja2.runtime
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_STEPS = 4_000_000  # some seconds
MOST_WEIGHT = 1 << 24  # of a value: longer than any conversation
_WEIGHT_OF_STEP = 256  # all values of a rendering together: 1 GiB
_MOST_POWER = 400  # of ten: larger than any float
_STEPS_OF_ITEMS = 8  # to weigh a value whose weight is not known
_LEAST = 8  # weight of any value: a reference to it
_DIGITS = re.compile(r"\d+")


class TooLong(RuntimeError):
    """A template took too many steps, or made too large a value."""


class _Left(threading.local):
    """What a rendering may still take, for each thread. `known` has values whose weight cannot change."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.steps = MOST_STEPS
        self.known: dict[int, tuple[int, Any]] = {}


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment in which templates have limits, for one thread at a time and rendering: see `reset`."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self, filters: Mapping[str, Callable[..., Any]], **options: Any):
        super().__init__(**options)
        self.left = _Left()
        own: dict[str, Callable[..., Any]] = {
            "counted": self._counted,
            "charged": self._charged,
            "concatenated": self._concatenated,
        }
        limited = {name: self._limited(name, call) for name, call in {**self.filters, **filters}.items()}
        self.filters = limited | {name: _at_run_time(call) for name, call in own.items()}

    def reset(self) -> None:
        """Begin another rendering, or compilation, in this thread."""
        self.left.reset()

    # ---- templates are changed before they are compiled ----

    def _generate(self, source: jinja2.nodes.Template, *rest: Any, **more: Any) -> str:
        for concat in list(source.find_all(jinja2.nodes.Concat)):
            every = jinja2.nodes.List(list(concat.nodes), lineno=concat.lineno)
            concat.nodes = [self._filter(every, "concatenated")]
        for item in list(source.find_all(jinja2.nodes.Getitem)):
            if isinstance(item.arg, jinja2.nodes.Slice):
                item.node = self._filter(item.node, "charged")
        for loop in list(source.find_all(jinja2.nodes.For)):
            text = sum(len(data.data) for data in loop.find_all(jinja2.nodes.TemplateData))
            loop.iter = self._filter(loop.iter, "counted", jinja2.nodes.Const(text))
        for output in list(source.find_all(jinja2.nodes.Output)):
            output.nodes = [
                node if isinstance(node, jinja2.nodes.TemplateData) else self._filter(node, "charged")
                for node in output.nodes
            ]
        for assign in list(source.find_all(jinja2.nodes.Assign)):
            assign.node = self._filter(assign.node, "charged")
        return super()._generate(source, *rest, **more)

    def _filter(
        self, node: jinja2.nodes.Node, name: str, *arguments: jinja2.nodes.Expr
    ) -> jinja2.nodes.Filter:
        made = jinja2.nodes.Filter(
            cast(jinja2.nodes.Expr, node), name, list(arguments), [], None, None, lineno=node.lineno
        )
        made.set_environment(self)
        return made

    # ---- what templates do ----

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._take(1)
        if isinstance(obj, jinja2.runtime.LoopContext) and args:  # the next level of a recursive loop
            args = (self._counted(args[0], 0), *args[1:])
        name, owner = _method(obj)
        if owner is not None:
            args = self._predict(name, owner, args, kwargs)
        return self._charged(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, (str, bytes)):
            self._require(self._weigh_format(left, (right,)))
        elif operator != "%":
            self._require(_weigh_result(operator, left, right, self._weigh))
        return self._charged(super().call_binop(context, operator, left, right))

    def _limited(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A filter with limits. It may begin with a context or an environment, which Jinja passes."""
        before = 1 if getattr(call, "jinja_pass_arg", None) is not None else 0

        @functools.wraps(call)
        def limited(*args: Any, **kwargs: Any) -> Any:
            passed, (value, *given) = args[:before], args[before:]
            if name == "join" and not isinstance(value, Collection):
                value = list(self._counted(value, 0))
            given = self._predict(name, value, tuple(given), kwargs)
            return self._charged(call(*passed, value, *given, **kwargs))

        return limited

    # ---- weights ----

    def _take(self, steps: int) -> None:
        self.left.steps -= steps
        if self.left.steps < 0:
            raise TooLong(f"more than {MOST_STEPS} steps of loops and calls")

    def _require(self, weight: int) -> None:
        if weight > MOST_WEIGHT:
            raise TooLong(f"a value of more than {MOST_WEIGHT} bytes")

    def _charged(self, value: Any) -> Any:
        weight = self._weigh(value)
        self._require(weight)
        self._take(weight // _WEIGHT_OF_STEP)
        return value

    def _counted(self, items: Iterable[Any], text: int) -> Iterator[Any]:
        """The items of a loop whose body has so many characters of its own."""
        for item in items:
            self._take(1 + text // _WEIGHT_OF_STEP)
            yield item

    def _concatenated(self, values: list[Any]) -> str:
        """The result of `~`."""
        self._require(sum(map(self._weigh, values)))
        return self._charged("".join(map(str, values)))

    def _weigh(self, value: Any) -> int:
        return self._weigh_within(value, 0)[0]

    def _weigh_within(self, value: Any, depth: int) -> tuple[int, bool]:
        """The weight of a value, and whether it can change: a namespace can."""
        if isinstance(value, str):
            return len(value) * (1 if value.isascii() else 4), False
        if isinstance(value, bytes):
            return len(value), False
        if isinstance(value, int):
            return _LEAST + value.bit_length() // 8, False
        if isinstance(value, range):
            return _LEAST * len(value), False
        is_namespace = isinstance(value, jinja2.utils.Namespace)
        if not is_namespace and not isinstance(value, Collection):
            return _LEAST, False
        if found := self.left.known.get(id(value)):
            return found[0], False
        if depth > 200:
            raise TooLong("a value of more than 200 levels")
        self._take(_STEPS_OF_ITEMS)
        weight, changes = self._weigh_items(value, depth + 1)
        if not changes and not is_namespace:
            self.left.known[id(value)] = weight, value
        return weight, changes or is_namespace

    def _weigh_items(self, value: Any, depth: int) -> tuple[int, bool]:
        if isinstance(value, jinja2.utils.Namespace):
            value = value._Namespace__attrs  # what its text shows
        items: Iterable[Any] = value
        if isinstance(value, Mapping):
            items = (each for pair in value.items() for each in pair)
        weight, changes = _LEAST, False
        for each in items:
            its, may_change = self._weigh_within(each, depth)
            weight, changes = weight + _LEAST + its, changes or may_change
            self._require(weight)
        return weight, changes

    # ---- predictions ----

    def _predict(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Raise TooLong if a function's result may be too heavy. Returns its arguments."""
        if name == "join" and args and not isinstance(args[0], Collection):
            args = (list(self._counted(args[0], 0)), *args[1:])
        given = [*args, *kwargs.values()]
        if name in _GROWTH:
            self._require(_GROWTH[name](self._weigh(value), _largest(given), self._weigh_texts(given)))
        elif name in ("format", "format_map") and isinstance(value, (str, bytes)):
            self._require(self._weigh_format(value, given))
        elif name == "replace":
            old: Any = given[0] if given and isinstance(given[0], (str, bytes)) else ""
            count = value.count(old) if isinstance(value, type(old)) else self._weigh(value)
            self._require(self._weigh(value) + count * self._weigh_texts(given[1:]))
        elif name == "join":
            parts, between = (args[0], value) if args and isinstance(value, (str, bytes)) else (value, given)
            self._require(self._weigh(parts) + len(parts) * self._weigh(between))
        elif name == "round" and _largest(given) > _MOST_POWER:
            raise TooLong(f"a power of ten of more than {_MOST_POWER}")
        return args

    def _weigh_texts(self, given: Iterable[Any]) -> int:
        return sum(self._weigh(each) for each in given if not isinstance(each, (int, float)))

    def _weigh_format(self, text: Any, given: Iterable[Any]) -> int:
        """What a text with places (`%5d`, `{:5}`) may become: its widths, and each value at each place."""
        shown = text.decode("latin-1") if isinstance(text, bytes) else text
        widths = sum(int(digits[:12]) for digits in _DIGITS.findall(shown))
        given = list(given)
        flat = [each for value in given for each in (value if isinstance(value, tuple) else [value])]
        places = shown.count("%") + shown.count("{")
        weight = sum(map(self._weigh, given)) + (_largest(flat) if "*" in shown or "{" in shown else 0)
        return len(shown) + widths + places * weight


# Functions whose result may be much heavier than their arguments: an upper bound of its weight by that of the
# value, the largest number and the weight of the texts among the arguments.
_GROWTH: dict[str, Callable[[int, int, int], int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes"), lambda of, number, text: of + number),
    **dict.fromkeys(
        ("indent", "tojson", "expandtabs"), lambda of, number, text: of * max(number, text // 4, 1)
    ),
    **dict.fromkeys(
        ("wordwrap", "urlize", "translate", "xmlattr"), lambda of, number, text: of * max(text, 1)
    ),
    "batch": lambda of, number, text: of + number * (_LEAST + text),
    "slice": lambda of, number, text: of + number * 64,
    "strftime_now": lambda of, number, text: text * 64,
}


def _weigh_result(operator: str, left: Any, right: Any, weigh: Callable[[Any], int]) -> int:
    """An upper bound of the weight of a sum, product or power."""
    if operator == "+":
        return weigh(left) + weigh(right)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        return bits << 8  # in numbers of 65536 bits products already take long
    number, other = (left, right) if isinstance(left, int) else (right, left)
    repeats = operator == "*" and isinstance(number, int) and isinstance(other, Collection)
    return weigh(other) * max(number, 1) if repeats else 0


def _largest(given: Iterable[Any]) -> int:
    return max((abs(each) for each in given if isinstance(each, int)), default=0)


def _method(obj: Any) -> tuple[str, Any]:
    """The name of a method and the value that it belongs to; None for the value of another function."""
    name = getattr(obj, "__name__", "")
    if name == "strftime_now":
        return name, ""
    owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
    return name, owner if isinstance(owner, (str, bytes, int)) else None


def _at_run_time(call: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that Jinja does not apply to constants when it compiles."""
    return jinja2.pass_context(lambda context, value, *args: call(value, *args))
