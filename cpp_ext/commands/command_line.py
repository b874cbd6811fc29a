"""Run the commands: alone with the standard library, or as setuptools commands."""

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from . import (
    CommandError,
    UsageError,
    build_ext,
    configure_backend,
    distribution,
    editable_wheel,
    test_capabilities,
    write_backends,
    write_codebooks,
    write_types,
)
from .recipes import module_recipes, recipes

COMMANDS: dict[str, ModuleType] = {
    "configure_backend": configure_backend,
    "test_capabilities": test_capabilities,
    "write_backends": write_backends,
    "write_codebooks": write_codebooks,
    "write_types": write_types,
}
for _recipe in recipes().values():
    if _recipe.COMMAND[0] != "build_ext":  # setuptools has that one
        COMMANDS[_recipe.COMMAND[0]] = import_module(f".{_recipe.COMMAND[0]}", __package__)


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors as one message."""

    def error(self, message):
        raise UsageError(f"{message} (options: {', '.join(self.options())})")

    def options(self) -> list[str]:
        return [action.option_strings[-1] for action in self._actions]


def parser_of(name: str, command: ModuleType) -> Parser:
    parser = Parser(prog=f"setup.py {name}", description=command.HELP, allow_abbrev=False)
    command.add_options(parser)
    return parser


def run_alone(argv: list[str]) -> int | None:
    """Run `argv` if it is one command that needs no setuptools, and return the exit status; else None."""
    if not argv or any(argument in COMMANDS for argument in argv[1:]):
        return None
    if argv[0] == "build_ext" and not find_spec("setuptools"):
        return status_of(argv[0], build_ext, argv[1:])
    return status_of(argv[0], COMMANDS[argv[0]], argv[1:]) if argv[0] in COMMANDS else None


def status_of(name: str, command: ModuleType, arguments: list[str]) -> int:
    """Run a command and return the exit status: 0, 1 if it failed, 2 for invalid options."""
    try:
        command.run(parser_of(name, command).parse_args(arguments))
    except CommandError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def run_with_setuptools(argv: list[str]) -> None:
    """Run setuptools, as pip does."""
    if not find_spec("setuptools"):
        alone = ", ".join(["build_ext", *COMMANDS])
        what = " ".join(argv) or "without a command it"
        sys.exit(f"setup.py: {what} needs setuptools: pip install setuptools (these do without: {alone})")
    from setuptools import Extension, setup
    from setuptools.command import build_ext as original

    classes = {name: setuptools_command(name, command) for name, command in COMMANDS.items()}
    if find_spec("setuptools.command.editable_wheel"):  # older setuptools lack it, and pip does not call it
        from setuptools.command import editable_wheel as original_editable

        classes["editable_wheel"] = editable_wheel.from_setuptools(original_editable.editable_wheel)
    setup(
        license="Apache-2.0",
        **distribution.arguments(),
        ext_modules=[Extension(name, []) for name in [recipe.NAME for recipe in module_recipes().values()]],
        cmdclass={**classes, "build_ext": build_ext.from_setuptools(original.build_ext)},
    )


def setuptools_command(name: str, command: ModuleType) -> type:
    """The setuptools command with the options that `command` declares."""
    from setuptools import Command

    actions = [action for action in parser_of(name, command)._actions if action.dest != "help"]

    class Generated(Command):
        description = command.HELP
        user_options = [(_long_option(action), None, action.help) for action in actions]
        boolean_options = [action.dest for action in actions if action.nargs == 0]

        def initialize_options(self):
            for action in actions:
                setattr(self, action.dest, action.default)

        def finalize_options(self):
            """Nothing depends on other commands."""

        def run(self):
            _run_in_setuptools(name, command, {action.dest: getattr(self, action.dest) for action in actions})

    Generated.__name__ = name
    return Generated


def _long_option(action: argparse.Action) -> str:
    return action.option_strings[-1].removeprefix("--") + ("" if action.nargs == 0 else "=")


def _run_in_setuptools(name: str, command: ModuleType, values: dict[str, Any]) -> None:
    try:
        command.run(argparse.Namespace(**values))
    except CommandError as error:
        raise SystemExit(f"{name}: {error}") from None
