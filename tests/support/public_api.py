"""The public API as text: a line for each name that users may import, call or type, with its signature.

`python -m tests.support.public_api --write` makes docs/public_api.txt from the code.
"""

import argparse
import dataclasses
import enum
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[2] / "docs" / "public_api.txt"

# Modules that users import, and their public names. None: those of __all__, or those exported.
MODULES: dict[str, tuple[str, ...] | None] = {
    "airllm": None,
    "airllm.backends": None,
    "airllm.tensor_ops": None,
    "airllm.formats": ("FORMATS", "Format", "Quantized"),
    "airllm.engine.request": ("Statistics", "request"),
    "airllm.engine.scheduling.requests": ("Event", "Limits", "QueueFull", "SequenceRequest"),
    "airllm.ray": ("Generate", "serving_app"),
    "airllm.serving.app": ("build_app",),
    "airllm.serving.options": ("Options",),
    "airllm.backends.declaration": ("Declaration",),
    "airllm.ops.op": ("op",),
}


def lines() -> list[str]:
    """The table, in the order of MODULES, then the commands."""
    return [*python_lines(), *command_lines()]


def python_lines() -> Iterator[str]:
    listed: dict[int, str] = {}  # a class is listed once; its other names refer to it
    for module, names in MODULES.items():
        home = import_module(module)
        for name in names or exported(home):
            value, place = getattr(home, name), f"{module}.{name}"
            if inspect.isclass(value) and id(value) in listed:
                yield f"{place} = {listed[id(value)]}"
                continue
            listed[id(value)] = place
            yield from lines_of(place, value)


def exported(module: Any) -> list[str]:
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted([*module._MODULE_OF, *(["__version__"] if hasattr(module, "__version__") else [])])


def lines_of(place: str, value: Any) -> Iterator[str]:
    if not callable(value):
        yield f"{place}: {type(value).__name__}"
    elif not inspect.isclass(value):
        yield place + signature(value)
    elif issubclass(value, enum.Enum):
        yield f"{place}: {', '.join(member.name for member in value)}"
    else:
        yield place + ("" if issubclass(value, Exception) else signature(value))
        fields = {each.name for each in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else ()
        for name in sorted({*dir(value)} - {*fields}):  # fields are in the signature
            if not name.startswith("_") and is_ours(value, name):
                yield f"{place}.{name}{suffix(inspect.getattr_static(value, name))}"


def is_ours(owner: type, name: str) -> bool:
    """Whether a class of this project defines the member, rather than a base class of Python's."""
    (home, *_) = [each for each in owner.__mro__ if name in vars(each)]
    return home.__module__.startswith("airllm")


def suffix(member: Any) -> str:
    if isinstance(member, (staticmethod, classmethod)):
        return signature(member.__func__, skip=isinstance(member, classmethod))
    return signature(member, skip=True) if inspect.isfunction(member) else ""


def signature(function: Any, skip: bool = False) -> str:
    """Names, kinds and defaults; types are checked by type checkers, and Pythons print them in other ways."""
    found = inspect.signature(function)
    parameters = list(found.parameters.values())[1 if skip else 0 :]
    plain = [
        each.replace(
            annotation=each.empty, default=each.default if is_plain(each.default) else Shown(each.default)
        )
        for each in parameters
    ]
    return str(inspect.Signature(plain))


def is_plain(default: Any) -> bool:
    """Whether a default is printed in the same way by each Python, and without addresses."""
    return default in (inspect.Parameter.empty, None) or isinstance(default, (int, float, str, tuple))


class Shown:
    """A default that is an object, by the name of its type."""

    def __init__(self, default: Any):
        self.text = f"<{type(default).__name__.strip('_').lower()}>"

    def __repr__(self) -> str:
        return self.text


def command_lines() -> Iterator[str]:
    from airllm.cli import argument_parser

    parser = argument_parser.parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        actions = [each for each in command._actions if each.help is not argparse.SUPPRESS]
        places = [each.metavar or each.dest for each in actions if not each.option_strings]
        yield " ".join(["airllm", name, *map(str, places)])
        for each in actions:
            if each.option_strings and each.dest != "help":
                yield f"airllm {name} {', '.join(each.option_strings)}"


def main() -> None:
    text = "".join(f"{line}\n" for line in lines())
    if sys.argv[1:] == ["--write"]:
        TABLE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
