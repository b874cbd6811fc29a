"""write_backends: write the C++ headers with the backends that airllm/backends/shipped/ declares.

The two headers are committed, so that a program compiles without Python. One has the types that programs may
name, the other the rows of the registry.
"""

from collections.abc import Mapping
from pathlib import Path

from airllm.backends.declaration import Declaration, shipped

from . import CommandError, probes

HELP = "write the list of backends for C++ programs"
TYPES = probes.CPP_EXT / "include" / "airllm" / "backend" / "shipped.h"
ROWS = probes.CPP_EXT / "program" / "shipped.h"
HEAD = """// {what}
// `python setup.py write_backends` generates this file from the declarations in airllm/backends/shipped/.
#pragma once
"""


def add_options(parser) -> None:
    """This command has no options."""


def run(options) -> None:
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(probes.CHECKOUT)}")


def written() -> dict[Path, str]:
    """The text of each file, by path."""
    backends = numbered(shipped())
    return {TYPES: types(backends), ROWS: rows(backends)}


def numbered(backends: Mapping[str, Declaration]) -> dict[int, tuple[str, Declaration]]:
    """Backends by their values of BackendType; those that declare none come last."""
    found: dict[int, tuple[str, Declaration]] = {}
    for name, own in sorted(backends.items(), key=lambda each: each[1].number_in_cpp is None):
        number = max(found, default=-1) + 1 if own.number_in_cpp is None else own.number_in_cpp
        if number in found:
            raise CommandError(f"{name} has number_in_cpp={number}, which {found[number][0]} has too")
        found[number] = name, own
    return dict(sorted(found.items()))


def types(backends: Mapping[int, tuple[str, Declaration]]) -> str:
    members = [f"  {member(*own)} = {number}," for number, own in backends.items()]
    last = max(backends, default=-1) + 1
    return "\n".join(
        [
            HEAD.format(what="The types of backends. A program includes <airllm/backend/backends.h>."),
            "namespace airllm::backend {\n",
            "// ADDED and above: backends added with BackendRegistry::add().",
            f"enum class BackendType : int {{\n{chr(10).join(members)}\n  ADDED = {last},\n}};\n",
            "}  // namespace airllm::backend\n",
        ]
    )


def rows(backends: Mapping[int, tuple[str, Declaration]]) -> str:
    owns = list(backends.values())
    classes = sorted(own.name_in_cpp for _, own in owns if own.name_in_cpp)
    includes = [f'#include "{name}_backend.h"' for name in sorted(["absent", *classes])]
    aliases = [f'    {{"{alias}", "{known_as(*own)}"}},' for own in owns for alias in aliases_of(*own)]
    return "\n".join(
        [
            HEAD.format(what="The built-in backends of the registry, and their aliases."),
            *includes,
            "\nnamespace airllm::backend {\n",
            "// clang-format off: a row is a line",
            f"constexpr Shipped kShipped[] = {{\n{chr(10).join(row(*own) for own in owns)}\n}};\n",
            f"constexpr Alias kAliases[] = {{\n{chr(10).join(aliases)}\n}};",
            "// clang-format on\n",
            "}  // namespace airllm::backend\n",
        ]
    )


def row(name: str, own: Declaration) -> str:
    make = f"make<{own.name_in_cpp.capitalize()}Backend>" if own.name_in_cpp else "make_absent"
    reached = own.module or own.title
    return f'    {{BackendType::{member(name, own)}, "{known_as(name, own)}", "{reached}", {make}}},'


def member(name: str, own: Declaration) -> str:
    return known_as(name, own).upper()


def known_as(name: str, own: Declaration) -> str:
    """The name of a backend in C++ programs."""
    return own.name_in_cpp or name


def aliases_of(name: str, own: Declaration) -> list[str]:
    return sorted({name, *own.aliases, *own.aliases_in_cpp} - {known_as(name, own)})
